"""Sums of clients' votes, without revealing those of a single client (FedCT's consensus under masks).

    marks      client j: B^(j) in {0, 1}, [U, C], a vote for c on example u as B_uc = 1
    sums       H = sum_j B^(j) over all clients that stay       masked sums, the server reads them

Masked sums are those of `row_sums` on rows that the server owns. Votes are integers, and H is exact. It needs
the modulus K + 1 for K clients, so S of its entries are the digits of an element of Z_{2^64},

    V = sum_i v_i (K + 1)^i,     0 <= v_i <= K,     S the largest with (K + 1)^S <= 2^64.

Adding elements adds digits without carries: S = 24 for K = 5, 9 for K = 100, 6 for K = 1000. A client uploads
ceil(U C / S) elements of 8 bytes. In the clear, without abstaining, its labels are U ceil(log2 C) / 8 bytes.

Masks do not hide what H itself reveals: if all clients agree, which after some rounds of FedCT they do nearly
everywhere, H_uc = K is the label of every client. With two clients, each can compute the other's vote from H
and its own. Clients see of H only what the server makes of it.

Marks are anything in {0, 1}: one-hot labels, rows of zeros for none, or the output of a randomizing mechanism
(`jaxfed.privacy.xor_mechanism`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxfed.errors import ProtocolError, UsageError
from jaxfed.secure.row_sums import server_sums
from jaxfed.secure.session.endpoint import Endpoint
from jaxfed.secure.session.parties import Session


def client(
    endpoint: Endpoint, marks: np.ndarray, *, clients: Sequence[int] | int, **options: Any
) -> server_sums.RowClient:
    """One client; `marks` as in `vote_histogram`, other arguments as `server_sums.client`."""
    if not np.isin(marks, (0, 1)).all():
        raise UsageError(f"votes of client {endpoint.address}: use marks 0 and 1")
    # The number of clients that may take part, which does not change if some leave.
    number = clients if isinstance(clients, int) else len(clients)
    packed = pack_marks(marks, number)[:, None]
    return server_sums.client(endpoint, packed, clients=clients, **options)


def vote_histogram(
    session: Session,
    marks: Mapping[int, np.ndarray],
    *,
    is_resilient: bool = False,
    shape: tuple[int, int] | None = None,
) -> np.ndarray | None:
    """H, int64 of the marks' shape, over all clients that stay (`session.contributors`), at the server.

    Args:
        session: the parties.
        marks: marks by address, for clients of the session: bool, or 0 and 1, [U, C].
        is_resilient: use double masks, in a sparse session among neighbors; dropouts then need no second
            upload.
        shape: (U, C); that of the first marks if left out.

    Returns:
        H; None with fewer than two clients, or if all have left at the end.

    Raises:
        ProtocolError: an unexpected message at a client, or a sum that cannot come from votes.
        UsageError: marks other than 0 and 1; nothing is sent.

    Cost: 8 ceil(U C / S) bytes a client, and the messages for its masks.
    """
    clients = [client for client in session.clients if client in marks]
    if not clients:
        return None
    shape = marks[clients[0]].shape if shape is None else shape
    size, number = int(np.prod(shape)), len(clients)
    sums = server_sums.ring_sums(
        session,
        marks,
        is_resilient=is_resilient,
        shape=(num_elements(size, number), 1),
        constructor=client,
    )
    if sums is None:
        return None
    return unpack_counts(sums[:, 0], size, number).reshape(shape)


_RING = 1 << 64


def slots(num_terms: int) -> int:
    """S for sums of `num_terms` = K marks."""
    if not 1 <= num_terms < _RING >> 1:
        raise UsageError(f"num_terms={num_terms}: use 1 to 2^63 - 1")
    number, power = 0, num_terms + 1
    while power <= _RING:
        number, power = number + 1, power * (num_terms + 1)
    return number


def num_elements(count: int, num_terms: int) -> int:
    """Number of elements that hold `count` counts."""
    return -(-count // slots(num_terms))


def pack_marks(marks: np.ndarray, num_terms: int) -> np.ndarray:
    """uint64 [`num_elements`] of marks 0 and 1, of any shape."""
    size = slots(num_terms)
    digits = np.zeros(num_elements(marks.size, num_terms) * size, np.uint64)
    digits[: marks.size] = marks.reshape(-1)
    powers = np.array([(num_terms + 1) ** slot for slot in range(size)], np.uint64)
    return digits.reshape(-1, size) @ powers


def unpack_counts(elements: np.ndarray, count: int, num_terms: int) -> np.ndarray:
    """The counts, int64 [count], of a sum of packed marks."""
    radix = num_terms + 1
    rest = elements.astype(np.uint64)
    digits = np.empty((len(elements), slots(num_terms)), np.int64)
    for slot in range(digits.shape[1]):
        digits[:, slot] = rest % np.uint64(radix)
        rest //= np.uint64(radix)
    flat = digits.reshape(-1)
    if rest.any() or flat[count:].any():
        raise ProtocolError("a sum of votes that no votes have")
    return flat[:count]
