"""Lines 10 to 13 of Algorithm 1: every client's contribution Z^(j) = S_L^(j) Y_L^(j), in two ways.

S = (I - alpha W)^-1 (`jaxfed.kernels.conjugate_gradient`) is never formed. Conjugate gradients solve
either (I - alpha W) S_L^(j) = E_L^(j) for the columns of client j's labeled points, E_L^(j) being their unit
vectors, or (I - alpha W) Z = Y at once.

"columns", as in the paper: client j tells the server which of its points are labeled, receives their columns
of S and multiplies them with its labels. It sees how far its points reach everybody's.

"labels": client j receives no columns. The server receives Y and solves for Z: C right-hand sides instead of
one per label. This is the default and suits simulations; it needs `row_sums="plaintext"`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.errors import DroppedOut
from jaxfed.kernels.conjugate_gradient import PropagationMatrix
from jaxfed.kernels.devices import padded_to
from jaxfed.xclp.steps.propagation_matrix import SolverAccuracy, solved

if TYPE_CHECKING:
    from jaxfed.secure.session.endpoint import Endpoint
    from jaxfed.secure.session.parties import Session
    from jaxfed.secure.session.phases import Parties

EVERYBODY = -1  # key of the sum of all clients' contributions
COLUMN_BLOCK = 256  # columns of S solved for at once: n x 256 floats at a time

Labels = Mapping[int, np.ndarray]  # every client's Y^(j), float32 [n_j, C], zero or one-hot rows
RowsOf = Mapping[int, slice]  # every client's R_j


def shared_width(num_columns: int) -> int:
    """Padded number of columns: the next power of two, 16 or more.

    Zero columns are solved at once, and few widths mean few compilations.
    """
    return max(16, 1 << (num_columns - 1).bit_length())


class Contributions(NamedTuple):
    """The summands of line 14.

    Fields:
        values: Z^(j) of every client that has stayed, float32 [n, C], or `EVERYBODY`'s.
        accuracy: of the linear systems.
    """

    values: dict[int, np.ndarray]
    accuracy: SolverAccuracy


class InTheClear:
    """Multiplication of the server's columns of S with one client's labels, Y^(j); `num_points` = n."""

    def __init__(self, labels: np.ndarray, num_points: int) -> None:
        self._labels, self._num_points = labels, num_points
        self._sum: jax.Array | None = None

    def positions(self) -> np.ndarray:
        """The client's labeled points, in ascending order."""
        return np.flatnonzero(self._labels.any(axis=1))

    def multiply(self, columns: jax.Array, block: np.ndarray) -> None:
        """Line 13, CS, for the points `block`: columns [n or more, len(block) or more], zeros beyond."""
        y = np.zeros((columns.shape[1], self._labels.shape[1]), np.float32)
        y[: len(block)] = self._labels[block]
        product = jnp.matmul(columns, jnp.asarray(y), precision=jax.lax.Precision.HIGHEST)
        self._sum = product if self._sum is None else self._sum + product

    def finished(self) -> np.ndarray:
        """Z^(j)."""
        if self._sum is None:
            return np.zeros((self._num_points, self._labels.shape[1]), np.float32)
        return np.asarray(self._sum)[: self._num_points]


