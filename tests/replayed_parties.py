"""Sessions over letters whose clients are replayed: a new object for each letter, from its past alone.

The network of `jaxfed.secure.session.remote_session`, in one process: a client stores 32 bytes and the
letters that it has answered.
"""

from collections import defaultdict

from jaxfed.errors import ProtocolError
from jaxfed.secure.primitives.prg import derived_seed, replayable_bytes
from jaxfed.secure.session import framing, remote_calls
from jaxfed.secure.session.channel import Channel
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.parties import Session
from jaxfed.secure.session.remote_session import RemoteSession
from jaxfed.secure.session.replayed_party import ReplayedParty, Role


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


class Remote:
    """A client's process: its seed, the letters that it has answered, and the frames that it sent."""

    def __init__(self, address, roles, **options):
        self.letters, self.sent = [], []
        self._made = lambda: ReplayedParty(address, seed_of(address), roles, **options)

    def party(self):
        """The client as it is after its letters."""
        party = self._made()
        for letter, sent in zip(self.letters, self.sent, strict=True):
            assert remote_calls.parsed(party.play(letter)) == sent  # nothing is sealed in two ways
        return party

    def answer(self, letter):
        sent = remote_calls.parsed(self.party().play(letter))
        self.letters.append(letter)
        self.sent.append(sent)
        return sent


class Every:
    """All steps."""

    def __contains__(self, step):
        return True


class Replayed(RemoteSession):
    """A session over a network of replayed clients, which take every role that the server has for them.

    Args:
        num_clients: how many.
        fault: (client, number of the exchange, frames) -> frames that arrive, None for no answer.
        private: each client's input; the inputs of `parties` if left out.
        options: of `RemoteSession`.
    """

    def __init__(
        self, num_clients, fault=lambda client, number, frames: frames, private=None, **options
    ):
        self.private, self.fault, self.names, self.roles = private, fault, [], {}
        self.remotes = {
            client: Remote(client, self.roles, may_be_sparse=bool(options))
            for client in range(num_clients)
        }
        source = replayable_bytes(seed_of(SERVER))
        super().__init__(num_clients, self.carried, {}, random_bytes=source, **options)

    def parties(self, constructor, inputs, clients, /, **plan):
        own = inputs if self.private is None else self.private
        name = f"{constructor.__qualname__} {self._number + 1}"
        self.roles[name] = Role(
            constructor, lambda party: own[party.endpoint.address], Every(), frozenset(plan)
        )
        self._roles = {constructor: name}
        return super().parties(constructor, inputs, clients, **plan)

    def carried(self, name, sent):
        answers, number = {}, len(self.names)
        self.names.append(name)
        for client, letter in sent.items():
            try:
                frames = self.fault(client, number, self.remotes[client].answer(letter))
            except ProtocolError:
                continue
            if frames is not None:
                answers[client] = remote_calls.packed(frames)
        return answers

    def results(self, step):
        """What the clients that have stayed have at the end."""
        self.exchange(step)
        parties = {client: self.remotes[client].party() for client in self.clients}
        return {
            client: [own for (_, name), own in party.results.items() if name == step][-1]
            for client, party in parties.items()
        }
