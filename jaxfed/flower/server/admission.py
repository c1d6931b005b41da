"""The server's side of hellos: which node is which client, and which nodes are refused, in one line each."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import metadata
from typing import Any, NamedTuple

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


class Admitted(NamedTuple):
    """The clients of a deployment.

    Attributes:
        nodes: the node of each admitted client, in ascending order.
        hellos: the clients' first replies.
        refused: the other nodes that were asked, with the reason.
        last_step: the largest number of a step that an admitted client has served in this run.
        wrong: a refused node is one of the clients, and has another config, version or data, or failed.
    """

    nodes: dict[int, int]
    hellos: dict[int, Hello]
    refused: dict[int, str]
    last_step: int
    wrong: bool

    def joined(self, later: Admitted) -> Admitted:
        """Return these clients and those that were admitted later."""
        return Admitted(
            dict(sorted((self.nodes | later.nodes).items())),
            self.hellos | later.hellos,
            self.refused | later.refused,
            max(self.last_step, later.last_step),
            self.wrong or later.wrong,
        )


class Expected(NamedTuple):
    """Requirements for a hello.

    Attributes:
        clients: numbers of the clients there may be.
        config: hash of the config.
        public: checksum of the public examples; "": the method has none.
        data: checksums of clients' data in an earlier part of this run.
        names: of the clients; () for any.
        example: type and sizes of an example.
        columns: names of its columns; () if they have none.
    """

    clients: Collection[int]
    config: str
    public: str = ""
    data: Mapping[int, str] = {}
    names: Sequence[str] = ()
    example: Sequence[Any] = ()
    columns: Sequence[str] = ()

    def missing(self, there: Collection[int]) -> str:
        """Name the clients that are not there, such as `1 (south), 2 (west)`; "" if all are."""
        names = {client: f" ({name})" for client, name in enumerate(self.names)}
        left = [client for client in self.clients if client not in there]
        shown = [f"{client}{names.get(client, '')}" for client in left[:_MOST_NAMED]]
        more = len(left) - len(shown)
        return ", ".join(shown) + f" and {more} more" * bool(more)


def gather(
    network: Network,
    number: int,
    admit: Callable[..., Admitted],
    *,
    seconds: float,
    missing: Callable[[Collection[int]], str] = lambda there: "",
    tell: Callable[[str], None] = lambda line: None,
    poll: float = 0.5,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Admitted:
    """Admit each node when it connects, until all clients are here, one is wrong, or time is over.

    A node that is none of the clients (one that is gone but still listed, one of another run) ends no wait.

    Args:
        network: the network.
        number: of clients.
        admit: asks nodes (nodes, known=) and admits the clients among them.
        seconds: to wait.
        missing: function of the admitted clients that names the missing ones.
        tell: receives a line that names the missing clients, when they change and every half minute.
        poll: seconds between two looks at the network.
        clock: as in `Exchange`.
        sleep: as in `Exchange`.
    """
    began = last_line = clock()
    end = began + seconds
    found, line = Admitted({}, {}, {}, 0, False), ""
    while True:
        if new := set(network.nodes()) - {*found.nodes.values(), *found.refused}:
            found = found.joined(admit(new, known=found.nodes))
        left = end - clock()
        if len(found.nodes) == number or found.wrong or left <= 0:
            return found
        waiting = (
            f"waiting for clients {missing(found.nodes)}; {len(found.nodes)} of {number} are here"
        )
        if waiting != line or clock() - last_line >= _BETWEEN_LINES:
            line, last_line = waiting, clock()
            tell(f"{line}, after {last_line - began:.0f} of {seconds:g} s")
        sleep(min(poll, left))


def admit(
    network: Network,
    nodes: Collection[int],
    expected: Expected,
    content: Record,
    *,
    run: str,
    deadline: float,
    retries: int = 1,
    known: Mapping[int, int] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Admitted:
    """Ask nodes who they are, and check what they say.

    Args:
        network: the network.
        nodes: nodes to ask.
        expected: requirements for their hellos.
        content: of the request.
        run: name of the run.
        deadline: seconds.
        retries: as in `Exchange`.
        known: nodes of clients that were admitted earlier. While such a node is connected, no other gets its
            number.
        clock: as in `Exchange`.
        sleep: as in `Exchange`.
    """
    asked = dict(enumerate(sorted(nodes)))
    exchange = Exchange(
        network, asked, run=run, deadline=deadline, retries=retries, clock=clock, sleep=sleep
    )
    answers = exchange.ask(
        hello.NAME,
        dict.fromkeys(asked, content),
        round=0,
        read=lambda place, reply: hello.from_record(reply),
    )
    refused = {asked[place]: lost.reason for place, lost in answers.lost.items()}
    said = {asked[place]: reply for place, reply in answers.replies.items()}
    connected = set(network.nodes())
    holders = {number: node for number, node in (known or {}).items() if node in connected}
    refused |= refusals(said, expected, holders)
    for node, reason in sorted(refused.items()):
        logging.warning("refused node %d: %s", node, reason)
    admitted = sorted((said[node].client, node) for node in said if node not in refused)
    hellos = {number: said[node] for number, node in admitted}
    return Admitted(
        dict(admitted),
        hellos,
        refused,
        max((each.last_step for each in hellos.values()), default=0),
        any(lost.kind for lost in answers.lost.values())
        or any(
            each.client in expected.clients and _objection(each, expected) for each in said.values()
        ),
    )


def refusals(
    said: Mapping[int, Hello], expected: Expected, holders: Mapping[int, int]
) -> dict[int, str]:
    """Find the nodes that cannot take part, with the reason.

    Two nodes with one number are both refused, unless one of them is known to have it.

    Args:
        said: hellos by node.
        expected: requirements for their hellos.
        holders: connected nodes that clients were admitted with earlier.
    """
    claims: dict[int, list[int]] = defaultdict(list)
    for node, each in said.items():
        claims[each.client].append(node)
    found: dict[int, str] = {}
    for node, each in said.items():
        holder = holders.get(each.client, node)
        others = [other for other in claims[each.client] if other != node]
        if reason := _objection(each, expected):
            found[node] = reason
        elif holder != node:
            found[node] = f"client number {each.client} is that of node {holder}"
        elif others and each.client not in holders:
            found[node] = f"client number {each.client} is also claimed by node {others[0]}"
    return found


def _objection(said: Hello, expected: Expected) -> str:
    """Reason to refuse a hello by itself, or ""; with another version of JAX results are no simulation's."""
    for name, theirs, ours in (
        ("jaxfed", said.jaxfed, jaxfed.__version__),
        ("JAX", said.jax, metadata.version("jax")),
    ):
        if theirs != ours:
            return f"it has {name} {one_line(theirs)}, the server has {ours}"
    if said.client not in expected.clients:
        return f"there is no client number {said.client}"
    who = f"client {said.client}"
    if expected.names and said.name != expected.names[said.client]:
        name = expected.names[said.client]
        return (
            f"{who} has the name {one_line(said.name)!r}, and config.deployment.nodes has {name!r}"
        )
    if expected.example and (form := [said.census.dtype, *said.census.shape]) != expected.example:
        return f"{who} has examples {form}, the server {expected.example}"
    if wrong := _other_columns(said.columns, tuple(expected.columns)):
        return f"{who} ({one_line(said.name)}) {wrong}"
    if said.config != expected.config:
        return f"{who} resolves the config differently ({one_line(said.config)}, not {expected.config})"
    if expected.public and said.public != expected.public:
        has = "other public examples than the server" if said.public else "no public examples"
        return f"{who} has {has}"
    if said.data != expected.data.get(said.client, said.data):
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
    if theirs[place] not in ours:
        return f"has a column {found!r} in place {place}, where the server has {wanted!r}"
    return (
        f"has its columns in another order: {found!r} in place {place}, where the server has {wanted!r}; put "
        "the columns of train.npz and test.npz into the server's order"
    )


class Returning:
    """Clients that come back with other nodes: a node that starts again without a key has a new number."""

    def __init__(
        self,
        network: Network,
        admit: Callable[..., Admitted],
        expected: Expected,
        hellos: Mapping[int, Hello],
    ) -> None:
        """Admit nodes by `admit` (nodes, expected, known=) if their data are those of the first hellos."""
        self._network, self._admit = network, admit
        self._data = {client: said.data for client, said in hellos.items()}
        self._expected = expected._replace(data=self._data)
        self._refused: set[int] = set()

    def nodes(self, known: Mapping[int, int]) -> dict[int, int]:
        """Return the new nodes of clients whose known ones are not connected; asks each node once."""
        connected = set(self._network.nodes())
        self._refused &= connected
        new = connected - set(known.values()) - self._refused
        if not new or connected >= set(known.values()):
            return {}
        admitted = self._admit(new, self._expected, known=known)
        self._refused |= admitted.refused.keys()
        return admitted.nodes

    def of_hello(self, client: int) -> Record:
        """Return what a client has said, which it compares with what it has now."""
        return {"hello.jaxfed": jaxfed.__version__, "hello.data": self._data[client]}
