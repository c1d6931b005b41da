"""Linear heads on features from sums over clients, and one on XCLP's labels that its graph smooths.

`ClientSums` adds up what clients send, in the clear or under masks. Heads of the given labels alone are in
`jaxfed.xclp.one_shot.linear_heads`. The rest is `xclp.head="ridge"`, a ridge on XCLP's labels, whose answers
are propagated over XCLP's graph:

    t_i = y_i if point i is labeled, else argmax_c Z_ic;  w_i its confidence (line 16)   at its client
    G   = sum_i w_i z_i z_i^T,  B = sum_i w_i z_i t_i^T,  w = sum_i w_i                  sums over clients
    W   = (G n / w + lambda I)^-1 B,  columns of unit length                             server -> clients
    P_i = y_i if point i is labeled, else softmax of W^T z_i                             at its client
    Z'  = (I - alpha' A)^-1 P,  A the graph of line 9, alpha' = `head_alpha`             lines 10 to 16

z_i are the features, centered with `center`, of unit length. Features in which
classes are linear suit the ridge, which learns from the graph's labels of all points; manifolds suit the
graph, which puts its answers right. The order is that of "Correct and Smooth" (Huang, He, Singh, Lim, Benson,
ICLR 2021) without its correction, with XCLP's labels in place of a model's training.

What leaves a client: after the labeling, d (d + 1) / 2 + d C + C numbers, summed as `row_sums` says. Then P:
in the clear as it is, with `influence="columns"` multiplied with the columns of all its points, which the
server sends, n numbers each. The ridge weighs points relative to each other, so it does not depend on the
scale of confidences. lambda is for n weights of mean 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from jaxfed.federation.communication import Communication
from jaxfed.federation.execution import Execution, require
from jaxfed.kernels.conjugate_gradient import PropagationMatrix
from jaxfed.xclp.settings.parameters import INFLUENCE, ROW_SUMS, Parameters
from jaxfed.xclp.steps.knn_graph import GraphPoints, answers_of, one_hot_labels
from jaxfed.xclp.steps.prediction import Prediction
from jaxfed.xclp.steps.propagation_matrix import SolverAccuracy
from jaxfed.xclp.steps.row_sums import Scores

if TYPE_CHECKING:
    from jaxfed.secure.session.parties import Session

_NO_LABEL = 1e-6  # weight
HowToSum = Literal["plaintext", "masked", "masked_resilient"]


class Head(NamedTuple):
    """A linear classifier.

    Fields:
        weights: float32 [d, C]; logits of its answers are z^T weights.
        known: bool [C], the classes that the clients have labels of.
        mean: m, float32 [d].
    """

    weights: np.ndarray
    known: np.ndarray
    mean: np.ndarray

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """Probabilities of the classes, float32 [n, C], of vectors [n, d]; zeros without a known class."""
        return self.answers(unit_rows(vectors, self.mean))

    def answers(self, z: np.ndarray) -> np.ndarray:
        """The same of features z, float64 [n, d], of unit length."""
        logits = z @ np.asarray(self.weights, np.float64)
        return softmax(logits, self.known).astype(np.float32)


class ClientSums:
    """Sums over the clients of a round, at the server: in the clear, or under masks in one session.

    `session` is one that is there already; else masked sums open one.

    Attributes:
        communication: bytes so far, without those of the session, which `finished` adds.
        num_clients: number of clients that receive what the server sends.
    """

    def __init__(self, num_clients: int, how: HowToSum, session: Session | None = None) -> None:
        self.communication, self.num_clients, self._how = Communication(), num_clients, how
        self._session: Any = None
        if how != "plaintext":
            from jaxfed.secure.session.parties import Session  # only protocols need its packages

            self._session = session or Session(num_clients)

    def __call__(
        self, kind: str, parts: Sequence[np.ndarray] | Mapping[int, np.ndarray]
    ) -> np.ndarray:
        """The sum of the clients' arrays, float64; zeros if fewer than two take part in a masked sum.

        `parts` are the arrays by address, or those of clients 0, 1, ....
        """
        of = parts if isinstance(parts, Mapping) else dict(enumerate(parts))
        if self._session is None:
            sent = [np.asarray(part, np.float32) for part in of.values()]
            self.communication.up(kind, sum(part.nbytes for part in sent))
            return np.asarray(np.sum(sent, axis=0, dtype=np.float64))
        from jaxfed.secure.row_sums.server_sums import server_sums

        columns = {j: np.reshape(part, (-1, 1)).astype(np.float64) for j, part in of.items()}
        total = server_sums(self._session, columns, is_resilient=self._how == "masked_resilient")
        nothing = np.zeros(next(iter(of.values())).shape)
        return nothing if total is None else total.reshape(nothing.shape)

    def mean(self, vectors: Sequence[np.ndarray]) -> np.ndarray:
        """m, float32 [d], of all clients' vectors, which the server sends to every client."""
        dim = vectors[0].shape[1]
        parts = [np.append(v.sum(axis=0, dtype=np.float64), len(v)) for v in vectors]
        total = self("feature_sums", parts)
        self.communication.down("feature_mean", 4 * self.num_clients * dim)
        return np.asarray(total[:-1] / max(total[-1], 1), np.float32)

    def finished(self) -> Communication:
        """All bytes."""
        if self._session is not None:
            self.communication.add(self._session.communication())
        return self.communication


