"""Sums of clients' votes, without revealing those of a single client (FedCT's consensus under masks).

    marks      client j: B^(j) in {0, 1}, [U, C], a vote for c on example u as B_uc = 1
    sums       H = sum_j B^(j) over all clients that stay       masked sums, the server reads them

Masked sums are those of `row_sums` on rows that the server owns. Votes are integers, and H is exact. It needs
the modulus K + 1 for K clients, so S = floor(64 / log2(K + 1)) of its entries share an element of Z_{2^64}
(`jaxfed.secure.primitives.packed_counts`). A client uploads ceil(U C / S) elements of 8 bytes. In the clear,
without abstaining, its labels are U ceil(log2 C) / 8 bytes.

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

from jaxfed.errors import UsageError
from jaxfed.secure.primitives import packed_counts
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
    packed = packed_counts.pack(marks, number)[:, None]
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
        shape=(packed_counts.num_elements(size, number), 1),
        constructor=client,
    )
    if sums is None:
        return None
    return packed_counts.unpack(sums[:, 0], size, number).reshape(shape)
