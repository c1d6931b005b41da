"""What protocols' parts refuse: parameters out of range, and messages that nobody sends who follows them."""

from functools import partial

import numpy as np
import refusals

from jaxfed import xclp
from jaxfed.errors import ProtocolError
from jaxfed.secure import class_means, vote_sums
from jaxfed.secure import influence_columns as columns
from jaxfed.secure.hamming import matrix
from jaxfed.secure.primitives import oblivious_transfer, paillier, ring, shamir
from jaxfed.secure.primitives import oblivious_transfer as extension
from jaxfed.secure.primitives.packing import Packing
from jaxfed.secure.primitives.prg import Keystream
from jaxfed.secure.primitives.ring import FixedPoint
from jaxfed.secure.row_sums import double_masks
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.key_agreement import KeyPair
from jaxfed.secure.session.neighborhoods import Promise, neighborhood
from jaxfed.secure.session.parties import Session


def key(bits, **options):
    return lambda: paillier.generate_key(bits, **options)


def encoded(value):
    return lambda: FixedPoint(num_terms=3).encode(np.array([0.0, value]))


def votes_without_resilience():
    promise = Promise(0.0, 0.25, 4, 4)
    size = neighborhood(24, 0, promise).size
    marks = dict(enumerate(np.zeros((24, 7, 3), int)))
    session = Session(24, mask_partners=size, promise=promise)
    vote_sums.vote_histogram(session, marks, is_resilient=False)


MARKS = {0: np.eye(3, dtype=int), 1: 2 * np.eye(3, dtype=int)}
PARTNERS = (
    "too few, or odd, for 1000 clients, 5% colluding and 30% leaving at 2^-40 and 2^-30; use 76"
)
PARAMETERS = {
    "key_bits=8: too few for a distance of 256 bits": partial(Packing, 256, 8),
    "...use 2048 and 3072": key(1024),
    "...use 2048 and 3072  above": key(4096),
    "...even tests need multiples of 16": key(64, insecure=True),
    "...even tests need multiples of 16  odd": key(257, insecure=True),
    "xclp.key_bits=1024: use 2048 or 3072": partial(xclp.Parameters, 2, key_bits=1024),
    "...group_secret": partial(xclp.Parameters, 2, projection="group_secret"),
    "...num_bits=0": partial(ring.ring_bits, 0),
    "...num_bits=65536": partial(ring.ring_bits, 1 << 16),
    "...limit with 3 clients": encoded(np.nan),
    "...limit with 3 clients  inf": encoded(-np.inf),
    "...limit with 3 clients  above": encoded(2.0**23 / 3),
    "...limit with 3 clients  below": encoded(-(2.0**23) / 3),
    "...num_terms": partial(FixedPoint, 0, 40),
    "...fraction": partial(FixedPoint, 1, 63),
    "...fraction  below": partial(FixedPoint, 1, -1),
    "...threshold": partial(shamir.split, b"", 2, 3),
    "...64 bytes": partial(shamir.split, bytes(65), 2, 2),
    "mask_partners=8: too few, or odd, for 24 clients": partial(Session, 24, mask_partners=8),
    "...is_resilient=True": votes_without_resilience,
    f"mask_partners=74: {PARTNERS}": partial(neighborhood, 1000, 74),
    f"mask_partners=77: {PARTNERS}": partial(neighborhood, 1000, 77),
    "no graph of 50 clients withstands 50%": lambda: neighborhood(50, 0, Promise(0.5, 0.5)),
    "leaving=1.0: use shares from 0 to below 1": lambda: neighborhood(50, 0, Promise(0.1, 1.0)),
    "...num_clients=0": partial(Session, 0),
    "...num_terms=0": partial(vote_sums.slots, 0),
    "...client 1: use marks 0 and 1": lambda: vote_sums.vote_histogram(Session(2), MARKS),
}

SMALL_ORDER = [  # u-coordinates below 2^255 - 19 of points of an order that divides 8
    *(0, 1, 2**255 - 20),
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
]
NO_KEYS = [b"", bytes(31), b"\1" * 33, b"\xff" * 32]
NO_KEYS += [u.to_bytes(32, "little") for u in (2**255 - 19, 2**255 - 10, 2**255 + 9)]
OUTSIDE = [  # points of order 1, 2, 4, 8 on the curve of oblivious transfer, and none
    *(f"01{'00' * 31}", f"ec{'ff' * 30}7f", "00" * 32, "ff" * 32, "02" * 32),
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
]


def agreed(public):
    return lambda: KeyPair().agreed(public)


def receiver():
    return oblivious_transfer.TransferReceiver([0, 1], b"test")


def response(given):
    return lambda: receiver().keys(given)


def request(change):
    return lambda: oblivious_transfer.transfer_keys(change(receiver().request), 2, b"test")


def joined(point):
    return request(lambda sent: sent[:32] + point)


