"""Cross-Client Label Propagation: Algorithm 1 of the paper, line by line.

Scott, Yeo, Lampert, "Cross-client Label Propagation for Transductive and Semi-Supervised Federated
Learning", TMLR 2023, https://openreview.net/forum?id=gYO4GX8R5k.

Clients j in P hold vectors V^(j) [n_j, d] and labels for some of them. Jointly, without sharing either,
they build one graph over all n = sum_j n_j points and propagate the labels over it. The comments in
`cross_client_label_propagation` are the paper's line numbers with its marks: CS client step, SS server
step, XS cross step. Cross steps are looked up by name (`HAMMING`, `ROW_SUMS`), so that a secure protocol
takes the place of a plaintext one without a change here. One session of all parties then serves the run,
and clients may leave it at any message (`presence`).

Departures from the printed algorithm, each on purpose:
  * Line 7 keeps each row's k largest entries *other than its own*. As printed, the diagonal
    cos(0) = 1 would always be one of the k; the authors' code leaves it out as well.
  * Lines 5 to 7 stream: cos(pi h / L) falls with h, so the k largest cosines are the k smallest
    distances, and the n x n matrices H and A never exist. Ties go to the smaller index.
  * Negative similarities count as no edge (the paper's D^-1/2 needs non-negative degrees).
  * Line 10 forms no inverse. Conjugate gradient solves (I - alpha W) S_L = E_L for the columns that
    line 12 sends (`influence="columns"`), or (I - alpha W) Z = Y at once (`influence="labels"`): the
    same Z from C right-hand sides instead of one per label, and the default because it is what a
    simulation wants. A deployment sends columns; `Result.communication` counts those either way.
  * A point that no label reaches has Z = 0; it gets label -1 and confidence 0, and is counted.
  * The conjugate gradient leaves components without labels exactly zero; scores below zero, which
    rounding can leave, are zero (S has no negative entry).

Switches for what the authors' released code does and the paper does not say: `similarity_power=3`
(edge weights cubed), `class_balanced` (Y's columns divided by the class's number of labels),
`relative_confidence` (confidences divided by the largest of the cohort). Default: the paper.

Beyond the paper (its future work): `bit_epsilon` and `label_epsilon` randomize every client's codes and
labels before anything leaves it, and undo the bias where the server and the clients use them.
`jaxfed.privacy.randomized_response` says what each promises, and what it does not.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.communication import Communication
from jaxfed.errors import UsageError
from jaxfed.execution import HERE, Execution
from jaxfed.kernels import conjugate_gradient, knn, lsh
from jaxfed.kernels.graph import Graph, cosine_from_hamming, normalized_graph
from jaxfed.padding import padded_rows
from jaxfed.privacy import randomized_response
from jaxfed.secure.key_sizes import KEY_BITS

if TYPE_CHECKING:
    from jaxfed.secure.channel import Presence
    from jaxfed.secure.session import Session

Array = jax.Array | np.ndarray
UNLABELED = -1
_NOISE = 0x6E6F6973  # sets the keys of noise apart from those of Pi's rows, 0 ... L - 1
_COLUMN_BLOCK = 256  # columns of S solved for at once: n x 256 floats at a time


@dataclass(frozen=True)
class Parameters:
    """What defines one XCLP labeling.

    Attributes:
        num_classes: C.
        num_bits: L, the LSH dimension; a multiple of 32.
        num_neighbors: k, edges each point proposes.
        alpha: how far labels travel, in (0, 1).
        seed: the seed s of line 1 of a simulation, from which all clients draw the same Pi.
        projection: where Pi comes from, a key of `PROJECTIONS`. "seed": from `seed`, so that the same seed
            gives the same labels, bit for bit; it has 64 bits at most and is as secret as the
            experiment's config. "group_secret": from the 256 bits that the clients of a session share
            and the server does not have, drawn by the operating system; every run has another Pi, and
            labels that differ as they do between seeds. Only with a protocol in `hamming`.
        hamming: protocol of line 5, a key of `HAMMING`.
        key_bits: of Paillier's keys, 2048 or 3072, where `hamming` is "phe" or "phe_paper".
        row_sums: protocol of line 14, a key of `ROW_SUMS`.
        influence: "labels" or "columns", how lines 10 to 13 are computed (module docstring).
        similarity_power: exponent on edge weights; 3 in the authors' code.
        class_balanced: divide Y's columns by the cohort's number of labels of the class. It tells the
            server those numbers.
        relative_confidence: divide confidences by the cohort's largest.
        tolerance: relative residual at which a column of the linear system is solved.
        max_steps: conjugate-gradient steps at most; a column that needs more is warned of.
        bit_epsilon: eps of randomized response on every bit of the codes; 0 = none.
        label_epsilon: eps of randomized response on every label; 0 = none.
    """

    num_classes: int
    num_bits: int = 4096
    num_neighbors: int = 10
    alpha: float = 0.99
    seed: int = 0
    projection: str = "seed"
    hamming: str = "plaintext"
    key_bits: int = 2048
    row_sums: str = "plaintext"
    influence: str = "labels"
    similarity_power: float = 1.0
    class_balanced: bool = False
    relative_confidence: bool = False
    tolerance: float = 1e-6
    max_steps: int = 1000
    bit_epsilon: float = 0.0
    label_epsilon: float = 0.0

    def __post_init__(self) -> None:
        """Reject what has no meaning, with one line that names it."""
        for name, allowed in (
            ("projection", PROJECTIONS),
            ("hamming", HAMMING),
            ("row_sums", ROW_SUMS),
            ("influence", INFLUENCE),
        ):
            if getattr(self, name) not in allowed:
                given, names = getattr(self, name), ", ".join(map(repr, allowed))
                raise UsageError(f"xclp.{name}={given!r}: allowed are {names}")
        if self.projection == "group_secret" and self.hamming == "plaintext":
            raise UsageError(
                "xclp.projection='group_secret': allowed with a protocol in xclp.hamming, which is "
                "'plaintext': nobody has a secret from the server then"
            )
        for name, holds, allowed_text in (
            ("num_classes", self.num_classes >= 1, "1 or more"),
            ("num_bits", self.num_bits >= 32 and self.num_bits % 32 == 0, "multiples of 32"),
            ("key_bits", self.key_bits in KEY_BITS, " and ".join(map(str, KEY_BITS))),
            ("num_neighbors", self.num_neighbors >= 1, "1 or more"),
            ("alpha", 0 < self.alpha < 1, "numbers strictly between 0 and 1"),
            ("similarity_power", 0 < self.similarity_power < np.inf, "finite numbers above 0"),
            ("tolerance", 0 < self.tolerance < 1, "numbers strictly between 0 and 1"),
            ("max_steps", self.max_steps >= 1, "1 or more"),
            ("bit_epsilon", 0 <= self.bit_epsilon < np.inf, "finite numbers from 0 (no noise) on"),
            (
                "label_epsilon",
                0 <= self.label_epsilon < np.inf,
                "finite numbers from 0 (no noise) on",
            ),
        ):
            if not holds:
                raise UsageError(f"xclp.{name}={getattr(self, name)}: allowed are {allowed_text}")


class Prediction(NamedTuple):
    """What one client learns: `labels` int32 [n_j], `confidences` and `scores` f32 [n_j], [n_j, C]."""

    labels: np.ndarray
    confidences: np.ndarray
    scores: np.ndarray


class Result(NamedTuple):
    """One labeling of all clients.

    Fields:
        predictions: one `Prediction` a client, in the clients' order.
        unreached: number of points that no label reaches.
        steps: conjugate-gradient steps of the slowest column.
        residual: largest relative residual of any column, recomputed.
        communication: bytes that Algorithm 1 sends: codes and contributions up, influence columns and
            row sums down; of a secure protocol instead every message that went through its channel.
    """

    predictions: list[Prediction]
    unreached: int
    steps: int
    residual: float
    communication: Communication


class Solution(NamedTuple):
    """Contributions to Z that line 14 sums, [n, C] each, and how well the systems were solved."""

    contributions: list[np.ndarray]
    steps: int
    residual: float
    cut_short: bool  # a column was given up at max_steps; float32's own limit is no reason to warn


def propagate_labels(
    vectors: Sequence[np.ndarray],
    labels: Sequence[np.ndarray],
    *,
    execution: Execution = HERE,
    presence: Presence | None = None,
    **parameters: Any,
) -> list[Prediction]:
    """Label every client's points with XCLP; the keywords are the fields of `Parameters`.

        propagate_labels(vectors, labels, *, num_classes, num_bits=4096, num_neighbors=10,
                         alpha=0.99, seed=0, hamming="plaintext", row_sums="plaintext", ...)

    Args:
        vectors: one float [n_j, d] array a client; n_j may be 0.
        labels: one int [n_j] array a client, -1 = unlabeled.
        execution: worker processes, and who is told of progress; no influence on the result.
        presence: which clients leave, and at which message, where steps are protocols
            (`jaxfed.secure.channel.Presence`); everybody stays if left out.
        **parameters: see `Parameters`.

    Returns:
        One (labels int32 [n_j], confidences f32 [n_j], scores f32 [n_j, C]) a client. Labeled points
        are predicted too, as in the paper. Label -1, confidence 0: no label reaches the point, or the
        client has left. Who leaves before line 6 is as if it had never been there; before its part of
        line 14 is through, as if its points were unlabeled (Section 3.3).

    Raises:
        UsageError: a parameter out of range, lists of different length, vectors that are not finite
            or of different d, a label outside -1 .. C - 1.

    Cost: n d L + n^2 L / 64 + (steps) n k C operations, O(n (L / 8 + k + C)) bytes; no n x n array.
    """
    p = Parameters(**parameters)
    return cross_client_label_propagation(vectors, labels, p, execution, presence).predictions


def cross_client_label_propagation(
    vectors: Sequence[np.ndarray],
    labels: Sequence[np.ndarray],
    parameters: Parameters,
    execution: Execution = HERE,
    presence: Presence | None = None,
) -> Result:
    """Run Algorithm 1 on the clients' (V^(j), Y^(j)); arguments and errors as `propagate_labels`."""
    p = parameters
    vectors, labels = _checked(vectors, labels, p.num_classes)
    if not any(len(v) for v in vectors):
        return _no_labels(vectors, p, None)
    session = open_session(len(vectors), p, presence)  # 1-XS
    if session and not session.clients:
        return _no_labels(vectors, p, session)
    planes = PROJECTIONS[p.projection](p, vectors[0].shape[1], session)
    codes = execution.once(client_codes, vectors, planes)  # 2-CS to 4-CS
    codes, labels = randomized(codes, labels, p)
    clients, indices, distances = HAMMING[p.hamming](  # 5-XS, with 7-SS streamed in
        codes, p, session, execution
    )
    if not len(indices):
        return _no_labels(vectors, p, session)
    labels = [labels[client] for client in clients]
    rows = _rows([len(y) for y in labels])  # R_j of the clients in H
    graph = server_graph(  # 6-SS to 9-SS; padding is points without edges
        padded_rows(indices, fill=-1), padded_rows(distances, fill=p.num_bits + 1), p
    )
    label_matrices = client_label_matrices(labels, p)  # the clients' Y^(j)
    solution = INFLUENCE[p.influence](graph, label_matrices, rows, p)  # 10-SS to 13-CS
    scores = ROW_SUMS[p.row_sums](  # 14-XS
        solution.contributions, dict(zip(clients, rows, strict=True)), session, execution
    )
    predictions = client_predictions(vectors, scores, p)  # 15-CS, 16-CS

    if solution.cut_short:
        warnings.warn(
            f"label propagation stopped at relative residual {solution.residual:.1e} after "
            f"{solution.steps} steps, above tolerance={p.tolerance:.1e}: raise max_steps or tolerance",
            RuntimeWarning,
            stacklevel=2,
        )
    communication = session.communication() if session else Communication()
    count_messages(
        communication,
        num_clients=len(clients),
        num_labeled=sum(int(np.sum(y >= 0)) for y in labels),
        num_points=len(indices),
        p=p,
    )
    return Result(
        predictions=predictions,
        unreached=sum(int(np.sum(prediction.labels < 0)) for prediction in predictions),
        steps=solution.steps,
        residual=solution.residual,
        communication=communication,
    )


