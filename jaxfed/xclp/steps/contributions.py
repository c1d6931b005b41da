"""Lines 10 to 13 of Algorithm 1: every client's contribution Z^(j) = S_L^(j) Y_L^(j), in two ways.

S = (I - alpha W)^-1 (`jaxfed.xclp.steps.propagation_matrix`) is never formed. Conjugate gradients solve
either (I - alpha W) S_L^(j) = E_L^(j) for the columns of client j's labeled points, E_L^(j) being their unit
vectors, or (I - alpha W) Z = Y at once.

"columns", as in the paper: client j tells the server which of its points are labeled, receives their columns
of S and multiplies them with its labels. It sees how far its points reach everybody's.

"labels": client j receives no columns. In the clear the server receives Y and solves for Z: C right-hand
sides instead of one per label. This is the default and suits simulations. If line 14 is a protocol, the
server reveals no columns and the clients reveal no labels: oblivious transfers give each client and the
server shares of Z^(j), which the row sums put together (`jaxfed.secure.influence.transfer`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.federation.departures import DroppedOut
from jaxfed.kernels.devices.padding import padded_to
from jaxfed.xclp.steps.propagation_matrix import Matrix, SolverAccuracy, solved

if TYPE_CHECKING:
    from jaxfed.secure.session.parties import Session

EVERYBODY = -1  # key of the sum of all clients' contributions
_COLUMN_BLOCK = 256  # columns of S solved for at once: n x 256 floats at a time

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
        values: Z^(j) of every client that has stayed, float32 [n, C], or `EVERYBODY`'s; with shares, the
            client's share, uint64 (`jaxfed.secure.primitives.fixed_point`).
        shares: the server's share of every client's Z^(j), uint64 [n, C]; empty if `values` are whole.
        accuracy: of the linear systems.
    """

    values: dict[int, np.ndarray]
    shares: dict[int, np.ndarray]
    accuracy: SolverAccuracy


class Multiplication(Protocol):
    """Multiplication of the server's columns of S with one client's labels."""

    def positions(self) -> np.ndarray:
        """The client's labeled points, in ascending order, as the server receives them."""

    def multiply(self, columns: jax.Array, block: np.ndarray) -> None:
        """Process the next columns, of the points `block`; [n or more, len(block) or more], zeros beyond."""

    def finished(self) -> tuple[np.ndarray, np.ndarray | None]:
        """The client's contribution, or the client's and the server's shares of it."""


class InTheClear:
    """Multiplication without a session. `labels` is Y^(j), `num_points` = n."""

    def __init__(self, labels: np.ndarray, num_points: int) -> None:
        self._labels, self._num_points = labels, num_points
        self._sum: jax.Array | None = None

    def positions(self) -> np.ndarray:
        """The labeled points."""
        return np.flatnonzero(self._labels.any(axis=1))

    def multiply(self, columns: jax.Array, block: np.ndarray) -> None:
        """Line 13, CS, for some of the columns."""
        y = np.zeros((columns.shape[1], self._labels.shape[1]), np.float32)
        y[: len(block)] = self._labels[block]
        product = jnp.matmul(columns, jnp.asarray(y), precision=jax.lax.Precision.HIGHEST)
        self._sum = product if self._sum is None else self._sum + product

    def finished(self) -> tuple[np.ndarray, None]:
        """Z^(j)."""
        if self._sum is None:
            return np.zeros((self._num_points, self._labels.shape[1]), np.float32), None
        return np.asarray(self._sum)[: self._num_points], None


class Sent(InTheClear):
    """Multiplication at the client, which sends positions and receives columns, sealed, in the session."""

    def __init__(self, labels: np.ndarray, num_points: int, client: int, session: Session) -> None:
        super().__init__(labels, num_points)
        self._client, self._session = client, session

    def positions(self) -> np.ndarray:
        """The labeled points."""
        from jaxfed.secure.influence import columns as influence_columns

        own = super().positions()
        return influence_columns.sent_positions(self._session, self._client, own, len(self._labels))

    def multiply(self, columns: jax.Array, block: np.ndarray) -> None:
        """Lines 12, CS, and 13, CS, for some of the columns."""
        from jaxfed.secure.influence import columns as influence_columns

        sent = np.asarray(columns)[: self._num_points, : len(block)]
        received = np.zeros(columns.shape, np.float32)  # as many as solved for: one program for all
        received[: self._num_points, : len(block)] = influence_columns.sent_columns(
            self._session, self._client, sent
        )
        super().multiply(jnp.asarray(received), block)


def contributions_by_labels(
    matrix: Matrix,
    labels: Labels,
    rows: RowsOf,
    session: Session | None,
    *,
    is_secure: bool,
    num_outputs: int | None = None,
) -> Contributions:
    """Contributions without columns for the clients; `is_secure` if line 14 is a protocol.

    `num_outputs`: rows of S Y, without padding, if they are not the n points.
    """
    if is_secure:
        from jaxfed.secure.influence.transfer import Transferred

        assert session is not None
        return _multiplied(
            matrix,
            rows,
            session.clients,
            lambda client, n: Transferred(session, client, labels[client], n),
            num_outputs,
        )
    y = np.concatenate([labels[client] for client in rows])
    z, accuracy = solved(matrix, padded_to(y, matrix.num_points))
    num_outputs = len(y) if num_outputs is None else num_outputs
    return Contributions({EVERYBODY: np.asarray(z)[:num_outputs]}, {}, accuracy)


def contributions_by_columns(
    matrix: Matrix,
    labels: Labels,
    rows: RowsOf,
    session: Session | None,
    *,
    is_secure: bool,
    num_outputs: int | None = None,
) -> Contributions:
    """Contributions by columns for the clients, through the session if there is one; arguments as above."""
    del is_secure
    present: Container[int] = rows if session is None else session.clients

    def multiplication(client: int, n: int) -> Multiplication:
        if session is None:
            return InTheClear(labels[client], n)
        return Sent(labels[client], n, client, session)

    return _multiplied(matrix, rows, present, multiplication, num_outputs)


def _multiplied(
    matrix: Matrix,
    rows: RowsOf,
    present: Container[int],
    multiplication: Callable[[int, int], Multiplication],
    num_outputs: int | None,
) -> Contributions:
    """S_L^(j) Y_L^(j), a client and a block of columns at a time; dropped clients contribute nothing."""
    num_rows = matrix.num_points
    num_points = num_outputs
    if num_points is None:
        num_points = max(own.stop for own in rows.values())
    result = Contributions({}, {}, SolverAccuracy())
    for client, own in rows.items():
        if client not in present:
            continue
        product = multiplication(client, num_points)
        try:
            labeled = product.positions()
            for start in range(0, len(labeled), _COLUMN_BLOCK):
                block = labeled[start : start + _COLUMN_BLOCK]
                unit = np.zeros((num_rows, shared_width(len(block))), np.float32)
                unit[own.start + block, np.arange(len(block))] = 1
                columns, accuracy = solved(matrix, unit)  # 10-SS, 12-CS
                result = result._replace(accuracy=result.accuracy.worst(accuracy))
                product.multiply(columns, block)  # 13-CS
            value, share = product.finished()
        except DroppedOut:
            continue
        result.values[client] = value
        if share is not None:
            result.shares[client] = share
    return result
