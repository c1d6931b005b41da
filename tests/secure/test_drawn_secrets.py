"""Every secret that a party draws: its size, and that each drawn byte counts.

`SECRETS` has a line for each place in `jaxfed.secure` that draws: the bytes asked for, and a function from a
source of bytes to all that the party sends or keeps. One bit is changed in every drawn byte (of long draws,
in a sample of them): the outcome must change, too. So a secret that is drawn short, or of which a part is
thrown away, fails here.
"""

from __future__ import annotations

import inspect
import re
import secrets
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from paillier_pair import KEY, codes_of
from recording_network import Network
from row_sums_parties import matrices, parties

import jaxfed
from jaxfed.privacy import randomized_response
from jaxfed.secure.hamming import paillier_packed, transfer
from jaxfed.secure.primitives import paillier, shamir
from jaxfed.secure.primitives.oblivious_transfer import TransferReceiver, transfer_keys
from jaxfed.secure.primitives.paillier import HIDING_BITS
from jaxfed.secure.row_sums import double_masks
from jaxfed.secure.row_sums.signed_survivors import Signer
from jaxfed.secure.session import exchanges
from jaxfed.secure.session.channel import Channel
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.key_agreement import KeyPair
from jaxfed.secure.session.neighborhoods import Promise
from jaxfed.secure.session.remote_calls import SETUP, Call, CallMessage
from jaxfed.secure.session.remote_session import RemoteSession
from jaxfed.secure.session.replayed_party import ReplayedParty
from jaxfed.secure.session.setup import ServerSetup, agree

MANY = 64  # bytes of a draw up to which each is tried
FLIPPED = 0x18  # bits that no format forces: X25519 sets the lowest three and the highest two


class Tape:
    """A source of bytes that repeats itself, keeps what it gave, and changes one byte on request."""

    def __init__(self, change: tuple[int, int] | None = None, seed: int = 7) -> None:
        self.given: list[bytes] = []
        self._change, self._bytes = change, np.random.default_rng(seed).bytes

    def __call__(self, count: int) -> bytes:
        drawn = bytearray(self._bytes(count))
        if self._change and self._change[0] == len(self.given):
            drawn[self._change[1]] ^= FLIPPED
        self.given.append(bytes(drawn))
        return self.given[-1]

    @property
    def sizes(self) -> list[int]:
        return [len(drawn) for drawn in self.given]


def key_pair(source):
    pair = KeyPair(source)
    return pair.public, pair.agreed(KeyPair(lambda count: b"p" * count).public)


def server_setup(source):
    channel = Channel()
    ServerSetup(channel, random_bytes=source).invite(0)
    return channel.receive(SERVER, 0)


def session(source):
    """The server's number and key, a key a client, and the group secret of the first."""
    ends, _ = agree([0, 1], Channel(), source)
    return [ends[0].group_seed("x"), ends[0].pair_seed(1, "x"), ends[SERVER].roster_hash]


def remote_session(source):
    """The invitations of a session over a network."""
    sent = {}

    def carry(step, letters):
        sent.update(letters)
        raise ConnectionError

    with pytest.raises(ConnectionError):
        RemoteSession(2, carry, {}, random_bytes=source)
    return sent


def seed_of_a_party(source):
    """What a client keeps of the first exchange, and its key."""
    channel = Channel()
    ServerSetup(channel, random_bytes=Tape(seed=1)).invite(0)
    call = Call(1, SETUP, {}, "join", [])
    letter = CallMessage([call], [channel.receive(SERVER, 0)]).to_bytes()
    return exchanges.answered(
        "join",
        exchanges.NO_SESSION,
        letter,
        lambda seed: ReplayedParty(0, seed, {}),
        random_bytes=source,
    )


def base_receiver(source):
    return TransferReceiver([0, 1, 1], b"context", random_bytes=source).request


def base_sender(source):
    request = TransferReceiver([0], b"context", random_bytes=Tape(seed=1)).request
    return transfer_keys(request, 1, b"context", random_bytes=source)


def hamming_first(source):
    network = Network()
    transfer.First(network.endpoint(0), 1, codes_of(1, 1), 0, random_bytes=source).request()
    return network.log


def shares(source):
    return shamir.split(b"secret", 5, 4, random_bytes=source)


def resilient_client(source, protocol="resilient"):
    """c_j and b_j, the key of signatures, and the shares of both."""
    network = Network()
    values, rows = matrices([2, 1, 2])
    clients, server = parties(protocol, network, values, rows)
    clients[0]._random_bytes = source
    server.start(0, [0, 1, 2])
    for j, client in clients.items():
        server.invite(j)
        client.announce()
        server.receive_key(j)
    for j, client in clients.items():
        server.send_keys(j)
        client.share_secrets()
    return [m.payload for m in network.log if m.sender == 0]


def signed_client(source):
    return resilient_client(source, "signed")


def sparse_client(source):
    """c_j and b_j, and their shares for two neighbors."""
    network = Network()
    rows = {SERVER: slice(0, 1), 0: slice(1, 1)}
    promise = Promise(0.0, 0.0, 1, 1)
    client = double_masks.Client(
        network.endpoint(0), np.ones((1, 1)), rows, promise=promise, random_bytes=source
    )
    server = network.endpoint(SERVER)
    server.send(0, "start", double_masks.sparse_start_message(0, 5, 2, [1, 2]))
    client.announce()
    keys = [(j, KeyPair(Tape(seed=j)).public) for j in (1, 2)]
    server.send(0, "mask_keys", double_masks.packed_neighbors_keys(keys))
    client.share_secrets()
    return [m.payload for m in network.log if m.sender == 0]


