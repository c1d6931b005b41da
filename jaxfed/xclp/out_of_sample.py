"""Labels for points that come after the graph was made: by their k nearest codes in it, no system solved.

A later point x is one more row of line 10's system. It lists its k nearest among the n points of the graph,
as line 7 has it; nobody lists x, and everybody else's row is left as it is. Then, Y_x being 0,

    Z_x = alpha sum_l W_xl Z_l,    W_xl = b_xl / sqrt(d_x d_l),    d_x = sum_l b_xl              line 10
    Z_x = sum_l b_xl Z_l / d_x                                                  label_matrix="poisson"

with b_xl = max(cos(pi h_xl / L), 0)^similarity_power of the listed l, and degrees d_l of the graph. (With
self_edges x lists itself and k - 1 others; Z_x is then as much larger as its own row says.)

It is the induction formula of Delalleau, Bengio, Le Roux, "Efficient Non-Parametric Function Induction in
Semi-Supervised Learning", AISTATS 2005, which minimizes the same energy over x alone, all else fixed; with
XCLP's normalization in place of theirs. A point that has no label and that nobody lists gets its own Z
back where it is taken out of the graph and asked for ("centered": but for one part in n of what every label
adds, and shares of the flat part that differ by alpha); one that is still in the list is its own nearest.
What it does not know is what the later points would have told: they are no stations between others, and of
many of them, far from all old ones, a new labeling knows more.

What leaves whom. The client with x sends its codes, and the server, which has all codes of the graph and in
the clear has Z, answers with Z_x, of which lines 15 and 16 are made: L / 8 bytes up and 4 C down a point. The
client need not have taken part; it needs Pi. It learns a mixture of at most k points' scores: with points
of its own choice it can ask for single points of others, as with every method that answers for any input.
With `bit_epsilon` later codes are randomized, too: a code has the same noise whenever it is asked for,
another code another.

Not through protocols: no party has both codes and Z then. It would take SecureHamming between x and all
points, and row sums of each client's sum_l W_xl Z_l over its own points, for which the server has to tell
them who is near x. Neither is built, and `label_later` says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.errors import UsageError
from jaxfed.federation.communication import Communication
from jaxfed.kernels import knn
from jaxfed.kernels.graph import cosine_from_hamming
from jaxfed.kernels.padding import in_batches, padded_rows
from jaxfed.privacy import randomized_response
from jaxfed.xclp.algorithm import Kept, Result, client_codes
from jaxfed.xclp.calibration import calibrated
from jaxfed.xclp.cross_steps import setup
from jaxfed.xclp.inputs import checked
from jaxfed.xclp.neighborhoods import edge_weights
from jaxfed.xclp.own_scores import with_prior
from jaxfed.xclp.parameters import Parameters
from jaxfed.xclp.prediction import UNLABELED, Prediction, predict

_BATCH = 256  # points whose distances to all of the graph are held at a time
_NOISE = 0x6C617465  # sets their noise apart from that of the graph's points


def label_later(result: Result, vectors: Sequence[np.ndarray], p: Parameters) -> list[Prediction]:
    """Label points that were not there when a labeling was made.

    Args:
        result: of `jaxfed.xclp.cross_client_label_propagation`, with plaintext steps.
        vectors: one float [m_j, d] array a client: the labeling's clients in their order, and newcomers after
            them. Which is which matters for `client_prior` alone; newcomers have the cohort's.
        p: the settings that the labeling was given.

    Returns:
        One `Prediction` for each of the arrays. Label -1, confidence 0: none of a point's neighbors has a
        label within reach. A point's prediction does not depend on which others are asked for with it.

    Raises:
        UsageError: steps were protocols; vectors that are not finite or of another d.

    Cost: m (d L + n L / 64 + n k) operations, 4 n bytes for each of `_BATCH` points.
    """
    check_in_the_clear(p, "labels for later points")
    nobody = [np.full(len(v), UNLABELED) for v in vectors]
    vectors, _ = checked(vectors, nobody, p.num_classes)
    sizes = [len(v) for v in vectors]
    if result.kept is None:
        z = np.zeros((sum(sizes), p.num_classes), np.float32)
    else:
        z = np.concatenate(_of_clients(result.kept, vectors))
    labels, confidences = (np.asarray(a)[: len(z)] for a in predict(jnp.asarray(padded_rows(z))))
    if result.choice and result.choice.sharpness is not None:
        confidences = np.asarray(calibrated(z, result.choice.sharpness))
    if p.relative_confidence:
        of_graph = np.concatenate([own.scores for own in result.predictions])
        largest = np.asarray(predict(jnp.asarray(padded_rows(of_graph)))[1]).max()
        confidences = np.minimum(confidences / (largest or np.float32(1)), 1)
    ends = np.cumsum(sizes)[:-1]
    parts = [np.split(values, ends) for values in (labels, confidences, z)]
    return [Prediction(*own) for own in zip(*parts, strict=True)]


def check_in_the_clear(p: Parameters, asked: str) -> None:
    """Refuse later points where steps are protocols; `asked` is what wants them.

    Raises:
        UsageError: names the protocols.
    """
    if p.has_session:
        raise UsageError(
            f"{asked}: xclp.hamming={p.hamming!r}, xclp.row_sums={p.row_sums!r}: allowed is 'plaintext' for "
            "both; nobody has codes and scores together after protocols"
        )


def count_later(communication: Communication, num_points: int, p: Parameters) -> None:
    """Add what so many later points send: their codes up, their scores down."""
    communication.up("codes", num_points * p.num_bits // 8)
    communication.down("row_sums", 4 * num_points * p.num_classes)


def _of_clients(kept: Kept, vectors: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Z of later points, f32 [m_j, C] a client, weighed by its own prior; of newcomers by the cohort's."""
    z = _extended(kept, vectors)
    parts = np.split(z, np.cumsum([len(v) for v in vectors])[:-1])
    cohort = kept.class_counts.sum(axis=0)
    known = [*kept.class_counts, *(np.zeros_like(cohort) for _ in vectors)]
    return [with_prior(part, own, cohort, kept.p) for part, own in zip(parts, known, strict=False)]


