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
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.federation.departures import DroppedOut
from jaxfed.kernels.devices import padded_to
from jaxfed.xclp.steps.propagation_matrix import Matrix, SolverAccuracy, solved

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
        from jaxfed.secure.influence import columns as influence_columns

        influence_columns.send_positions(self._endpoint, self.positions())

    def receive_columns(self, num_rows: int, width: int, start: int) -> None:
        """Lines 12, CS, and 13, CS, for some of the columns, from those of labeled point `start` on.

        They are padded to `num_rows` and `width`, as many as solved for: one program for all.
        """
        from jaxfed.secure.influence import columns as influence_columns

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
        from jaxfed.secure.influence import columns as influence_columns

        def tell(client: int) -> None:
            sent = np.asarray(columns)[: self._num_points, : len(block)]
            influence_columns.send_columns(self._endpoint, client, sent)

        self._take("receive_columns", (*columns.shape, self._num_sent), tell)
        self._num_sent += len(block)

    def finished(self) -> tuple[Any, None]:
        """Z^(j); None in its place if the client is in another process."""
        return self._take("finished", ()) or (None, None)

    def _take(
        self, step: str, told: tuple[int, ...], tell: Callable[[int], None] | None = None
    ) -> Any:
        answered = self._parties(
            step, [self._client], told={self._client: told}, tell=tell, quiet=True
        )
        if self._client not in answered:
            raise DroppedOut(self._client)
        return answered[self._client]


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
    if session is None:
        return _multiplied(
            matrix, rows, rows, lambda client, n: InTheClear(labels[client], n), num_outputs
        )
    from jaxfed.secure.influence.columns import collected_positions
    from jaxfed.secure.session.endpoint import SERVER

    server, clients = session.endpoints[SERVER], [j for j in rows if j in session.clients]
    num_points = _num_points(rows, num_outputs)
    parties = session.parties(ColumnsClient, labels, clients, num_points=num_points)
    sizes = {client: len(labels[client]) for client in clients}
    positions = collected_positions(parties, server, sizes)
    return _multiplied(
        matrix,
        rows,
        positions,
        lambda client, n: Sent(parties, server, client, positions[client], n),
        num_outputs,
    )


def _num_points(rows: RowsOf, num_outputs: int | None) -> int:
    return max(own.stop for own in rows.values()) if num_outputs is None else num_outputs


def _multiplied(
    matrix: Matrix,
    rows: RowsOf,
    present: Container[int],
    multiplication: Callable[[int, int], Multiplication],
    num_outputs: int | None,
) -> Contributions:
    """S_L^(j) Y_L^(j), a client and a block of columns at a time; dropped clients contribute nothing."""
    num_rows = matrix.num_points
    num_points = _num_points(rows, num_outputs)
    result = Contributions({}, {}, SolverAccuracy())
    for client, own in rows.items():
        if client not in present:
            continue
        product = multiplication(client, num_points)
        try:
            labeled = product.positions()
            for start in range(0, len(labeled), COLUMN_BLOCK):
                block = labeled[start : start + COLUMN_BLOCK]
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
