"""Linear classifiers ("heads") on frozen features, from sums over the clients: what the methods share.

    m     = sum_k sum_i v_ki / sum_k n_k                       with `center`: a sum of d + 1 numbers; else 0
    z_ki  = (v_ki - m) / |v_ki - m|                            features of unit length
    G     = sum_k Z_k^T Z_k,    B = sum_k Z_k^T Y_k,    n_c    labeled points alone
    W     = (G + lambda I)^-1 B,    w_c <- w_c / |w_c|         a head; z^T w_c scores class c

A sum does not depend on the split of the points among clients, so neither does the head (up to float32's
rounding of what a client sends). Each method is one file that says which sums make its G and B.

Regularization. With `regularization=0` lambda is chosen by leave-one-out in closed form (Allen, Technometrics
1974). The scores of labeled point i of a head without it are

    z_i^T (G + lambda I - r_i r_i^T)^-1 (B - z_i y_i^T)

with columns scaled as those of all labels. r_i r_i^T is the point's part of G: r_i = z_i for a ridge. The
server sends G, B and n to the clients. Each counts, over its own labels, the hits of every candidate. The
server adds up the counts, and takes another lambda than `STRENGTHS[0]` if it is better by more than one
standard error (`jaxfed.xclp.selection.choice`). With one label a class no label is recovered, and lambda is
1.

Answers are a softmax of 10 g / (3 s), g the scores and s the root mean square of the scores of all class
means. A class without any label at the clients gets no answer: its probability is 0. Without any label at
all points have label -1 and confidence 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import jax
import numpy as np

from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics
from jaxfed.federation.clients import UNLABELED, Federation
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.communication import Communication
from jaxfed.federation.execution.settings import require
from jaxfed.settings import Ge, Note, OneOf
from jaxfed.xclp.one_shot.transduction import as_vectors, client_arrays, padded, transductive
from jaxfed.xclp.selection.choice import Sums, counts_of_hits
from jaxfed.xclp.selection.leave_one_out import half_hits
from jaxfed.xclp.settings.parameters import MEASURES
from jaxfed.xclp.steps.knn_graph import one_hot_labels

STRENGTHS = (1.0, 0.01, 0.1, 10.0, 100.0)  # candidates of lambda; the first of equally good ones
HowToSum = Literal["plaintext", "masked", "masked_resilient"]


@dataclass(frozen=True)
class HeadSettings:
    """Settings of a linear head on frozen features.

    Attributes:
        center: subtract the mean of all clients' points from the features before they get unit length. It
            takes one more sum, which goes as `sums` says.
        regularization: lambda of the head, on features of unit length; 0: chosen by leave-one-out over the
            clients' labels.
        select_measure: quality that leave-one-out compares: "accuracy", or "balanced_accuracy", its mean over
            classes.
        sums: how the server gets sums over the clients: "plaintext" shows it each client's part, "masked"
            hides them, "masked_resilient" also survives dropouts without a second upload.
    """

    center: bool = False
    regularization: Annotated[float, Ge(0), Note("0 leaves it to leave-one-out")] = 0.0
    select_measure: Annotated[str, OneOf(MEASURES)] = "accuracy"
    sums: HowToSum = "plaintext"


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
        logits = unit_rows(vectors, self.mean) @ np.asarray(self.weights, np.float64)
        return softmax(logits, self.known).astype(np.float32)


class Points(NamedTuple):
    """The labeled points of a cohort: z, float64 [n, d], one-hot y, float64 [n, C], and owner, int [n]."""

    z: np.ndarray
    y: np.ndarray
    owner: np.ndarray


class ClientSums:
    """Sums over the clients of a round, at the server: in the clear, or under masks in one session.

    Attributes:
        communication: bytes so far; those of masked sums are added by `finished`.
    """

    def __init__(self, num_clients: int, how: HowToSum) -> None:
        self.communication, self.num_clients, self._how = Communication(), num_clients, how
        self._session: Any = None
        if how != "plaintext":
            from jaxfed.secure.session.parties import Session  # only protocols need its packages

            self._session = Session(num_clients)

    def __call__(self, kind: str, parts: Sequence[np.ndarray]) -> np.ndarray:
        """The sum of the clients' arrays, float64; zeros if fewer than two take part in a masked sum."""
        if self._session is None:
            sent = [np.asarray(part, np.float32) for part in parts]
            self.communication.up(kind, sum(part.nbytes for part in sent))
            return np.asarray(np.sum(sent, axis=0, dtype=np.float64))
        from jaxfed.secure.row_sums.server_sums import server_sums

        own = {j: np.reshape(part, (-1, 1)).astype(np.float64) for j, part in enumerate(parts)}
        total = server_sums(self._session, own, is_resilient=self._how == "masked_resilient")
        nothing = np.zeros(np.shape(parts[0]))
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
    rows = as_vectors(np.asarray(vectors)).astype(np.float64) - mean
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