def unit_rows(vectors: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """z, float64 [n, d]: rows of unit length after the mean is subtracted; rows of zeros stay zeros."""
    rows = np.reshape(vectors, (len(vectors), len(mean))).astype(np.float64) - mean
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1))


def softmax(logits: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Probabilities [n, C] over the known classes, bool [C] or [n, C]; zeros where there is none."""
    logits = np.where(known, logits, -np.inf)
    largest = logits.max(axis=1, keepdims=True, initial=-np.inf)
    powers = np.exp(logits - np.where(np.isfinite(largest), largest, 0))
    total = powers.sum(axis=1, keepdims=True)
    return np.asarray(powers / np.where(total > 0, total, 1))


def upper(gram: np.ndarray) -> np.ndarray:
    """The d (d + 1) / 2 different numbers of a symmetric matrix."""
    return np.asarray(gram[np.triu_indices(len(gram))])


def symmetric(numbers: np.ndarray, dim: int) -> np.ndarray:
    """The symmetric matrix [d, d] of its different numbers."""
    gram = np.zeros((dim, dim))
    gram[np.triu_indices(dim)] = numbers
    return gram + np.triu(gram, 1).T


class Moments(NamedTuple):
    """G, float64 [d, d], B, [d, C], and the numbers of labels or their weights by class, [C]."""

    gram: np.ndarray
    by_class: np.ndarray
    counts: np.ndarray

    @property
    def known(self) -> np.ndarray:
        """Classes with labels, bool [C]; masked sums of zeros are zeros but for their fixed point."""
        return np.asarray(self.counts > _NO_LABEL)

    def weights(self, strength: float) -> np.ndarray:
        """Weights of the head with this lambda, [d, C]."""
        raw = np.linalg.solve(self.system(strength), self.by_class)
        return scaled_weights(raw, self.by_class, self.counts)

    def system(self, strength: float) -> np.ndarray:
        """A = G + lambda I."""
        return self.gram + strength * np.eye(len(self.gram))

    def left_out(
        self, strength: float, z: np.ndarray, y: np.ndarray, r: np.ndarray | None = None
    ) -> np.ndarray:
        """Probabilities of labeled points z [n, d], y [n, C], each by a head without it.

            z^T (A - r r^T)^-1 (B - z y^T)        by Sherman and Morrison from A^-1

        `r` [n, d]; None: the z. Columns are scaled as those of all labels.
        """
        r = z if r is None else r
        solved = np.linalg.solve(self.system(strength), np.hstack([self.by_class, z.T, r.T]))
        raw, of_both = solved[:, : y.shape[1]], solved[:, y.shape[1] :].T
        of_z, of_own = np.split(of_both, 2)  # A^-1 z and A^-1 r

        def inner(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            return np.einsum("nd,nd->n", a, b)[:, None]

        scores = of_z @ self.by_class - inner(of_z, z) * y
        step = of_own @ self.by_class - inner(of_own, z) * y
        scores += inner(of_own, z) / np.maximum(1 - inner(of_own, r), 1e-9) * step
        scaled = scaled_weights(raw, self.by_class, self.counts)
        lengths, scale = (np.linalg.norm(columns, axis=0) for columns in (raw, scaled))
        logits = scores * scale / np.where(lengths > 0, lengths, 1)
        return softmax(logits, self.counts - y > _NO_LABEL)


def summed_moments(
    sums: ClientSums, z: Mapping[int, np.ndarray], y: Mapping[int, np.ndarray]
) -> Moments:
    """Moments of clients' points z [n_j, d], by labels y [n_j, C], one-hot times the points' weights."""
    moments = {j: upper((rows * y[j].sum(axis=1, keepdims=True)).T @ rows) for j, rows in z.items()}
    dim = next(iter(z.values())).shape[1]
    gram = symmetric(sums("second_moments", moments), dim)
    return Moments(gram, *summed_labels(sums, z, y))


def summed_labels(
    sums: ClientSums, z: Mapping[int, np.ndarray], y: Mapping[int, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """B, [d, C], and the sums of labels by class, [C]; arguments as `summed_moments`."""
    class_sums = {j: np.vstack([z[j].T @ y[j], y[j].sum(axis=0)]) for j in z}
    total = sums("class_sums", class_sums)
    return total[:-1], total[-1]


def scaled_weights(raw: np.ndarray, by_class: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Columns of unit length, scaled as answers need it: by the class means' scores."""
    norms, known = np.linalg.norm(raw, axis=0), counts > _NO_LABEL
    weights = raw / np.where(norms > 0, norms, 1)
    of_means = (by_class[:, known] / counts[known]).T @ weights[:, known]
    scale = np.sqrt(np.mean(of_means**2)) if known.any() else 1.0
    return np.asarray(weights * 10 / (3 * (scale or 1.0)))


class Smoothed(NamedTuple):
    """The head; Z' of every client that stays; accuracy of the linear systems; bytes outside the session."""

    head: Head
    scores: dict[int, Scores]
    accuracy: SolverAccuracy
    communication: Communication


def smoothed(
    vectors: Sequence[np.ndarray],
    mean: np.ndarray,
    predictions: Sequence[Prediction],
    matrix: PropagationMatrix,
    points: GraphPoints,
    p: Parameters,
    session: Session | None,
    execution: Execution,
) -> Smoothed:
    """Fit the ridge to the predictions of a labeling, and propagate its answers.

    `mean` is m, float32 [d]; further arguments are those of the labeling.
    """
    dim = vectors[0].shape[1]
    clients = [j for j in points.rows if not session or j in session.clients]
    require(
        24 * dim**2, f"matrices of {dim} x {dim} features", key="head", value=p.head, owner="xclp"
    )
    sums = ClientSums(len(clients), p.head_sums, session)
    z = {j: unit_rows(vectors[j], mean) for j in clients}
    targets = {}
    for j in clients:
        y, weight = points.labels[j], predictions[j].confidences.astype(np.float64)
        answers_of_client = answers_of(y)
        target = np.where(answers_of_client < 0, predictions[j].labels, answers_of_client)
        targets[j] = weight[:, None] * one_hot_labels(target, p.num_classes)
    all_moments = summed_moments(sums, z, targets)
    num_points, weight = sum(map(len, z.values())), all_moments.counts.sum()
    relative = all_moments._replace(gram=all_moments.gram * (num_points / (weight or 1)))
    weights = relative.weights(p.head_regularization)
    head = Head(weights.astype(np.float32), all_moments.known, mean)
    sums.communication.down("weights", 4 * len(clients) * dim * p.num_classes)

    answers = {j: np.zeros_like(y) for j, y in points.labels.items()}
    for j in clients:
        y = points.labels[j]
        targets_of_client = np.where(y.any(axis=1, keepdims=True), y, head.answers(z[j]))
        answers[j] = targets_of_client.astype(np.float32)
    of_head = matrix._replace(alpha=p.head_alpha)
    contributions = INFLUENCE[p.influence](of_head, answers, points.rows, session)
    nothing = {j: np.zeros((0, p.num_classes), np.float32) for j in points.rows}
    rows = ROW_SUMS[p.row_sums](contributions, nothing, points.rows, session, execution)
    _count_answers(sums.communication, num_points, len(clients), p)
    scores = {j: Scores(values, values) for j, (values, _) in rows.items()}
    return Smoothed(head, scores, contributions.accuracy, sums.communication)


def _count_answers(
    communication: Communication, num_points: int, num_clients: int, p: Parameters
) -> None:
    """Bytes of the third exchange outside a session's channel."""
    if p.influence == "labels":
        communication.up("answers", 4 * num_points * p.num_classes)
    elif not p.has_session:
        communication.down("influence_columns", 4 * num_points**2)
    if p.row_sums == "plaintext":
        if p.influence == "columns":
            communication.up("contributions", 4 * num_clients * num_points * p.num_classes)
        communication.down("row_sums", 4 * num_points * p.num_classes)