def encrypted_points(source):
    points = paillier_packed.EncryptedPoints(codes_of(1, 1), KEY, random_bytes=source)
    return points.message(0)


def paillier_second(source):
    """The seed of all masks, and what hides each answer."""
    network, points = (
        Network(),
        paillier_packed.EncryptedPoints(codes_of(1, 1), KEY, random_bytes=Tape(seed=1)),
    )
    first = paillier_packed.First(network.endpoint(0), 1, points)
    second = paillier_packed.Second(
        network.endpoint(1), 0, codes_of(2, 1), 1, key_bits=KEY.public.bits, random_bytes=source
    )
    first.send_key()
    second.receive_key()
    first.send_points(0)
    second.receive_points(0)
    second.answer(range(2))
    return [m.payload for m in network.log if m.sender == 1]


def randomized(source):
    """Words of randomized response, from the operating system's generator."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(randomized_response, "secrets", SimpleNamespace(token_bytes=source))
        return np.asarray(randomized_response.from_system(range(3), 5)).tolist()


HALF = KEY.public.bits // 16  # bytes of half the modulus
SECRETS = {
    "private key": (key_pair, [32]),
    "session's number, server's key": (server_setup, [16, 32]),
    "keys of a session": (session, [16, 32, 32, 32, 32]),
    "session over a network": (remote_session, [16, 32]),
    "seed of a client's session over a network": (seed_of_a_party, [32]),
    "base transfers, receiver": (base_receiver, [64] * 3),
    "base transfers, sender": (base_sender, [64]),
    "s of extended transfers, distances": (hamming_first, [16] + [64] * 128),
    "Shamir's coefficients": (shares, [66] * 3),
    "double masks": (resilient_client, [32, 32] + [66] * 2),
    "double masks, signed": (signed_client, [32, 32, 32] + [66] * 4),
    "double masks among neighbors": (sparse_client, [32, 32] + [66] * 2),
    "key of signatures": (lambda source: Signer(source).public, [32]),
    "exponents of encryptions": (encrypted_points, [32 * HALF]),
    "masks of answers, and what hides them": (
        paillier_second,
        [32, 2 * (HALF + HIDING_BITS // 8)],
    ),
    "randomized response": (randomized, [4 * 3 * 5]),
}
KEY_OF_SERVER = {1}  # draws: after its number
SHOWN_LATER = {"server_setup": KEY_OF_SERVER, "remote_session": KEY_OF_SERVER}


def sampled(sizes, unseen):
    """(draw, byte): all bytes of short draws, of long or many ones a sample with both ends."""
    draws, repeated = [number for number in range(len(sizes)) if number not in unseen], []
    if len(draws) > 8:  # the same again and again, after those of the beginning
        draws, repeated = draws[:3], [draws[3], draws[len(draws) // 2], *draws[-2:]]
    for draw in [*draws, *repeated]:
        size = sizes[draw]
        number = 5 if draw in repeated else size if size <= MANY else 16
        yield from ((draw, int(byte)) for byte in np.linspace(0, size - 1, number).astype(int))


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.sample(6)
def test_every_secret_has_its_size_and_each_byte_of_it_counts(secret):
    outcome, sizes = SECRETS[secret]
    tape = Tape()
    expected = outcome(tape)
    assert tape.sizes == sizes
    assert outcome(Tape()) == expected  # nothing else is drawn
    unread = []
    for draw, byte in sampled(sizes, SHOWN_LATER.get(outcome.__name__, ())):
        changed = Tape((draw, byte))
        if outcome(changed) == expected:
            unread.append((draw, byte))
    # Shamir's field has 521 bits: of its 66 bytes the first has one bit that counts, which is not flipped.
    assert [(draw, byte) for draw, byte in unread if not (sizes[draw] == 66 and byte == 0)] == []


def test_the_table_names_every_place_that_draws():
    """A new source of randomness in `jaxfed.secure` must be given a line above."""
    root = Path(jaxfed.__file__).parent / "secure"
    draws = {
        str(file.relative_to(root))
        for file in root.rglob("*.py")
        if re.search(r"\bsecrets\.[a-z]|random_bytes\(", file.read_text())
    }
    assert draws == {
        "hamming/paillier_packed.py",
        "hamming/transfer.py",
        "primitives/oblivious_transfer.py",
        "primitives/paillier.py",
        "primitives/shamir.py",
        "row_sums/double_masks.py",
        "row_sums/signed_survivors.py",
        "session/key_agreement.py",
        "session/neighborhoods.py",  # the server's graph, which is no secret
        "session/exchanges.py",
        "session/remote_session.py",
        "session/parties.py",
        "session/setup.py",
    }


def test_sources_are_the_operating_systems():
    """Unless a test gives another: every default in `jaxfed.secure` is `secrets`' own function."""
    for function in (
        KeyPair.__init__,
        ServerSetup.__init__,
        agree,
        TransferReceiver.__init__,
        transfer_keys,
        transfer.First.__init__,
        transfer.Second.__init__,
        shamir.split,
        Signer.__init__,
        paillier.generate_key,
        paillier_packed.EncryptedPoints.__init__,
        paillier_packed.Second.__init__,
    ):
        assert inspect.signature(function).parameters["random_bytes"].default is secrets.token_bytes


# --- known answers at full size ------------------------------------------------------------------