def _extended(kept: Kept, vectors: Sequence[np.ndarray]) -> np.ndarray:
    """Z of later points without the client prior, f32 [m, C]."""
    dim = kept.planes.shape[1]
    if vectors[0].shape[1] != dim:
        raise UsageError(
            f"labels for later points: vectors have {vectors[0].shape[1]} entries; allowed are {dim}, as in "
            "the graph"
        )
    p = kept.p
    codes = np.concatenate(client_codes(vectors, kept.planes))
    if p.bit_epsilon:
        key = jax.random.fold_in(setup(p.seed), _NOISE)
        draw = randomized_response.from_content(key, codes)
        noisy = randomized_response.randomize_bits(jnp.asarray(codes), draw, p.bit_epsilon)
        codes = np.asarray(noisy)
    of_graph = np.concatenate(kept.codes)
    z = kept.scores
    root = np.asarray(kept.root_degrees)[: len(z)]
    if p.label_matrix != "poisson":  # whose Z has D^-1/2 in front already
        z = z / np.where(root > 0, root, 1)[:, None]
    bits, num_own = padded_rows(of_graph), 2 * p.self_edges
    graph = (jnp.asarray(a) for a in (bits, np.arange(len(bits)) < len(of_graph), padded_rows(z)))
    mix = partial(
        _mixed,
        *graph,
        num_neighbors=p.num_neighbors - p.self_edges,
        num_bits=p.num_bits,
        similarity_power=p.similarity_power,
        bit_epsilon=p.bit_epsilon,
    )
    mixed, listed = in_batches(mix, codes, _BATCH)
    listed = np.where(listed > 0, listed, 1)
    if p.label_matrix == "poisson":
        return np.asarray(mixed / listed[:, None])
    degree = listed + num_own
    factor = p.alpha / np.sqrt(degree) / (1 - num_own * p.alpha / degree)
    return np.asarray(factor[:, None] * mixed, np.float32)


@partial(jax.jit, static_argnames=("num_neighbors", "num_bits", "bit_epsilon", "similarity_power"))
def _mixed(
    codes: jax.Array,
    is_point: jax.Array,
    values: jax.Array,
    later: jax.Array,
    *,
    num_neighbors: int,
    num_bits: int,
    similarity_power: float,
    bit_epsilon: float,
) -> tuple[jax.Array, jax.Array]:
    """sum_l b_xl V_l and sum_l b_xl over x's neighbors in the graph, f32 [m, C] and [m], of `later` codes."""
    if not num_neighbors:
        nothing = jnp.zeros(len(later), jnp.float32)
        return jnp.zeros((len(later), values.shape[1]), jnp.float32), nothing
    indices, distances = knn.hamming_knn_among(later, codes, num_neighbors, valid=is_point)
    apart: jax.Array = distances
    if bit_epsilon:
        estimates = randomized_response.unbiased_distances(distances, num_bits, bit_epsilon)
        apart = jnp.maximum(estimates, 0)
    b = edge_weights(cosine_from_hamming(apart, num_bits), similarity_power)
    b = jnp.where(indices >= 0, b, 0)
    neighbors = values[jnp.maximum(indices, 0)]
    return (
        jnp.einsum("mk,mkc->mc", b, neighbors, precision=jax.lax.Precision.HIGHEST),
        b.sum(axis=1),
    )