def extended(size):
    keys = [bytes(32)] * extension.NUM_BASE
    return lambda: extension.ExtensionSender(keys, [0] * extension.NUM_BASE).extend(bytes(size), 8)


def unpacked(change):
    return lambda: ring.unpack(change(ring.pack(np.arange(10), 13)), 10, 13)


def neighbors(*clients):
    start = double_masks.sparse_start_message(0, 9, 2, clients)
    return lambda: double_masks.parsed_sparse_start(start)


def ciphertexts(length):
    return lambda: paillier._from_bytes(bytes(length), 2, 4, "ciphertexts")


SHARES = shamir.split(b"secret", 4, 3)
HELD = {x + 1: share for x, share in enumerate(SHARES)}


def secret(held):
    return lambda: shamir.reconstruct(held, 3, 6)


def sent(kind, payload, receive, sender=0):
    """What is received of one message of client 0 to the server, or of the server to it."""

    def call():
        session = Session(1)
        session.endpoints[sender].send(SERVER if sender == 0 else 0, kind, payload)
        receive(session.endpoints[SERVER if sender == 0 else 0])

    return call


def positions(payload):
    return sent("positions", payload, lambda end: columns.received_positions(end, 0, 5))


def influence(payload):
    return sent(
        "influence_columns", payload, lambda end: columns.received_columns(end, (2, 2)), SERVER
    )


def distances(payload):
    return sent("own", payload, lambda end: matrix.receive_own(end, 0, range(2), range(2, 4), 32))


def counted(elements, count):
    return lambda: vote_sums.unpack_counts(elements, count, 5)


FIVE = vote_sums.pack_marks(np.ones(5, bool), 5)
PACKED = ring.packed_size(4, 6)
MESSAGES = {
    **{f"...small order  {u}": agreed(u.to_bytes(32, "little")) for u in SMALL_ORDER},
    **{f"...public key  {public.hex()}": agreed(public) for public in NO_KEYS},
    **{f"...subgroup  {point}": response(bytes.fromhex(point)) for point in OUTSIDE},
    **{f"...subgroup  in a request {point}": joined(bytes.fromhex(point)) for point in OUTSIDE},
    "...subgroup  nothing": response(b""),
    "...2 transfers need 64 bytes": request(lambda sent: b""),
    "...2 transfers need 64 bytes  short": request(lambda sent: sent[:-1]),
    "...2 transfers need 64 bytes  long": request(lambda sent: sent + bytes(32)),
    "...8 choices need 128 bytes": extended(127),
    "...8 choices need 128 bytes  long": extended(129),
    "...take 26 bytes": unpacked(lambda message: message[:-1]),
    "...take 26 bytes  long": unpacked(lambda message: message + b"\0"),
    "...padding": unpacked(lambda message: b"\xff" * 26),
    "neighbors [2, 1]: not in ascending order": neighbors(2, 1),
    "neighbors [1, 1]: not in ascending order": neighbors(1, 1),
    "...2 ciphertexts take 8 bytes, got 7": ciphertexts(7),
    "...2 ciphertexts take 8 bytes, got 9": ciphertexts(9),
    "...3 shares are needed, got 2": secret({1: SHARES[0], 2: SHARES[1]}),
    "...65 bytes": secret({**HELD, 2: SHARES[1][1:]}),
    "...field": secret({**HELD, 1: b"\xff" * 66}),
    "...do not belong": secret({**HELD, 1: SHARES[1]}),
    "...position": positions(b"\0" * 3),
    "...position  twice": positions(np.array([1, 1], "<u4").tobytes()),
    "...position  beyond": positions(np.array([0, 5], "<u4").tobytes()),
    "...columns": influence(b"\0" * 12),
    "...columns  nan": influence(np.array([1, np.nan, 0, 0], "<f4").tobytes()),
    "...3 bytes of 0 and 1": partial(class_means.parsed_classes, b"\x01", 3),
    "...3 bytes of 0 and 1  two": partial(class_means.parsed_classes, b"\x01\x02\x00", 3),
    "...take 12 bytes, got 0": distances(b""),
    "...take 12 bytes, got 13": distances(bytes(PACKED + 1)),
    "...padding  distances": distances(b"\xff" * PACKED),
    "...above 32": distances(ring.pack(np.full(4, 63), 6)),
    "...no votes have": counted(FIVE, 4),
    "...no votes have  many": counted(np.uint64([2**64 - 1]), 24),
}


STREAMS = {
    "...": partial(Keystream, b"k" * 16, start=0),
    "...  between blocks": partial(Keystream, b"k" * 32, start=8),
    "...  before": partial(Keystream, b"k" * 32, start=-16),
    "...exceeds 13 bits": lambda: ring.pack(np.array([1 << 13]), 13),
}

test_parameters = refusals.table(PARAMETERS)
test_messages = refusals.table(MESSAGES, ProtocolError)
test_streams = refusals.table(STREAMS, ValueError)
