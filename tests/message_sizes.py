"""Payload bytes by kind of message, by the tables of the protocols' docstrings."""

from jaxfed.secure import vote_sums
from jaxfed.secure.hamming import transfer
from jaxfed.secure.hamming.masked import BLOCK_POINTS
from jaxfed.secure.hamming.pair import ranges
from jaxfed.secure.primitives.packing import Packing
from jaxfed.secure.primitives.ring import packed_size, ring_bits

ENTRY, KEY, SHARE = 8, 32, 66


def single_masks(num_rows, num_classes):
    """One round of `row_sums.masked` among clients with n_j rows each."""
    p, total = len(num_rows), sum(num_rows)
    return {
        "start": p * (8 + 4 * p),
        "upload": ENTRY * (p - 1) * total * num_classes,
        "sums": ENTRY * total * num_classes,
    }


def double_masks(num_rows, num_classes, survivors, *, signed=False):
    """One round of `row_sums.double_masks` in which the clients numbered `survivors` stay to the end."""
    p, s, total = len(num_rows), len(survivors), sum(num_rows)
    entry = ENTRY * num_classes
    signatures = {"signature": 64 * s, "signatures": 68 * s * s}
    return {
        "start": p * (12 + 4 * p),
        "mask_key": p * KEY,
        "mask_keys": p * p * KEY,
        "secrets": p * (p - 1) * (2 * SHARE + signed * 2 * KEY),
        "upload": entry * sum(total - num_rows[client] for client in survivors),
        "survivors": s * (8 + 4 * s),
        **(signatures if signed else {}),
        "shares": s * p * SHARE,
        "sums": entry * sum(num_rows[client] for client in survivors),
    }


def of_neighbor(size, num_rows=0, others_rows=1, num_classes=1):
    """What one of many clients sends and receives: k neighbors, n_j rows, n' - n_j of others."""
    return {
        "start": 16 + 4 * size,
        "mask_key": KEY,
        "mask_keys": (4 + KEY) * size,
        "secrets": 4 * SHARE * size,  # to each neighbor and from it
        "partners": 8 + 4 * size,
        "upload": ENTRY * others_rows * num_classes,
        "survivors": 8 + 4 * size,
        "shares": SHARE * size,
        "sums": ENTRY * num_rows * num_classes,
    }


def class_means(num_clients, num_classes, dim):
    """`class_means` with single masks."""
    return {
        "start": 2 * num_clients * (8 + 4 * num_clients),
        "upload": num_clients * ENTRY * num_classes * (dim + 2),
        "classes": num_clients * num_classes,
        "sums": 0,
    }


def votes(num_clients, num_examples, num_classes, *, is_resilient=False):
    """`vote_sums`."""
    elements = vote_sums.num_elements(num_examples * num_classes, num_clients)
    rows = [0] * num_clients
    one = double_masks(rows, 1, range(num_clients)) if is_resilient else single_masks(rows, 1)
    return {**one, "upload": ENTRY * num_clients * elements}


def own_distances(num_points, num_bits, block_points=BLOCK_POINTS):
    """`own` messages of one client."""
    blocks = list(ranges(num_points, block_points))
    counts = [
        len(rows) * (len(rows) - 1) // 2 if rows == columns else len(rows) * len(columns)
        for i, rows in enumerate(blocks)
        for columns in blocks[i:]
    ]
    return sum(packed_size(count, ring_bits(num_bits)) for count in counts)


def hidden_points(num_points, num_bits):
    """`points` messages of one client of `masked`."""
    blocks = ranges(num_points, BLOCK_POINTS)
    return sum(packed_size(len(own) * num_bits, ring_bits(num_bits)) for own in blocks)


def hidden_shares(num_first, num_second, num_bits):
    """`shares` messages of both clients of `masked`."""
    return 2 * sum(
        packed_size(len(rows) * len(columns), ring_bits(num_bits))
        for rows in ranges(num_first, BLOCK_POINTS)
        for columns in ranges(num_second, BLOCK_POINTS)
    )


def transfers(num_points, num_vectors, num_bits):
    """`ot` between two clients."""
    if not (num_points and num_vectors):
        return {}
    pairs = num_points * num_vectors
    return {
        "request": 128 * 32,
        "response": 32,
        "correction": 16 * num_vectors * num_bits,
        "payload": transfer.payload_size(num_vectors, num_bits, num_points),
        "first_sums": 2 * pairs,
        "second_sums": 2 * pairs,
    }


def encryptions(num_points, num_vectors, num_bits, key_bits=2048):
    """`phe` between two clients."""
    if not (num_points and num_vectors):
        return {}
    num_blocks = -(-num_points // Packing(num_bits, key_bits).slots)
    return {
        "key": 3 * key_bits // 8,
        "modulus": key_bits // 8,
        "mask_seed": 32,
        "points": num_blocks * num_bits * key_bits // 4,
        "answers": num_blocks * num_vectors * key_bits // 4,
        "opened": num_blocks * num_vectors * key_bits // 8,
    }
