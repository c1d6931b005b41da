"""Clients of a run: which node is which client, and which nodes are refused, in one line each."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from absl import logging

import jaxfed
from jaxfed.flower.client import hello
from jaxfed.flower.client.hello import Hello
from jaxfed.flower.messages.network import Network
from jaxfed.flower.messages.records import Record
from jaxfed.flower.messages.steps import one_line
from jaxfed.flower.server.exchange import Exchange

_MOST_NAMED = 10  # clients in a line
_BETWEEN_LINES = 30.0  # seconds
_POLL = 0.5  # seconds


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Requirements for the hellos of `number` clients; () for `names` and `example`, "" for `public`: any."""

    number: int
    config: str
    public: str = ""
    names: Sequence[str] = ()
    example: Sequence[Any] = ()
    columns: Sequence[str] = ()


@dataclass
class Clients:
    """The clients of a run, as they are found.

    Attributes:
        content: of the request for a hello.
        exchanged: keywords of `Exchange`: run, deadline, retries, and a test's clock.
        data: checksums of clients' data, of an earlier part of this run or of the first hellos.
        nodes: the node of each admitted client.
        refused: the other nodes that were asked, with the reason.
        is_wrong: a refused node is one of the clients, and has another config, version or data, or failed.
    """

    network: Network
    expected: Expected
    content: Record
    exchanged: Mapping[str, Any]
    data: dict[int, str] = field(default_factory=dict)
    nodes: dict[int, int] = field(default_factory=dict)
    hellos: dict[int, Hello] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    is_wrong: bool = False

    def gather(self, seconds: float, tell: Callable[[str], None]) -> None:
        """Admit each node when it connects, until all clients are here, one is wrong, or time is over.

        A node that is none of the clients (one that is gone but still listed, one of another run) ends no
        wait. `tell` receives a line that names the missing clients, when they change and every half minute.
        """
        clock = self.exchanged.get("clock", time.monotonic)
        began = last_line = clock()
        line = ""
        while True:
            if new := set(self.network.nodes()) - {*self.nodes.values(), *self.refused}:
                self.admit(new)
            left = began + seconds - clock()
            if len(self.nodes) == self.expected.number or self.is_wrong or left <= 0:
                break
            here = f"{len(self.nodes)} of {self.expected.number} are here"
            waiting = f"waiting for clients {self.missing()}; {here}"
            if waiting != line or clock() - last_line >= _BETWEEN_LINES:
                line, last_line = waiting, clock()
                tell(f"{line}, after {last_line - began:.0f} of {seconds:g} s")
            self.exchanged.get("sleep", time.sleep)(min(_POLL, left))
        self.data = {client: said.data for client, said in self.hellos.items()}

    def missing(self) -> str:
        """Name the clients that are not here, such as `1 (south), 2 (west)`; "" if all are."""
        names = {client: f" ({name})" for client, name in enumerate(self.expected.names)}
        left = [client for client in range(self.expected.number) if client not in self.nodes]
        shown = [f"{client}{names.get(client, '')}" for client in left[:_MOST_NAMED]]
        more = len(left) - len(shown)
        return ", ".join(shown) + f" and {more} more" * bool(more)

    def find_returned(self) -> None:
        """Admit clients that come back with other nodes: a node without a key has a new number each time."""
        connected = set(self.network.nodes())
        self.refused = {node: why for node, why in self.refused.items() if node in connected}
        known = set(self.nodes.values())
        new = connected - known - self.refused.keys()
        if new and not connected >= known:
            self.admit(new)

    def of_hello(self, client: int) -> Record:
        """Return what a client has said, which it compares with what it has now."""
        return {"hello.jaxfed": jaxfed.__version__, "hello.data": self.data[client]}

    def admit(self, nodes: Collection[int]) -> None:
        """Ask nodes who they are, and check what they say.

        While the node of a client is connected, no other gets its number. Two nodes with one number that
        nobody has are both refused.
        """
        asked = dict(enumerate(sorted(nodes)))
        answers = Exchange(self.network, asked, **self.exchanged).ask(
            hello.NAME,
            dict.fromkeys(asked, self.content),
            round=0,
            read=lambda place, reply: hello.from_record(reply),
        )
        refused = {asked[place]: lost.reason for place, lost in answers.lost.items()}
        self.is_wrong |= any(lost.kind for lost in answers.lost.values())
        said: dict[int, Hello] = {asked[place]: each for place, each in answers.replies.items()}
        connected = set(self.network.nodes())
        holders = {client: node for client, node in self.nodes.items() if node in connected}
        claims: dict[int, list[int]] = defaultdict(list)
        for node, each in said.items():
            claims[each.client].append(node)
        for node, each in said.items():
            others = [other for other in claims[each.client] if other != node]
            if reason := self._objection(each):
                refused[node] = reason
                self.is_wrong |= each.client < self.expected.number
            elif holders.get(each.client, node) != node:
                refused[node] = (
                    f"client number {each.client} is that of node {holders[each.client]}"
                )
            elif others and each.client not in holders:
                refused[node] = f"client number {each.client} is also claimed by node {others[0]}"
        for node, reason in sorted(refused.items()):
            logging.warning("refused node %d: %s", node, reason)
        for node, each in said.items():
            if node not in refused:
                self.nodes[each.client], self.hellos[each.client] = node, each
        self.refused |= refused

    def _objection(self, said: Hello) -> str:
        """Reason to refuse a hello, or ""; with another version of JAX results are no simulation's."""
        expected = self.expected
        for name, theirs, ours in (
            ("jaxfed", said.jaxfed, jaxfed.__version__),
            ("JAX", said.jax, metadata.version("jax")),
        ):
            if theirs != ours:
                return f"it has {name} {one_line(theirs)}, the server has {ours}"
        if said.client >= expected.number:
            return f"there is no client number {said.client}"
        who, name = f"client {said.client}", one_line(said.name)
        if expected.names and said.name != expected.names[said.client]:
            wanted = expected.names[said.client]
            return f"{who} has the name {name!r}, and config.deployment.nodes has {wanted!r}"
        if expected.example and said.example != tuple(expected.example):
            return f"{who} has examples {list(said.example)}, the server {list(expected.example)}"
        if wrong := _other_columns(said.columns, tuple(expected.columns)):
            return f"{who} ({name}) {wrong}"
        if said.config != expected.config:
            theirs = one_line(said.config)
            return f"{who} resolves the config differently ({theirs}, not {expected.config})"
        if expected.public and said.public != expected.public:
            has = "other public examples than the server" if said.public else "no public examples"
            return f"{who} has {has}"
        if said.data != self.data.get(said.client, said.data):
            return f"{who} has other data than earlier in this run, or a new folder"
        return ""


def _other_columns(theirs: Sequence[str], ours: Sequence[str]) -> str:
    """Reason to refuse examples with these names of columns, where the server has `ours`; ""."""
    if theirs == ours:
        return ""
    if not theirs:
        return (
            "names no columns, and shared.json of the server does; add `columns` to its train.npz"
        )
    if not ours:
        return "names its columns, and shared.json of the server does not; add `columns` there"
    place = next(place for place, name in enumerate(theirs) if name != ours[place])
    found, wanted = (one_line(name) for name in (theirs[place], ours[place]))
    where = f"{found!r} in place {place}, where the server has {wanted!r}"
    if theirs[place] not in ours:
        return f"has a column {where}"
    return (
        f"has its columns in another order: {where}; put the columns of train.npz and test.npz into the "
        "server's order"
    )