class ColumnsClient(InTheClear):
    """A client of a session: it sends positions, receives columns, and multiplies; it draws nothing.

    Attributes:
        reach: float64 [n], sum of the absolute values of each point's row of the columns: a bound of Z^(j)
            that does not depend on the labels.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        labels: np.ndarray,
        *,
        random_bytes: Callable[[int], bytes],
        num_points: int,
    ) -> None:
        del random_bytes
        super().__init__(labels, num_points)
        self._endpoint, self.reach = endpoint, np.zeros(num_points)

    def send_positions(self) -> None:
        """Send the labeled points."""
        from jaxfed.secure import influence_columns

        influence_columns.send_positions(self._endpoint, self.positions())

    def receive_columns(self, num_rows: int, width: int, start: int) -> None:
        """Lines 12, CS, and 13, CS, for some of the columns, from those of labeled point `start` on.

        They are padded to `num_rows` and `width`, as many as solved for: one program for all.
        """
        from jaxfed.secure import influence_columns

        block = self.positions()[start : start + COLUMN_BLOCK]
        sent = influence_columns.received_columns(self._endpoint, (self._num_points, len(block)))
        self.reach += np.abs(sent).sum(axis=1, dtype=np.float64)
        received = np.zeros((num_rows, width), np.float32)
        received[: self._num_points, : len(block)] = sent
        self.multiply(jnp.asarray(received), block)


class Sent:
    """Multiplication at a client of a session, a `ColumnsClient` of `parties`, as the server runs it."""

    def __init__(
        self,
        parties: Parties,
        endpoint: Endpoint,
        client: int,
        positions: np.ndarray,
        num_points: int,
    ) -> None:
        self._parties, self._endpoint, self._client = parties, endpoint, client
        self._positions, self._num_points, self._num_sent = positions, num_points, 0

    def positions(self) -> np.ndarray:
        """The labeled points."""
        return self._positions

    def multiply(self, columns: jax.Array, block: np.ndarray) -> None:
        """Send the next columns."""
        from jaxfed.secure import influence_columns

        def tell(client: int) -> None:
            sent = np.asarray(columns)[: self._num_points, : len(block)]
            influence_columns.send_columns(self._endpoint, client, sent)

        self._take("receive_columns", (*columns.shape, self._num_sent), tell)
        self._num_sent += len(block)

    def finished(self) -> Any:
        """Z^(j); None if the client is in another process."""
        return self._take("finished", ())

    def _take(
        self, step: str, arguments: tuple[int, ...], tell: Callable[[int], None] | None = None
    ) -> Any:
        answered = self._parties(
            step, [self._client], arguments={self._client: arguments}, tell=tell, quiet=True
        )
        if self._client not in answered:
            raise DroppedOut(self._client)
        return answered[self._client]


def contributions_by_labels(
    matrix: PropagationMatrix, labels: Labels, rows: RowsOf, session: Session | None
) -> Contributions:
    """Contributions without columns for the clients, all in one sum."""
    del session
    y = np.concatenate([labels[client] for client in rows])
    z, accuracy = solved(matrix, padded_to(y, matrix.num_points))
    return Contributions({EVERYBODY: np.asarray(z)[: len(y)]}, accuracy)


def contributions_by_columns(
    matrix: PropagationMatrix, labels: Labels, rows: RowsOf, session: Session | None
) -> Contributions:
    """Contributions by columns for the clients, through the session if there is one."""
    num_points = max(owned.stop for owned in rows.values())
    if session is None:
        return _multiplied(matrix, rows, {j: InTheClear(labels[j], num_points) for j in rows})
    from jaxfed.secure.influence_columns import collected_positions
    from jaxfed.secure.session.endpoint import SERVER

    server, clients = session.endpoints[SERVER], [j for j in rows if j in session.clients]
    parties = session.parties(ColumnsClient, labels, clients, num_points=num_points)
    positions = collected_positions(parties, server, {j: len(labels[j]) for j in clients})
    return _multiplied(
        matrix,
        rows,
        {j: Sent(parties, server, j, labeled, num_points) for j, labeled in positions.items()},
    )


def _multiplied(
    matrix: PropagationMatrix, rows: RowsOf, multiplications: Mapping[int, InTheClear | Sent]
) -> Contributions:
    """S_L^(j) Y_L^(j), a client and a block of columns at a time; dropped clients contribute nothing."""
    result = Contributions({}, SolverAccuracy())
    for client, owned in rows.items():
        if client not in multiplications:
            continue
        product = multiplications[client]
        try:
            labeled = product.positions()
            for start in range(0, len(labeled), COLUMN_BLOCK):
                block = labeled[start : start + COLUMN_BLOCK]
                unit = np.zeros((matrix.num_points, shared_width(len(block))), np.float32)
                unit[owned.start + block, np.arange(len(block))] = 1
                columns, accuracy = solved(matrix, unit)  # 10-SS, 12-CS
                result = result._replace(accuracy=result.accuracy.worst(accuracy))
                product.multiply(columns, block)  # 13-CS
            result.values[client] = product.finished()
        except DroppedOut:
            continue
    return result
