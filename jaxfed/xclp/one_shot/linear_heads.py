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

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np

from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics
from jaxfed.federation.clients import UNLABELED, Federation
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.execution import require
from jaxfed.settings import Ge, Note, OneOf
from jaxfed.xclp.heads import ClientSums, Head, HowToSum, Moments, unit_rows
from jaxfed.xclp.one_shot.transduction import Transduction, client_arrays, padded, transductive
from jaxfed.xclp.selection.choice import Sums, counts_of_hits, groups_of
from jaxfed.xclp.selection.leave_one_out import half_hits
from jaxfed.xclp.settings.parameters import MEASURES
from jaxfed.xclp.steps.knn_graph import one_hot_labels

STRENGTHS = (1.0, 0.01, 0.1, 10.0, 100.0)  # candidates of lambda; the first of equally good ones


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


class Points(NamedTuple):
    """The labeled points by client: z, float64 [n_j, d], and one-hot y, float64 [n_j, C]."""

    z: dict[int, np.ndarray]
    y: dict[int, np.ndarray]

    def joint(self) -> tuple[np.ndarray, np.ndarray]:
        """All z and y."""
        return np.concatenate(list(self.z.values())), np.concatenate(list(self.y.values()))


class Fit(NamedTuple):
    """Weights [d, C] of a head whose mean and classes others add, and metrics of the round."""

    weights: np.ndarray
    counts: np.ndarray
    metrics: Metrics


def fitted(
    moments: Moments, points: Points, sums: ClientSums, p: HeadSettings, r: np.ndarray | None = None
) -> Fit:
    """The head of these moments, with lambda given or chosen by leave-one-out.

    `r` [n, d] of each labeled point, whose r r^T is its part of G; None: z.

    Cost: d^3 operations and the system's d^2 numbers for every candidate.
    """
    (dim, num_classes), counts = moments.by_class.shape, moments.counts
    candidates = (p.regularization,) if p.regularization else STRENGTHS
    weights = [moments.weights(strength) for strength in candidates]
    if p.regularization:
        sums.communication.down("weights", 4 * sums.num_clients * dim * num_classes)
        return Fit(weights[0], counts, {"regularization": p.regularization})
    sent = dim * (dim + 1) // 2 + (dim + 1) * num_classes
    sums.communication.down("moments", 4 * sums.num_clients * sent)
    num_groups = groups_of(p.select_measure, num_classes)
    z, y = points.joint()
    ends = np.cumsum([len(rows) for rows in points.z.values()])[:-1]
    hits = [half_hits(moments.left_out(s, z, y, r), y.argmax(axis=1)) for s in candidates]
    of_clients = zip(*(np.split(each, ends) for each in hits), strict=True)
    answers = [one_hot.argmax(axis=1) for one_hot in points.y.values()]
    counted = [
        counts_of_hits([*client_hits], answer, num_groups)
        for client_hits, answer in zip(of_clients, answers, strict=True)
    ]
    tally = Sums.of(sums("hits", counted))
    best, quality = 0, None
    if tally.labels.any():
        best = tally.best(p.select_measure)
        quality = float(tally.qualities(p.select_measure)[best])
    sums.communication.down("setting", 4 * sums.num_clients)
    metrics = {"regularization": candidates[best], "leave_one_out": {"accuracy": quality}}
    return Fit(weights[best], counts, metrics)


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
        one_hot = [one_hot_labels(y[y >= 0], num_classes).astype(np.float64) for y in labels]
        z = [unit_rows(v[y >= 0], mean) for v, y in zip(vectors, labels, strict=True)]
        points = Points(dict(enumerate(z)), dict(enumerate(one_hot)))
        made = fit(points, sums)
        head = Head(made.weights.astype(np.float32), made.counts > 0.5, mean)
        answers = [head(v) for v in vectors]
        labels_of = [labeled(answer) for answer in answers]
        return (
            padded([label for label, _ in labels_of], cohort, UNLABELED),
            padded([confidence for _, confidence in labels_of], cohort, 0),
            {"communication": sums.finished().metrics(), **made.metrics},
            head,
        )

    first_head = partial(no_head, num_classes=num_classes)
    return transductive(label_points, first_head)._replace(predict=predicted_by_head)


def no_head(federation: Federation, *, num_classes: int) -> Head:
    """The head of a state before the first round, which knows no class."""
    dim = int(np.prod(federation.x.shape[1:]))
    zeros = np.zeros((dim, num_classes), np.float32), np.zeros(num_classes, bool)
    return Head(*zeros, np.zeros(dim, np.float32))


def predicted_by_head(state: Transduction, x: np.ndarray) -> np.ndarray:
    """Probabilities of the classes by the state's head, float32 [n, C]."""
    return Head(*state.head)(np.asarray(x))


def labeled(answers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Labels int32 [n] and confidences float32 [n] of probabilities [n, C]; -1 and 0 of rows of zeros."""
    confidence = answers.max(axis=1, initial=0)
    label = np.where(confidence > 0, answers.argmax(axis=1), UNLABELED)
    return label.astype(np.int32), confidence.astype(np.float32)
