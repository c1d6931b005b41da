"""Sessions whose clients are played by replay: a fresh object for each phase, from a seed and frames alone.

What a network does whose clients keep nothing but 32 random bytes and what they received.
"""

from collections import defaultdict
from typing import Any, NamedTuple

from jaxfed.errors import ProtocolError
from jaxfed.federation.departures import DroppedOut
from jaxfed.secure.primitives.prg import derived_seed, replayable_bytes
from jaxfed.secure.session import framing
from jaxfed.secure.session.channel import Channel
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.parties import Session
from jaxfed.secure.session.setup import ClientSetup


def seed_of(party):
    return derived_seed(bytes(32), f"party {party}")


class Recorded(Channel):
    """All parties' channel in one process, with the frames of every route."""

    def __init__(self, presence=None):
        super().__init__(presence)
        self.frames = defaultdict(list)

    def send(self, message):
        header = framing.parsed(message).header
        self.frames[header.sender, header.receiver].append(bytes(message))
        super().send(message)


class Seeded(Session):
    """All parties in this process, each with a source of randomness of its own."""

    def __init__(self, num_clients, presence=None):
        self._sources = {
            party: replayable_bytes(seed_of(party)) for party in range(SERVER, num_clients)
        }
        super().__init__(num_clients, presence=presence)

    def source(self, party):
        return self._sources[party]

    def _connected(self, presence):
        return Recorded(presence)


class Call(NamedTuple):
    """One step of one of a client's objects: `number` says which."""

    number: int
    constructor: Any
    own: Any
    plan: dict
    step: str
    arguments: tuple


class Player:
    """A client's process: what there is of it between two messages is nothing."""

    def __init__(self, address):
        self.address, self.channel = address, Channel.own(address)
        self.random_bytes = replayable_bytes(seed_of(address))
        self.objects, self.endpoint = {}, None

    def play(self, frames, calls):
        self.channel.feed(frames)
        results = [self.called(call) for call in calls]
        return [bytes(frame) for frame in self.channel.emptied()], results

    def called(self, call):
        if call.number not in self.objects:
            self.objects[call.number] = (
                ClientSetup(self.address, self.channel, random_bytes=self.random_bytes)
                if call.constructor is None
                else call.constructor(
                    self.endpoint, call.own, random_bytes=self.random_bytes, **call.plan
                )
            )
        result = getattr(self.objects[call.number], call.step)(*call.arguments)
        if call.step == "finished":
            self.endpoint = result
        if hasattr(result, "__next__"):
            return list(result)
        return result


class Remote:
    """One client as the network sees it: all that it received, and what it answered."""

    def __init__(self, address):
        self.address, self.received, self.sent, self.results = address, [], [], []

    def answer(self, frames, calls):
        player = Player(self.address)
        for past, sent in zip(self.received, self.sent, strict=True):
            assert player.play(*past)[0] == sent  # the same frames, byte for byte
        sent, results = player.play(frames, calls)
        self.received.append((frames, calls))
        self.sent.append(sent)
        self.results += [(call.step, one) for call, one in zip(calls, results, strict=True)]
        return sent


class Replayed(Session):
    """A session over a network of replayed clients.

    Args:
        num_clients: how many.
        fault: (client, number of the exchange, frames) -> frames that arrive, None for no answer.
        private: each client's input, which the server does not have.
    """

    def __init__(self, num_clients, fault=lambda client, number, frames: frames, private=None):
        self.private = private
        self.remotes = {client: Remote(client) for client in range(num_clients)}
        self.pending, self.exchanges, self.fault = defaultdict(list), 0, fault
        self._source, self.number = replayable_bytes(seed_of(SERVER)), 0
        super().__init__(num_clients)

    def source(self, party):
        assert party == SERVER
        return self._source

    def _connected(self, presence):
        return Channel.own(SERVER, presence)

    def _joining(self, clients):
        self.pending.clear()
        return self.parties(None, dict.fromkeys(clients), clients)

    def parties(self, constructor, inputs, clients, /, **plan):
        self.number += 1
        return Exchanged(self, self.number, constructor, inputs, clients, plan)

    def exchange(self):
        """One message to each client with something to do, and its answer."""
        present = self.presence.staying(sorted(self.pending))
        waiting = {client: list(map(bytes, self.channel.emptied(client))) for client in present}
        for client, frames in waiting.items():
            try:
                sent = self.remotes[client].answer(frames, self.pending[client])
            except ProtocolError:
                sent = None
            if sent is not None:
                sent = self.fault(client, self.exchanges, sent)
            if sent is None:
                self.presence.lose(client)
                continue
            try:
                with self.presence.losing(client):
                    self.channel.feed(sent, sender=client)
            except DroppedOut:
                continue
        self.pending.clear()
        self.exchanges += 1

    def results(self, step):
        """What the clients that have stayed have at the end."""
        self.exchange()
        return {
            client: [result for name, result in self.remotes[client].results if name == step][-1]
            for client in self.clients
        }


class Exchanged:
    """The clients of one protocol run, behind the session's network."""

    def __init__(self, network, number, constructor, inputs, clients, plan):
        self.network, self.clients, self.presence = network, sorted(clients), network.presence
        self.call = Call(number, constructor, None, plan, "", ())
        self.inputs = inputs

    def ask(self, client, step, arguments):
        private = self.network.private
        own = self.inputs[client] if private is None else private[client]
        call = self.call._replace(own=own, step=step, arguments=tuple(arguments))
        self.network.pending[client].append(call)

    def __call__(
        self, step, clients, *, told=None, tell=None, take=None, needs_all=False, quiet=False
    ):
        present = self.presence.staying(clients)
        for client in present:
            if tell:
                tell(client)
            self.ask(client, step, told[client] if told else ())
        if quiet:
            return dict.fromkeys(present)
        self.network.exchange()
        answered = {}
        for client in self.presence.staying(present):
            try:
                with self.presence.losing(client):
                    if take:
                        take(client)
                answered[client] = None
            except DroppedOut:
                continue
        return answered

    def stream(self, step, told):
        for client, calls in told.items():
            for arguments in calls:
                self.ask(client, step, arguments)

        def messages(client, *arguments):
            del arguments
            if self.network.pending:
                self.network.exchange()
            if client in self.presence.gone:
                raise DroppedOut(client)
            while True:
                yield

        return messages
