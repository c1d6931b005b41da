"""Means of the clients' prototypes by class, without revealing those of a single client.

    counts     n_k = sum_j [client j has class k]                     masked sums, the server reads them
    classes    server -> each    the k with n_k >= t                  C bytes
    sums       (s_k, n_k) = sum_j (c_jk, [j has k]) over these k      masked sums, the server reads them
               c_k = s_k / n_k,   with 0 in the sums for all others

Masked sums are those of `row_sums.server_sums`, which handle dropouts. A class that only one client has
gets no mean, since its sum would be that client's prototype. Clients leave such a class out once they know
it. The server reads n_k, and s_k if it is a sum over two clients or more. Exception: if clients leave
between the two sums, s_k may be that of a single one (docs/threat-model.md).

Numbers are fixed point (`jaxfed.secure.primitives.ring`), f = 40: a mean differs from the exact one
by at most 2^-41 plus float64's rounding; sums modulo 2^64 are exact. Coordinates are limited to 2^23 / p.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxfed.errors import ProtocolError
from jaxfed.secure.row_sums.server_sums import RowClient, server_sums
from jaxfed.secure.row_sums.server_sums import client as client_of_sums
from jaxfed.secure.session.endpoint import SERVER, Endpoint
from jaxfed.secure.session.parties import Session
from jaxfed.secure.session.phases import Parties


class Shown(NamedTuple):
    """One client's prototypes: centers, real [C, D], and a mask of those that exist, bool [C]."""

    center: np.ndarray
    is_present: np.ndarray


class Means(NamedTuple):
    """The means, float64 [C, D], zeros where there is none, and their numbers of clients, int [C]."""

    center: np.ndarray
    contributors: np.ndarray


class Client:
    """A client of the second sums: it learns which classes are summed, then takes the steps of row sums.

    `options` are those of `jaxfed.secure.row_sums.server_sums.client`.
    """

    def __init__(self, endpoint: Endpoint, shown: Shown, **options: Any) -> None:
        self._endpoint, self._shown, self._options = endpoint, shown, options

    def hear_classes(self) -> None:
        """Receive the classes that are summed."""
        message = self._endpoint.receive(SERVER, "classes")
        counts = self._shown.is_present & parsed_classes(message, len(self._shown.center))
        centers_and_marks = np.column_stack(
            [np.where(counts[:, None], self._shown.center, 0), counts]
        )
        self._summing = client_of_sums(self._endpoint, centers_and_marks, **self._options)

    def __getattr__(self, step: str) -> Any:
        """A step of the row sums."""
        if step.startswith("_"):
            raise AttributeError(step)
        return getattr(self._summing, step)


def counted_client(endpoint: Endpoint, shown: Shown, **options: Any) -> RowClient:
    """A client of the first sums, [client j has class k]; arguments as `Client`."""
    return client_of_sums(endpoint, shown.is_present[:, None], **options)


def class_means(
    session: Session, shown: Mapping[int, Shown], *, least: int = 2, is_resilient: bool = False
) -> Means:
    """The means over all clients that stay, at the server.

    Args:
        session: the parties.
        shown: the prototypes by address, for clients of the session.
        least: t, the smallest number of clients with a class for it to have a mean.
        is_resilient: use double masks; dropouts then need no second upload.

    Raises:
        ProtocolError: an unexpected message at a client; there are no means then.
        UsageError: a coordinate beyond the fixed-point range.

    Cost: two sums, 8 C (D + 2) bytes a client, and the messages for their masks.
    """
    num_classes, dim = next(iter(shown.values())).center.shape
    nothing = Means(np.zeros((num_classes, dim)), np.zeros(num_classes, int))
    counts = server_sums(
        session,
        shown,
        is_resilient=is_resilient,
        shape=(num_classes, 1),
        constructor=counted_client,
    )
    if counts is None:
        return nothing
    server, message = session.endpoints[SERVER], (np.rint(counts[:, 0]) >= least).tobytes()

    def announced(parties: Parties) -> dict[int, None]:
        return parties(
            "hear_classes",
            parties.clients,
            tell=lambda client: server.send(client, "classes", message),
            quiet=True,
        )

    sums = server_sums(
        session,
        shown,
        is_resilient=is_resilient,
        shape=(num_classes, dim + 1),
        constructor=Client,
        before=announced,
    )
    if sums is None:
        return nothing
    count = np.rint(sums[:, -1]).astype(int)
    count = np.where(count >= least, count, 0)
    center = np.where(count[:, None] > 0, sums[:, :-1], 0) / np.maximum(count, 1)[:, None]
    return Means(center, count)


def parsed_classes(message: bytes, num_classes: int) -> np.ndarray:
    """Parse a message of classes to bool [C]."""
    if len(message) != num_classes or not set(message) <= {0, 1}:
        raise ProtocolError(f"a message of classes has {num_classes} bytes of 0 and 1")
    return np.frombuffer(message, bool)
