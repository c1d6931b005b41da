"""Means of the clients' prototypes, class by class, of which nobody sees one client's.

    counts     n_k = sum_j [client j shows class k]                   masked sums, the server reads them
    classes    server -> each    which k have n_k >= t                C bytes
    sums       (s_k, n_k) = sum_j (c_jk, [j shows k]) over these k    masked sums, the server reads them
               c_k = s_k / n_k,   of the others 0 goes into the sum

Masked sums are those of `row_sums` on rows that the server owns: `masked` and `resilient` say what each
party sends, and what becomes of who leaves. A class that only one client shows has no mean, for its sum
would be that client's prototype: clients leave it out, once they know. What the server reads is n_k, and
s_k where it is over two clients or more; unless clients leave between the two sums, after which s_k may
be one's (docs/threat-model.md).

Numbers are fixed point (`jaxfed.secure.primitives.fixed_point`), f = 40: a mean differs from the exact
one by 2^-41 at most and float64's rounding; sums modulo 2^64 are exact. Coordinates reach 2^23 / p.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from jaxfed.secure.errors import ProtocolError
from jaxfed.secure.row_sums import masked
from jaxfed.secure.row_sums.server_sums import server_sums
from jaxfed.secure.session.endpoint import SERVER, DroppedOut
from jaxfed.secure.session.parties import Session


class Shown(NamedTuple):
    """One client's prototypes: centers real [C, D], and which there are, bool [C]."""

    center: np.ndarray
    is_there: np.ndarray


class Means(NamedTuple):
    """The means, float64 [C, D], zeros where there is none, and over how many clients they are, int [C]."""

    center: np.ndarray
    contributors: np.ndarray


def class_means(
    session: Session, shown: Mapping[int, Shown], *, least: int = 2, is_resilient: bool = False
) -> Means:
    """The means over all clients that stay, as the server gets them.

    Args:
        session: the parties.
        shown: by address, of clients of the session.
        least: t, clients that show a class for it to have a mean.
        is_resilient: with double masks, so that dropouts need no second upload (`row_sums.resilient`).

    Raises:
        ProtocolError: a message that does not belong where it arrives; there are no means then.
        UsageError: a coordinate beyond the fixed-point range.

    Cost: two sums, 8 C (D + 2) bytes a client, and what comes with their masks.
    """
    num_classes, dim = next(iter(shown.values())).center.shape
    means = np.zeros((num_classes, dim)), np.zeros(num_classes, int)
    own = {client: each.is_there[:, None] for client, each in shown.items()}
    counts = server_sums(session, own, is_resilient=is_resilient)
    if counts is None:
        return Means(*means)
    classes = _announced(session, own, _rounded(counts[:, 0]) >= least)
    own = {client: _summed(shown[client], is_summed) for client, is_summed in classes.items()}
    sums = server_sums(session, own, is_resilient=is_resilient)
    if sums is None:
        return Means(*means)
    count = _rounded(sums[:, -1])
    count = np.where(count >= least, count, 0)
    center = np.where(count[:, None] > 0, sums[:, :-1], 0) / np.maximum(count, 1)[:, None]
    return Means(center, count)


def message_bytes(num_clients: int, num_classes: int, dim: int) -> dict[str, int]:
    """Payload bytes by kind where nobody leaves and masks are `masked`'s; those of setup come with it."""
    ring = masked.ENTRY_BYTES * num_classes
    return {
        "start": 2 * num_clients * (8 + 4 * num_clients),
        "upload": num_clients * ring * (dim + 2),
        "classes": num_clients * num_classes,
        "sums": 0,
    }


def _summed(own: Shown, is_summed: np.ndarray) -> np.ndarray:
    """A client's contribution to the second sums, float64 [C, D + 1]."""
    counts = is_summed & own.is_there
    return np.column_stack([np.where(counts[:, None], own.center, 0), counts])


def _rounded(counts: np.ndarray) -> np.ndarray:
    return np.rint(counts).astype(int)


def _announced(
    session: Session, clients: Collection[int], is_summed: np.ndarray
) -> dict[int, np.ndarray]:
    """Which classes are summed, bool [C], as the server tells every client that is still there."""
    heard = {}
    for client in session.clients:
        if client not in clients:
            continue
        try:
            session.endpoints[SERVER].send(client, "classes", is_summed.tobytes())
            message = session.endpoints[client].receive(SERVER, "classes")
        except DroppedOut:
            continue
        heard[client] = parsed_classes(message, len(is_summed))
    return heard


def parsed_classes(message: bytes, num_classes: int) -> np.ndarray:
    """bool [C] off the wire.

    Raises:
        ProtocolError: it is none.
    """
    if len(message) != num_classes or not set(message) <= {0, 1}:
        raise ProtocolError(f"a message of classes has {num_classes} bytes of 0 and 1")
    return np.frombuffer(message, bool)
