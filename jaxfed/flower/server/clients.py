"""Clients of a run: which node is which client, and which nodes are refused, in one line each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata

from absl import logging

import jaxfed
from jaxfed.flower.client import hello
from jaxfed.flower.client.hello import Hello
from jaxfed.flower.messages import records
from jaxfed.flower.messages.records import one_line
from jaxfed.flower.messages.setup import Setup
from jaxfed.flower.server.exchange import Exchange

_MOST_NAMED = 10  # clients in a line
_BETWEEN_LINES = 30.0  # seconds
_POLL = 0.5  # seconds


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Requirements for the hellos of `number` clients; () for `names` and `example`, "" for `public`: any.

    `data` has the checksums of clients' data of an earlier part of this run.
    """

    number: int
    config: str
    public: str = ""
    names: Sequence[str] = ()
    example: Sequence[str | int] = ()
    columns: Sequence[str] = ()
    data: Mapping[int, str] = field(default_factory=dict)

    def objection(self, said: Hello) -> str:
        """Reason to refuse a hello, or ""; with another version of JAX results are no simulation's."""
        for name, theirs, ours in (
            ("jaxfed", said.jaxfed, jaxfed.__version__),
            ("JAX", said.jax, metadata.version("jax")),
        ):
            if theirs != ours:
                return f"it has {name} {one_line(theirs)}, the server has {ours}"
        if said.client >= self.number:
            return f"there is no client number {said.client}"
        who, name = f"client {said.client}", one_line(said.name)
        example = [said.dtype, *said.shape]
        if self.names and said.name != (wanted := self.names[said.client]):
            return f"{who} has the name {name!r}, and config.deployment.nodes has {wanted!r}"
        if self.example and example != list(self.example):
            return f"{who} has examples {example}, the server {list(self.example)}"
        if (columns := list(said.columns)) != list(self.columns):
            same = sorted(columns) == sorted(self.columns)
            wrong = "has its columns in another order" if same else "has other columns"
            theirs, ours = (one_line(f"{names}") for names in (columns, list(self.columns)))
            return f"{who} ({name}) {wrong}: {theirs}, shared.json of the server {ours}"
        if said.config != self.config:
            theirs = one_line(said.config)
            return f"{who} resolves the config differently ({theirs}, not {self.config})"
        if self.public and said.public != self.public:
            has = "other public examples than the server" if said.public else "no public examples"
            return f"{who} has {has}"
        if said.data != self.data.get(said.client, said.data):
            return f"{who} has other data than earlier in this run, or a new folder"
        return ""


@dataclass
class Clients:
    """The clients of a run, as they are found.

    Attributes:
        exchange: asks nodes, whose places in a list are their numbers here.
        told: the setup, as far as it is known before the hellos.
        nodes: the node of each admitted client.
        refused: the other nodes that were asked, with the reason.
        is_wrong: a refused node is one of the clients, and has another config, version or data, or failed.
    """

    exchange: Exchange
    expected: Expected
    told: Setup
    nodes: dict[int, int] = field(default_factory=dict)
    hellos: dict[int, Hello] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    is_wrong: bool = False

    def gather(self, seconds: float, tell: Callable[[str], None]) -> None:
        """Admit each node when it connects, until all clients are here, one is wrong, or time is over.

        A node that is none of the clients (one that is gone but still listed, one of another run) ends no
        wait. `tell` receives a line that names the missing clients, when they change and every half minute.
        """
        clock = self.exchange.clock
        began = last_line = clock()
        line = ""
        while True:
            connected = set(self.exchange.network.nodes())
            if new := connected - {*self.nodes.values(), *self.refused}:
                self.admit(new)
            left = began + seconds - clock()
            if len(self.nodes) == self.expected.number or self.is_wrong or left <= 0:
                return
            here = f"{len(self.nodes)} of {self.expected.number} are here"
            waiting = f"waiting for clients {self.missing()}; {here}"
            if waiting != line or clock() - last_line >= _BETWEEN_LINES:
                line, last_line = waiting, clock()
                tell(f"{line}, after {last_line - began:.0f} of {seconds:g} s")
            self.exchange.sleep(min(_POLL, left))

    def missing(self) -> str:
        """Name the clients that are not here, such as `1 (south), 2 (west)`; "" if all are."""
        names = {client: f" ({name})" for client, name in enumerate(self.expected.names)}
        left = [client for client in range(self.expected.number) if client not in self.nodes]
        shown = [f"{client}{names.get(client, '')}" for client in left[:_MOST_NAMED]]
        more = len(left) - len(shown)
        return ", ".join(shown) + f" and {more} more" * bool(more)

    def admit(self, nodes: Collection[int]) -> None:
        """Ask nodes who they are, and check what they say; the first node that has a number keeps it."""
        self.exchange.nodes = asked = dict(enumerate(sorted(nodes)))
        answers = self.exchange.ask(
            hello.NAME,
            dict.fromkeys(asked, records.packed(self.told)),
            round=0,
            read=lambda place, reply: hello.from_record(reply),
            continues=False,
        )
        refused = {asked[place]: lost.reason for place, lost in answers.lost.items()}
        self.is_wrong |= any(lost.kind for lost in answers.lost.values())
        for place, said in answers.replies.items():
            if reason := self.expected.objection(said):
                refused[asked[place]] = reason
                self.is_wrong |= said.client < self.expected.number
            elif (holder := self.nodes.setdefault(said.client, asked[place])) != asked[place]:
                refused[asked[place]] = f"client number {said.client} is that of node {holder}"
            else:
                self.hellos[said.client] = said
        for node, reason in sorted(refused.items()):
            logging.warning("refused node %d: %s", node, reason)
        self.refused |= refused