def open_session(num_clients: int, p: Parameters, presence: Presence | None) -> Session | None:
    """Line 1, XS, where a step is a protocol: the parties agree on keys, the clients on a secret."""
    if p.hamming == p.row_sums == "plaintext":
        return None
    from jaxfed.secure.session import Session  # here, because only protocols need its packages

    return Session(num_clients, presence=presence)


def setup(seed: int) -> jax.Array:
    """Line 1, XS, of a simulation: the seed comes from the experiment, which makes it no secret."""
    return jax.random.key(seed)


def projection_of_seed(p: Parameters, dim: int, session: Session | None) -> jax.Array:
    """Line 3, CS: Pi, float32 [L, d], the same at all clients and in every run."""
    del session
    return lsh.hyperplanes(setup(p.seed), p.num_bits, dim)


def projection_of_group_secret(p: Parameters, dim: int, session: Session | None) -> jax.Array:
    """Line 3, CS: Pi, float32 [L, d], the same at all clients, and another one in every run."""
    from jaxfed.secure import cross_steps

    assert session is not None  # `Parameters` has seen to it
    return jnp.asarray(cross_steps.hyperplanes(session, p.num_bits, dim))


def client_codes(vectors: Sequence[np.ndarray], planes: jax.Array) -> list[np.ndarray]:
    """Lines 2 to 4, CS: B^(j) = sign(Pi V^(j)T), packed, uint32 [n_j, L / 32] a client.

    A row depends on its own vector and on Pi alone, so one call over all clients' rows is the clients
    working in parallel.
    """
    joint = np.concatenate([np.asarray(v, np.float32) for v in vectors])
    codes = np.asarray(lsh.sign_bits(jnp.asarray(padded_rows(joint)), planes))
    return [codes[rows] for rows in _rows([len(v) for v in vectors])]


