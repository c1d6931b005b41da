"""Lines 5 to 9 of Algorithm 1: nearest neighbors and their graph, computed once for settings that share them.

Settings with the same number of bits share codes and neighbors. Fewer neighbors are the first of more, and
fewer bits come from the first rows of Pi.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.data.dataset import UNLABELED
from jaxfed.federation.execution import Execution
from jaxfed.kernels.devices import padded_rows
from jaxfed.kernels.graph import Graph, cosine_from_hamming, normalized_graph
from jaxfed.privacy import randomized_response
from jaxfed.xclp.settings.parameters import HAMMING, Parameters
from jaxfed.xclp.steps.codes import rows_of_clients
from jaxfed.xclp.steps.hamming import pair_choices

if TYPE_CHECKING:
    from jaxfed.secure.cross_steps import ChoosePairs
    from jaxfed.secure.session.parties import Session

Array = jax.Array | np.ndarray


class GraphPoints(NamedTuple):
    """The points of a graph and their nearest others, of the clients that take part.

    Fields:
        labels: Y^(j) of every client that takes part, float32 [n_j, C], in the clients' order.
        rows: R_j of the same clients.
        indices, distances: of the nearest others of all points, int32 [n, k], stored by the server.
    """

    labels: dict[int, np.ndarray]
    rows: dict[int, slice]
    indices: np.ndarray
    distances: np.ndarray

    @property
    def num_labeled(self) -> int:
        """Number of points with a label."""
        return sum(int(y.any(axis=1).sum()) for y in self.labels.values())


class KnnGraphs:
    """Neighbors and graphs of one labeling, or of all candidate settings, computed on first use.

    `codes` are B^(j), uint32 [n_j, L / 32], `labels` int [n_j]; `p` has the largest number of bits and of
    neighbors of any candidate.
    """

    def __init__(
        self,
        codes: Sequence[np.ndarray],
        labels: Sequence[np.ndarray],
        p: Parameters,
        session: Session | None,
        execution: Execution,
    ) -> None:
        self._codes, self._labels, self._p = codes, labels, p
        self._session, self._execution = session, execution
        self._points: dict[int, GraphPoints] = {}
        self._graphs: dict[tuple[int, int, float], Graph] = {}

    def points(self, num_bits: int) -> GraphPoints:
        """Lines 5 and 7, XS: the nearest others by codes of `num_bits` bits."""
        if num_bits not in self._points:
            p = self._p
            choices: list[ChoosePairs] = []
            if p.compares_few(len(self._codes)):
                choices = pair_choices(p.compared_clients, p.compared_by, p.seed)
            clients, indices, distances = HAMMING[p.hamming](
                [client_codes[:, : num_bits // 32] for client_codes in self._codes],
                self._session,
                self._execution,
                num_neighbors=p.num_neighbors,
                key_bits=p.key_bits,
                choices=choices,
            )
            labels = {j: one_hot_labels(self._labels[j], p.num_classes) for j in clients}
            rows = rows_of_clients(labels)
            self._points[num_bits] = GraphPoints(labels, rows, indices, distances)
        return self._points[num_bits]

    def graph(self, p: Parameters) -> Graph:
        """Lines 6 to 9, SS: W for these settings."""
        key = p.num_bits, p.num_neighbors, p.similarity_power
        if key not in self._graphs:
            self._graphs[key] = graph_of(self.points(p.num_bits), p, self._execution)
        return self._graphs[key]


def graph_of(points: GraphPoints, p: Parameters, execution: Execution) -> Graph:
    """Lines 6 to 9, SS: the graph of these points, padded, and over the devices if there are several."""
    nobody = p.num_bits + 1  # padding consists of points without edges
    indices = padded_rows(points.indices[:, : p.num_neighbors], fill=-1)
    distances = padded_rows(points.distances[:, : p.num_neighbors], fill=nobody)
    return server_graph(
        execution.spread(indices, fill=-1), execution.spread(distances, fill=nobody), p
    )


def server_graph(indices: Array, distances: Array, p: Parameters) -> Graph:
    """Lines 6 to 9, SS: cosines of the kept pairs, B + B^T, D^-1/2 (B + B^T) D^-1/2."""
    weights = edge_weights(jnp.asarray(distances), p.num_bits, p.bit_epsilon, p.similarity_power)
    return normalized_graph(jnp.asarray(indices), weights)


def edge_weights(
    distances: jax.Array, num_bits: int, bit_epsilon: float, power: float
) -> jax.Array:
    """max(cos(pi h / L), 0)^power of Hamming distances h, or of their unbiased estimates from noisy bits."""
    if bit_epsilon:
        estimates = randomized_response.unbiased_distances(distances, num_bits, bit_epsilon)
        distances = jnp.maximum(estimates, 0)
    return positive_power(cosine_from_hamming(distances, num_bits), power)


def positive_power(similarity: jax.Array, power: float) -> jax.Array:
    """max(similarity, 0)^power: negative similarities are no edges."""
    positive = jnp.maximum(similarity, 0)
    return positive if power == 1 else positive**power


def one_hot_labels(labels: Array, num_classes: int) -> np.ndarray:
    """float32 [..., C]: Y_ic = 1 where point i is labeled c, zero rows where unlabeled (-1)."""
    return (np.asarray(labels)[..., None] == np.arange(num_classes)).astype(np.float32)


def answers_of(y: np.ndarray) -> np.ndarray:
    """Labels int [n] of Y [n, C], -1 where a row is zero: the inverse of `one_hot_labels`."""
    return np.where(y.any(axis=1), y.argmax(axis=1), UNLABELED)
