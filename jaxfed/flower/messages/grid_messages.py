"""Records as messages of Flower 1.42, and on the Unix socket of a site's worker; without JAX.

The only file between the exchange and Flower's message API. A record travels as a head in a ConfigRecord and
a payload, if it has one, as a single Array of bytes in an ArrayRecord. So a message has six objects however
many leaves a model has (each object costs a request), and the SuperLink, which knows objects by their hash,
stores a payload once that goes to many clients.

Facts of this version: an unknown node gets the identifier "". News of a lost node comes from the SuperLink,
and only `reply_to_message_id` says who is lost. Replies come in any order. The text of a client's exception
reaches the server, so client apps must not raise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from multiprocessing.connection import Client, Connection
from typing import TYPE_CHECKING

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from jaxfed.flower.messages import records
from jaxfed.flower.messages.records import BadMessage, Record
from jaxfed.flower.messages.steps import Arrival, Failure, failed

if TYPE_CHECKING:
    from flwr.serverapp import Grid

MESSAGE_TYPE = "query"  # a client app registers its function with `@app.query()`

# Empty; a node that answers it asks again at once, otherwise after 3 s.
_STAY = f"{MESSAGE_TYPE}.stay"
_HEAD, _PAYLOAD, _BYTES = "head", "payload", "jaxfed.bytes"
_PROBLEMS = {  # by Flower's error code
    1: "its Flower app cannot be loaded",
    2: "its process raised an error",
    3: "no reply in time",
    4: "its reply was lost by the network",
    5: "its node went offline",
    8: "its process crashed",
}
_WORKER_SECONDS = 120.0  # within which a worker listens
_PULL_SECONDS = 1.0  # for a reply that is here; a larger one is fetched while others are


class GridNetwork:
    """Flower's grid as a `steps.Network`.

    Flower waits for all of a reply, up to two hours. So each node has a thread, which pulls one at a time.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._nodes: dict[str, int] = {}  # of each request under way
        self._stays: list[str] = []  # identifiers of such messages under way
        # By node, None for stays: the first identifier, and the pull.
        self._pulls: dict[int | None, tuple[str, Future[Iterable[Message]]]] = {}
        self._threads = ThreadPoolExecutor(10_000)  # more than nodes; they start as they are needed

    def nodes(self) -> list[int]:
        """List the nodes that are connected now."""
        return sorted(self._grid.get_node_ids())

    def send(self, requests: Sequence[tuple[int, Record]], seconds: float) -> list[str]:
        """Send requests; returns an identifier of each, "" for a request that cannot be delivered."""
        messages = [
            Message(to_record_dict(record), node, MESSAGE_TYPE, ttl=seconds)
            for node, record in requests
        ]
        stays = [Message(RecordDict(), node, _STAY, ttl=seconds) for node, _ in requests]
        identifiers = [identifier or "" for identifier in self._grid.push_messages(messages)]
        with suppress(Exception):  # without them nodes only ask later
            self._stays += filter(None, self._grid.push_messages(stays))
        if len(identifiers) != len(messages):  # Flower returns none if they are too large for it
            identifiers = [""] * len(messages)
        self._nodes = dict(zip(identifiers, (node for node, _ in requests), strict=True))
        return identifiers

    def receive(self, identifiers: Iterable[str]) -> list[Arrival]:
        """Fetch, without waiting, what has arrived for these requests.

        One call of the grid for each, because one malformed reply fails its whole call, and replies are
        handed out only once.
        """
        arrivals: list[Arrival] = []
        with suppress(Exception):  # so that Flower frees the replies
            done = self._pull(self._stays) if self._stays else ()
            self._stays = [*({*self._stays} - {each.metadata.reply_to_message_id for each in done})]
        for identifier in identifiers:
            try:
                arrivals += map(_arrival, self._pull([identifier]))
            except Exception:  # of any kind: it depends on what the sender has put together
                arrivals.append(Arrival(identifier, 0, None, "its reply is not a Flower message"))
        return arrivals

    def _pull(self, identifiers: list[str]) -> Iterable[Message]:
        """Return the replies of one node, or of the stays, that are here."""
        node = self._nodes.get(first := identifiers[0])
        pulled, pull = self._pulls.get(node, (first, None))
        if pull is None or (pulled != first and pull.done()):  # its reply came too late
            pulled, pull = first, self._threads.submit(self._grid.pull_messages, identifiers)
            self._pulls[node] = first, pull
            wait([pull], _PULL_SECONDS)
        return self._pulls.pop(node)[1].result() if pulled == first and pull.done() else ()


def answered(message: Message, perform: Callable[[Record], Record]) -> Message:
    """Reply to a server's message; a client app's whole work."""
    try:
        reply = perform(from_record_dict(message.content))
    except Exception as error:  # Flower would send its text
        reply = failed(None, Failure(type(error).__name__))
    return Message(to_record_dict(reply), reply_to=message)


def asked(address: str, request: Record) -> Record:
    """Return the reply of a site's worker, which listens at a Unix socket, to a request.

    A worker that ends before its reply is started again by `launch.flower client`, and asked once more: a
    step that it has finished is not computed again.
    """
    for _ in range(2):
        with _connected(address) as worker:
            try:
                worker.send_bytes(records.to_bytes(request))
                return records.from_bytes(worker.recv_bytes())
            except (EOFError, OSError):
                continue
    text = "the process that computes at this site ended twice; it may need more memory"
    return failed(None, Failure("WorkerEnded", text=text))


def _connected(address: str) -> Connection:
    """Connect to the worker, which may still be starting."""
    until = time.monotonic() + _WORKER_SECONDS
    while True:
        try:
            return Client(address, "AF_UNIX")
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def to_record_dict(record: Record) -> RecordDict:
    """Convert a record to Flower's."""
    head, payload = records.encode(record)
    content = RecordDict({_HEAD: ConfigRecord({_HEAD: head})})
    if payload:
        array = Array("uint8", (len(payload),), _BYTES, payload)
        content[_PAYLOAD] = ArrayRecord({_PAYLOAD: array})
    return content


def from_record_dict(content: RecordDict) -> Record:
    """Convert Flower's record back."""
    config, arrays = content.get(_HEAD), content.get(_PAYLOAD, ArrayRecord())
    head = config.get(_HEAD) if isinstance(config, ConfigRecord) else None
    if not isinstance(head, bytes) or not isinstance(arrays, ArrayRecord):
        raise BadMessage("the message has no head, or another record in place of a payload")
    array = arrays.get(_PAYLOAD)
    if array is not None and array.stype != _BYTES:
        raise BadMessage("the payload of the message is not bytes")
    return records.decode(head, b"" if array is None else array.data)


def _arrival(message: Message) -> Arrival:
    metadata = message.metadata
    if message.has_error():
        code = message.error.code  # its reason may hold what a client's exception says
        problem = f"{_PROBLEMS.get(code, 'the network reports an unknown error')} (code {code})"
        return Arrival(metadata.reply_to_message_id, 0, None, problem)
    try:
        record = from_record_dict(message.content)
    except BadMessage as error:
        return Arrival(metadata.reply_to_message_id, 0, None, str(error))
    return Arrival(metadata.reply_to_message_id, metadata.src_node_id, record)