def randomized(
    codes: list[np.ndarray], labels: list[np.ndarray], p: Parameters
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """CS: randomized response on each client's bits and labels, where `p` asks for it.

    Every point has noise of its own, so one call over all points is the clients working in parallel.
    """
    bit_key, label_key = jax.random.split(jax.random.fold_in(setup(p.seed), _NOISE))
    rows = _rows([len(y) for y in labels])
    if p.bit_epsilon:
        joint = jnp.asarray(np.concatenate(codes))
        noisy = np.asarray(randomized_response.randomize_bits(joint, bit_key, p.bit_epsilon))
        codes = [noisy[own] for own in rows]
    if p.label_epsilon:
        answers = randomized_response.randomize_labels(
            np.concatenate(labels), label_key, p.num_classes, p.label_epsilon
        )
        labels = [answers[own] for own in rows]
    return codes, labels


def plaintext_hamming(
    codes: Sequence[np.ndarray], p: Parameters, session: Session | None, execution: Execution
) -> tuple[list[int], np.ndarray, np.ndarray]:
    """Lines 5 and 7 with codes in the clear: each point's k nearest others by Hamming distance.

    The placeholder of the authors' experiments. Returns who takes part, which is everybody, and
    (indices, distances), int32 [n, k].
    """
    del session
    joint = np.concatenate(codes)
    bits = padded_rows(joint)
    is_point = jnp.asarray(np.arange(len(bits)) < len(joint))
    found = execution.once(knn.hamming_knn, jnp.asarray(bits), p.num_neighbors, valid=is_point)
    indices, distances = (np.asarray(values)[: len(joint)] for values in found)
    return list(range(len(codes))), indices, distances


def server_graph(indices: Array, distances: Array, p: Parameters) -> Graph:
    """Lines 6 to 9, SS: cosines of the kept pairs, B + B^T, D^-1/2 (B + B^T) D^-1/2."""
    indices, distances = jnp.asarray(indices), jnp.asarray(distances)
    if p.bit_epsilon:
        estimates = randomized_response.unbiased_distances(distances, p.num_bits, p.bit_epsilon)
        distances = jnp.maximum(estimates, 0)
    similarity = cosine_from_hamming(distances, p.num_bits)
    return normalized_graph(indices, edge_weights(similarity, p.similarity_power))


def edge_weights(similarity: jax.Array, power: float) -> jax.Array:
    """max(similarity, 0)^power: negative similarities are no edges."""
    positive = jnp.maximum(similarity, 0)
    return positive if power == 1 else positive**power


def client_label_matrices(labels: Sequence[np.ndarray], p: Parameters) -> list[np.ndarray]:
    """The zero-or-one-hot Y^(j), float32 [n_j, C] a client, columns divided if `class_balanced`.

    Of randomized labels: unbiased estimates of it.
    """
    if p.label_epsilon:
        matrices = [
            randomized_response.unbiased_one_hot(y, p.num_classes, p.label_epsilon) for y in labels
        ]
    else:
        matrices = [one_hot_labels(y, p.num_classes) for y in labels]
    if p.class_balanced:
        counts = np.sum([y.sum(axis=0) for y in matrices], axis=0, dtype=np.float32)
        matrices = [y / np.maximum(counts, 1) for y in matrices]
    return matrices


def one_hot_labels(labels: Array, num_classes: int) -> np.ndarray:
    """float32 [..., C]: Y_ic = 1 where point i is labeled c, zero rows where unlabeled (-1)."""
    return (np.asarray(labels)[..., None] == np.arange(num_classes)).astype(np.float32)


def balanced(y: jax.Array) -> jax.Array:
    """Y [n, C] with every column divided by its sum, the class's number of labels, where it has any."""
    return y / jnp.maximum(y.sum(axis=0, keepdims=True), 1)


def influence_of_labels(
    graph: Graph, label_matrices: Sequence[np.ndarray], rows: Sequence[slice], p: Parameters
) -> Solution:
    """Lines 10 to 13 in one solve, Z = S Y: the clients' contributions already summed.

    Where line 14 is a protocol, which wants them apart: S Y^(j) of every client j, in one solve too.
    """
    if p.row_sums == "plaintext":
        y = np.concatenate(label_matrices)  # the sum over clients is Y itself
    else:
        y = np.zeros((rows[-1].stop, len(rows), p.num_classes), np.float32)
        for client, (own, matrix) in enumerate(zip(rows, label_matrices, strict=True)):
            y[own, client] = matrix
        y = y.reshape(len(y), len(rows) * p.num_classes)
    z, info = conjugate_gradient.propagate(
        graph, jnp.asarray(padded_rows(y)), p.alpha, tolerance=p.tolerance, max_steps=p.max_steps
    )
    return Solution(
        np.split(np.asarray(z)[: len(y)], z.shape[1] // p.num_classes, axis=1),
        int(info.steps.max()),
        float(info.residual.max()),
        _is_cut_short(info, p.max_steps),
    )


def influence_columns(
    graph: Graph, label_matrices: Sequence[np.ndarray], rows: Sequence[slice], p: Parameters
) -> Solution:
    """Lines 10 to 13 as the paper sends them: S_L^(j) to client j, which returns S_L^(j) Y_L^(j).

    The server solves (I - alpha W) S_L^(j) = E_L^(j) in blocks of 256 columns, E_L^(j) the unit vectors
    of client j's labeled points; of a block that the client has multiplied nothing is kept.
    """
    num_points, num_rows = rows[-1].stop, len(graph.neighbors)
    contributions, steps, residual, cut_short = [], 0, 0.0, False
    for y, own in zip(label_matrices, rows, strict=True):
        labeled = np.flatnonzero(y.any(axis=1))
        contribution = jnp.zeros((num_rows, p.num_classes), jnp.float32)
        for start in range(0, len(labeled), _COLUMN_BLOCK):
            block = labeled[start : start + _COLUMN_BLOCK]
            # Zero columns fill the block to a power of two: few shapes, few compilations.
            width = 1 << (len(block) - 1).bit_length()
            unit = np.zeros((num_rows, width), np.float32)
            unit[own.start + block, np.arange(len(block))] = 1
            s_block, info = conjugate_gradient.propagate(  # 10-SS, 12-CS
                graph, jnp.asarray(unit), p.alpha, tolerance=p.tolerance, max_steps=p.max_steps
            )
            y_block = np.zeros((width, p.num_classes), np.float32)
            y_block[: len(block)] = y[block]
            contribution += jnp.matmul(  # 13-CS
                s_block, jnp.asarray(y_block), precision=jax.lax.Precision.HIGHEST
            )
            steps = max(steps, int(info.steps.max()))
            residual = max(residual, float(info.residual.max()))
            cut_short |= _is_cut_short(info, p.max_steps)
        contributions.append(np.asarray(contribution)[:num_points])
    return Solution(contributions, steps, residual, cut_short)


def plaintext_row_sums(
    contributions: Sequence[np.ndarray],
    rows: Mapping[int, slice],
    session: Session | None,
    execution: Execution,
) -> dict[int, np.ndarray]:
    """Line 14 in the clear: client j gets rows R_j of the summed contributions, f32 [n_j, C]."""
    del session, execution
    total = sum(contributions[1:], start=contributions[0])
    return {client: total[own] for client, own in rows.items()}


def client_predictions(
    vectors: Sequence[np.ndarray], scores: Mapping[int, np.ndarray], p: Parameters
) -> list[Prediction]:
    """Lines 15 and 16, CS: labels and confidences of every client's own rows of Z.

    A client without them, because it has left, gets what unreached points get.
    """
    missing = [np.zeros((len(v), p.num_classes), np.float32) for v in vectors]
    z = np.concatenate([scores.get(j, own) for j, own in enumerate(missing)])
    labels, confidences = predict(jnp.asarray(padded_rows(z)))
    if p.relative_confidence:
        confidences = relative(confidences)
    arrays = [np.asarray(values) for values in (labels, confidences, z)]
    rows = _rows([len(v) for v in vectors])
    return [Prediction(*(values[own] for values in arrays)) for own in rows]


def relative(confidences: jax.Array) -> jax.Array:
    """Confidences [n], n > 0, divided by the largest of them; zeros stay zeros."""
    largest = confidences.max()
    return confidences / jnp.where(largest > 0, largest, 1)


@jax.jit
def predict(scores: jax.Array) -> tuple[jax.Array, jax.Array]:
    """argmax_c Z_ic, and 1 - entropy(Z_i / sum_c Z_ic) / log C, for every row of Z.

    Args:
        scores: float32 [n, C]; entries below zero count as zero.

    Returns:
        labels int32 [n], ties to the smaller class, -1 for a row without a positive entry; confidences
        float32 [n] in [0, 1], 0 for such a row. With one class every reached point has confidence 1.
    """
    positive = jnp.maximum(scores, 0)
    total = positive.sum(axis=-1)
    reached = total > 0
    share = positive / jnp.where(reached, total, 1)[..., None]
    entropy = -jnp.sum(jax.scipy.special.xlogy(share, share), axis=-1)
    confidence = 1 - entropy / max(np.log(scores.shape[-1]), np.finfo(np.float32).tiny)
    label = jnp.argmax(positive, axis=-1).astype(jnp.int32)
    return (
        jnp.where(reached, label, UNLABELED),
        jnp.where(reached, jnp.clip(confidence, 0, 1), 0),
    )


def count_messages(
    communication: Communication,
    *,
    num_clients: int,
    num_labeled: int,
    num_points: int,
    p: Parameters,
) -> None:
    """Add the payload bytes of one run of Algorithm 1's plaintext steps, in 4-byte floats."""
    communication.down("influence_columns", 4 * num_points * num_labeled)
    if p.hamming == "plaintext":
        communication.up("codes", num_points * p.num_bits // 8)
    if p.row_sums == "plaintext":
        communication.up("contributions", 4 * num_clients * num_points * p.num_classes)
        communication.down("row_sums", 4 * num_points * p.num_classes)


def secure_hamming(
    protocol: str,
    codes: Sequence[np.ndarray],
    p: Parameters,
    session: Session | None,
    execution: Execution,
) -> tuple[list[int], np.ndarray, np.ndarray]:
    """Lines 5 and 7 by a protocol in which the server learns H and nobody anything else.

    Returns who has stayed, and (indices, distances) among their points.
    """
    from jaxfed.secure import cross_steps

    assert session is not None
    return cross_steps.nearest_others(
        session,
        dict(enumerate(codes)),
        p.num_neighbors,
        protocol,
        key_bits=p.key_bits,
        workers=execution.workers,
        progress=execution.counting("pairs of points"),
    )


def secure_row_sums(
    contributions: Sequence[np.ndarray],
    rows: Mapping[int, slice],
    session: Session | None,
    execution: Execution,
    *,
    resilient: bool = False,
    signed: bool = False,
) -> dict[int, np.ndarray]:
    """Line 14 by a protocol in which client j learns its rows and nobody anything else.

    Returns the rows of those who have stayed.
    """
    from jaxfed.secure import cross_steps

    assert session is not None
    sums = cross_steps.sums_of_rows(
        session,
        dict(zip(rows, contributions, strict=True)),
        rows,
        resilient=resilient,
        signed=signed,
        progress=execution.counting("uploads for row sums"),
    )
    return {client: own.astype(np.float32) for client, own in sums.items()}


PROJECTIONS: dict[str, Callable[..., jax.Array]] = {
    "seed": projection_of_seed,
    "group_secret": projection_of_group_secret,
}
HAMMING: dict[str, Callable[..., tuple[list[int], np.ndarray, np.ndarray]]] = {
    "plaintext": plaintext_hamming,
    **{
        protocol: partial(secure_hamming, protocol)
        for protocol in ("phe", "ot", "masked", "phe_paper", "ot_paper")
    },
}
ROW_SUMS: dict[str, Callable[..., dict[int, np.ndarray]]] = {
    "plaintext": plaintext_row_sums,
    "masked": secure_row_sums,
    "masked_resilient": partial(secure_row_sums, resilient=True),
    "masked_resilient_signed": partial(secure_row_sums, resilient=True, signed=True),
}
INFLUENCE: dict[str, Callable[..., Solution]] = {
    "labels": influence_of_labels,
    "columns": influence_columns,
}


def _no_labels(vectors: Sequence[np.ndarray], p: Parameters, session: Session | None) -> Result:
    """What comes out where there are no points: nobody has any, or everybody has left."""
    communication = session.communication() if session else Communication()
    unreached = sum(len(v) for v in vectors)
    return Result(client_predictions(vectors, {}, p), unreached, 0, 0.0, communication)


def _is_cut_short(info: conjugate_gradient.Convergence, max_steps: int) -> bool:
    return bool((~info.converged & (info.steps >= max_steps)).any())


def _rows(sizes: Sequence[int]) -> list[slice]:
    """R_j: the rows of the joint arrays that belong to client j."""
    ends = np.cumsum(sizes)
    return [slice(int(end) - size, int(end)) for size, end in zip(sizes, ends, strict=True)]


def _checked(
    vectors: Sequence[np.ndarray], labels: Sequence[np.ndarray], num_classes: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The clients' arrays, or a `UsageError` that names the client and what is wrong."""
    if len(vectors) != len(labels) or not vectors:
        raise UsageError(
            f"xclp: {len(vectors)} clients' vectors and {len(labels)} clients' labels: "
            "give one array of each for every client, one client at least"
        )
    vectors, labels = [np.asarray(v) for v in vectors], [np.asarray(y) for y in labels]
    for client, (v, y) in enumerate(zip(vectors, labels, strict=True)):
        if v.ndim != 2 or v.shape[1] != vectors[0].shape[-1] or y.shape != v.shape[:1]:
            raise UsageError(
                f"xclp: client {client} has vectors {list(v.shape)} and labels {list(y.shape)}: "
                f"allowed are [n, {vectors[0].shape[-1]}] and [n]"
            )
        if y.size and not np.issubdtype(y.dtype, np.integer):
            raise UsageError(
                f"xclp: client {client} has labels of dtype {y.dtype}: allowed are ints"
            )
        if not np.isfinite(v).all():
            raise UsageError(f"xclp: client {client} has vectors that are not finite")
        if y.size and not (y.min() >= UNLABELED and y.max() < num_classes):
            raise UsageError(
                f"xclp: client {client} has labels from {y.min()} to {y.max()}: allowed are -1 "
                f"(unlabeled) to {num_classes - 1}"
            )
    return vectors, labels