def left_out(
    system: np.ndarray, by_class: np.ndarray, points: Points, own: np.ndarray
) -> np.ndarray:
    """Scores z^T (A - r r^T)^-1 (B - z y^T) of each labeled point, float64 [n, C]; `own` has the r, [n, d].

    By Sherman and Morrison from A^-1, A = G + lambda I: no system is solved again.
    """
    solved = np.linalg.solve(system, np.hstack([points.z.T, own.T]))
    of_z, of_own = np.split(solved.T, 2)  # A^-1 z and A^-1 r

    def inner(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.einsum("nd,nd->n", a, b)[:, None]

    scores = of_z @ by_class - inner(of_z, points.z) * points.y
    step = of_own @ by_class - inner(of_own, points.z) * points.y
    rest = np.maximum(1 - inner(of_own, own), 1e-9)
    return np.asarray(scores + inner(of_own, points.z) / rest * step)


def logits_of(raw: np.ndarray, means: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Columns of unit length, scaled as answers need it; class means [d, C] without those of no label."""
    norms = np.linalg.norm(raw, axis=0)
    weights = raw / np.where(norms > 0, norms, 1)
    of_means = (means.T @ weights)[np.ix_(known, known)]
    scale = np.sqrt(np.mean(of_means**2)) if known.any() else 1.0
    return np.asarray(weights * 10 / (3 * (scale or 1.0)))


class Fit(NamedTuple):
    """Weights [d, C] of a head whose mean and classes others add, and metrics of the round."""

    weights: np.ndarray
    counts: np.ndarray
    metrics: Metrics


def fitted(
    gram: np.ndarray,
    by_class: np.ndarray,
    counts: np.ndarray,
    points: Points,
    sums: ClientSums,
    p: HeadSettings,
    own: np.ndarray | None = None,
) -> Fit:
    """The head of G [d, d], B [d, C] and n [C], with lambda given or chosen by leave-one-out.

    `own`: r of each labeled point, [n, d], whose r r^T is its part of G; None: z.

    Cost: d^3 operations and the system's d^2 numbers for every candidate.
    """
    dim, num_classes = by_class.shape
    candidates = (p.regularization,) if p.regularization else STRENGTHS
    known, means = counts > 0.5, by_class / np.maximum(counts, 1)
    found, halves = [], []
    for strength in candidates:
        system = gram + strength * np.eye(dim)
        raw = np.linalg.solve(system, by_class)
        found.append(logits_of(raw, means, known))
        if not p.regularization:
            left = left_out(system, by_class, points, points.z if own is None else own)
            norms = np.linalg.norm(raw, axis=0)
            factor = np.linalg.norm(found[-1], axis=0) / np.where(norms > 0, norms, 1)
            answers = softmax(left * factor, counts - points.y > 0.5)
            halves.append(half_hits(answers, points.y.argmax(axis=1)))
    if p.regularization:
        sums.communication.down("weights", 4 * sums.num_clients * dim * num_classes)
        return Fit(found[0], counts, {"regularization": p.regularization})
    sent = dim * (dim + 1) // 2 + (dim + 1) * num_classes
    sums.communication.down("moments", 4 * sums.num_clients * sent)
    num_groups = num_classes if p.select_measure == "balanced_accuracy" else 1
    clients = [points.owner == j for j in range(sums.num_clients)]
    answers = points.y.argmax(axis=1)
    total = sums(
        "hits", [counts_of_hits([h[of] for h in halves], answers[of], num_groups) for of in clients]
    )
    hits, squares, labels = np.split(total, 3, axis=1)
    tally = Sums(hits, squares, labels[0])
    best, quality = 0, None
    if tally.labels.any():
        qualities = tally.qualities(p.select_measure)
        best = int(np.argmax(qualities))
        best = best if tally.is_clear(best, p.select_measure) else 0
        quality = float(qualities[best])
    sums.communication.down("setting", 4 * sums.num_clients)
    metrics = {"regularization": candidates[best], "leave_one_out": {"accuracy": quality}}
    return Fit(found[best], counts, metrics)


def head_method(
    fit: Callable[[Points, ClientSums], Fit], *, num_classes: int, p: HeadSettings, owner: str
) -> FederatedAlgorithm:
    """The one-round method of `fit`, which makes a head of the labeled points and sums over clients."""

    def label_points(cohort: Cohort, key: jax.Array) -> tuple[Any, ...]:
        del key
        vectors, labels = client_arrays(cohort)
        dim = vectors[0].shape[1]
        require(24 * dim**2, f"matrices of {dim} x {dim} features", key=owner, value=dim)
        sums = ClientSums(len(vectors), p.sums)
        mean = sums.mean(vectors) if p.center else np.zeros(dim, np.float32)
        of = [np.flatnonzero(y >= 0) for y in labels]
        points = Points(
            np.concatenate([unit_rows(v[rows], mean) for v, rows in zip(vectors, of, strict=True)]),
            np.concatenate(
                [one_hot_labels(y[rows], num_classes) for y, rows in zip(labels, of, strict=True)]
            ).astype(np.float64),
            np.repeat(np.arange(len(of)), [len(rows) for rows in of]),
        )
        made = fit(points, sums)
        head = Head(made.weights.astype(np.float32), made.counts > 0.5, mean)
        answers = [head(v) for v in vectors]
        found = [labeled(own) for own in answers]
        return (
            padded([label for label, _ in found], cohort, UNLABELED),
            padded([confidence for _, confidence in found], cohort, 0),
            {"communication": sums.finished().metrics(), **made.metrics},
            head,
        )

    def nothing(federation: Federation) -> Head:
        dim = int(np.prod(federation.x.shape[1:]))
        zeros = np.zeros((dim, num_classes), np.float32), np.zeros(num_classes, bool)
        return Head(*zeros, np.zeros(dim, np.float32))

    return transductive(label_points, nothing)._replace(
        predict=lambda state, x: Head(*state.head)(np.asarray(x))
    )


def labeled(answers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Labels int32 [n] and confidences float32 [n] of probabilities [n, C]; -1 and 0 of rows of zeros."""
    confidence = answers.max(axis=1, initial=0)
    label = np.where(confidence > 0, answers.argmax(axis=1), UNLABELED)
    return label.astype(np.int32), confidence.astype(np.float32)


def of_clients(
    points: Points, num_clients: int, of: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> list[np.ndarray]:
    """Values `of(z, y)` of every client's own labeled points."""
    return [
        of(points.z[own], points.y[own]) for own in (points.owner == j for j in range(num_clients))
    ]


def summed_labels(points: Points, sums: ClientSums) -> tuple[np.ndarray, np.ndarray]:
    """B, [d, C], and n, [C]: sums of the labeled points by class, and their numbers."""
    own = of_clients(points, sums.num_clients, lambda z, y: np.vstack([z.T @ y, y.sum(axis=0)]))
    total = sums("class_sums", own)
    return total[:-1], np.rint(total[-1])
