"""Settings chosen by leave-one-out over the clients' labels, `xclp.select`; no system is solved twice.

The candidate settings s (`jaxfed.xclp.settings.parameters`) begin with the given one. A labeled point i is a
hit if its scores without its own label (`jaxfed.xclp.selection.leave_one_out`) are largest for this label,
and half a hit if they tie with another's. Client j counts over its points of class c

    h_jsc  hits,    d_jsc  the squares of their differences from the given setting's,    n_jc  labels.

The server sums over the clients and takes the s with the best mean of h_sc / n_c, the first of equal ones, if

    sum_c w_c (h_sc - h_given,c)  >  sqrt(sum_c w_c^2 d_sc),

with w_c = 1 and all classes as one (`select_measure="accuracy"`), or w_c = 1 / n_c (`"balanced_accuracy"`):
with unequal classes, hits alone favor settings that guess the larger ones. Otherwise the given setting stays.
The right side is one standard error of the difference of paired counts (McNemar, Psychometrika 1947; for
trees' sizes the rule of one standard error is Breiman et al., 1984). Selection matters when labels are few,
and then hits alone are noisy: forty of them separate two settings that differ by 10 points, and of a hundred
settings some are lucky.

Leaving a label out takes it from its class. With "plain", which favors classes of many labels, that makes
hits rarer; with "class_balanced" it does not.

Privacy: the server learns h, d and n of all settings, as sums over the clients, by class if the measure is.
Clients learn which setting was chosen. The hit rate of the chosen setting is reported; it is slightly
optimistic, being the best of several.

Cost: settings that differ in `label_matrix` alone share neighbors, graph and systems. Those that differ in
alpha share neighbors and graph; those that differ in num_neighbors share the neighbors. So there is one set
of codes, one neighbor search for each num_bits, and for every matrix S the columns that `leave_one_out`
states: at most one labeling for each setting. Fitting `client_prior` solves nothing more.

Client prior. Its strength and smoothing are fitted afterwards, to the chosen settings, by leave-one-out
likelihood. The class of a labeled point i of client j has the probability

    q_ic ~ p_ic^gamma pi_jc / pi_c       (`jaxfed.xclp.steps.class_scores`, beta = 1 / gamma)

with p_i, pi_j and pi without the label y_i. Two log-likelihoods are summed over all labels, one after the
other:

    l(s)     = sum_i log pi_j,y_i(s)         how unlike clients are, by their labels alone, without the graph
    l(gamma) = sum_i log q_i,y_i(gamma, s)   sharpness of scores, as in `jaxfed.xclp.steps.prediction`

s is a value of `PRIOR_LABELS`, gamma one of `SHARPNESS`, both geometric grids. The chosen grid index is the
mean of all indices with weights exp(l), rounded. With many labels it is the most likely value. With few
labels it is nearer to the middle of the grid, which is a weak prior.

Rejected (`results/xclp_prior`): the strength with the most leave-one-out hits among a few, with s = C. With
three labels at a client, hits cannot tell such strengths apart.

Each client sums over its own labels and counts them. It sends `len(PRIOR_LABELS) + 1` numbers, then
`len(SHARPNESS) + 1`. The server adds them up and announces the pair.

Selection needs plaintext steps: one process has everything and computes what the parties would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from itertools import product
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from jaxfed.federation.communication import Communication
from jaxfed.kernels.conjugate_gradient import PropagationMatrix
from jaxfed.kernels.devices import padded_to
from jaxfed.privacy import randomized_response
from jaxfed.xclp.heads import ClientSums, summed_moments, unit_rows
from jaxfed.xclp.selection.leave_one_out import (
    Labeled,
    half_hits,
    labeled_rows,
    left_out_counts,
    left_out_scores,
)
from jaxfed.xclp.settings.parameters import (
    CANDIDATES,
    MEASURES,
    Parameters,
    Propagation,
    candidates_of,
    fits,
)
from jaxfed.xclp.steps.class_scores import shares
from jaxfed.xclp.steps.knn_graph import KnnGraphs, answers_of
from jaxfed.xclp.steps.prediction import (
    SHARPNESS,
    likeliest,
    log_likelihoods,
    log_sums,
    probabilities,
)
from jaxfed.xclp.steps.propagation_matrix import SolverAccuracy

P = TypeVar("P", bound=Propagation)
Evidence = Callable[[P], Labeled]  # leave-one-out data of all labeled points, for one setting


class Choice(NamedTuple, Generic[P]):
    """The chosen settings and their quality.

    Fields:
        p: the settings, with an empty `select`.
        chosen: key -> value of everything that was to be chosen.
        accuracy: share of labels that leave-one-out recovers with these settings, by `select_measure`; None
            without labels.
        given_accuracy: the same with the given settings.
        num_settings: number of candidate settings, without those of the client prior.
        num_matrices: number of different matrices S among them.
        sharpness: of calibrated confidences (`jaxfed.xclp.steps.prediction`); None if confidences are line
            16's.
        log_loss: leave-one-out log loss with this sharpness, mean nats; None without labels.
        systems: accuracy of the linear systems that were solved for the choice.
        of_head: bytes of choosing between head and no head.
    """

    p: P
    chosen: dict[str, Any]
    accuracy: float | None
    given_accuracy: float | None
    num_settings: int
    num_matrices: int
    sharpness: float | None = None
    log_loss: float | None = None
    systems: SolverAccuracy = SolverAccuracy()
    of_head: Communication = Communication()

    def metrics(self) -> dict[str, Any]:
        """Metrics that a round reports: numbers; a chosen name is reported as 1 and its alternatives as 0."""
        metrics: dict[str, Any] = {
            "selected": {
                key: {name: int(name == value) for name in (*CANDIDATES[key], value)}
                if isinstance(value, str)
                else value
                for key, value in self.chosen.items()
            },
            "leave_one_out": {
                "accuracy": self.accuracy,
                "given_accuracy": self.given_accuracy,
                "settings": self.num_settings,
            },
        }
        if self.sharpness is not None:
            metrics["calibration"] = {"sharpness": self.sharpness, "log_loss": self.log_loss}
        return metrics


def select(p: P, evidence: Evidence[P]) -> Choice[P]:
    """Choose among the candidates that `p.select` names; `evidence` is called once for each matrix S."""
    settings, measure = settings_of(p), p.select_measure
    by_matrix: dict[tuple[Any, ...], Labeled] = {}

    def labeled(s: P) -> Labeled:
        key = _in_common(s)
        if key not in by_matrix:
            by_matrix[key] = evidence(s)
        return by_matrix[key]

    def summed(settings: Sequence[P]) -> Sums:
        hits = [half_hits(left_out_scores(labeled(s), s), labeled(s).answers) for s in settings]
        answers, num_groups = labeled(settings[0]).answers, groups_of(measure, p.num_classes)
        return Sums.of(counts_of_hits(hits, answers, num_groups))

    sums = summed(settings)
    size = len(settings), len(by_matrix)
    accuracies = [each.accuracy for each in by_matrix.values()]
    systems = reduce(SolverAccuracy.worst, accuracies, SolverAccuracy())
    if not sums.labels.any():
        flat = 1.0 if p.confidence == "calibrated" else None
        return Choice(settings[0], _chosen(p, settings[0]), None, None, *size, flat, None, systems)
    qualities, best = sums.qualities(measure), sums.best(measure)
    chosen, quality = settings[best], qualities[best]
    if fits_prior(p):
        chosen = fitted(labeled(chosen), chosen)
        quality = summed([chosen]).qualities(measure)[0]
    sharpness, log_loss = None, None
    if chosen.confidence == "calibrated":
        points = labeled(chosen)
        sharpness, log_loss = likeliest(
            log_likelihoods(left_out_scores(points, chosen), points.answers)
        )
    rates = float(quality), float(qualities[0])
    return Choice(chosen, _chosen(p, chosen), *rates, *size, sharpness, log_loss, systems)


def mean_metrics(choices: Sequence[Choice[P]]) -> dict[str, Any]:
    """Metrics if every client chooses for itself: mean hit rates over the clients that have labels."""
    rates = [(c.accuracy, c.given_accuracy) for c in choices if c.accuracy is not None]
    accuracy, baseline = np.mean(np.array(rates, float), axis=0).tolist() if rates else (None, None)
    return {"leave_one_out": {"accuracy": accuracy, "given_accuracy": baseline}}


def settings_of(p: P) -> list[P]:
    """All combinations without `client_prior`, the given settings first, each with an empty `select`.

    Raises:
        UsageError: an invalid combination.
    """
    values = candidates_of(p.select, p.selectable)
    for estimated in ("client_prior", "head"):
        values.pop(estimated, None)
    unselected = replace(p, select=())
    combinations = [unselected]
    for combination in product(*values.values()):
        settings = replace(unselected, **dict(zip(values, combination, strict=True)))
        if settings not in combinations:
            combinations.append(settings)
    return combinations


def fits_prior(p: Propagation) -> bool:
    """True if `select` has the client prior fitted."""
    return "client_prior" in p.select


def _in_common(s: Propagation) -> tuple[Any, ...]:
    """Settings on which graph and S depend; equal ones share leave-one-out data."""
    return s.alpha, s.num_neighbors, s.similarity_power, getattr(s, "num_bits", None)


class Sums(NamedTuple):
    """Counts summed over the clients, by setting and group of classes.

    Fields:
        halves: half-hits, [settings, G].
        squares: of their differences from the given setting's, [settings, G].
        labels: numbers of labels, [G].
    """

    halves: np.ndarray
    squares: np.ndarray
    labels: np.ndarray

    @classmethod
    def of(cls, counts: np.ndarray) -> Sums:
        """The sum of `counts_of_hits`."""
        halves, squares, labels = np.split(np.asarray(counts, np.float64), 3, axis=1)
        return cls(halves, squares, labels[0])

    def qualities(self, measure: str) -> np.ndarray:
        """Share of recovered labels for each setting, float64 [settings]."""
        return np.array([MEASURES[measure](halves / 2, self.labels) for halves in self.halves])

    def is_clear(self, setting: int, measure: str) -> bool:
        """True if a setting is ahead of the given one by more than one standard error."""
        is_labeled = self.labels > 0
        weights = np.where(is_labeled, 1 / np.where(is_labeled, self.labels, 1), 0)
        if measure == "accuracy":
            weights = is_labeled.astype(float)
        ahead = weights @ (self.halves[setting] - self.halves[0])
        return bool(ahead > np.sqrt(weights**2 @ self.squares[setting]))

    def best(self, measure: str) -> int:
        """The best setting if it is clearly ahead of the given one; else that, 0."""
        best = int(np.argmax(self.qualities(measure)))
        return best if self.is_clear(best, measure) else 0


def groups_of(measure: str, num_classes: int) -> int:
    """Number of groups, G, in which hits are counted: one a class for their mean, else one."""
    return num_classes if measure == "balanced_accuracy" else 1


def counts_of_hits(halves: list[np.ndarray], answers: np.ndarray, num_groups: int) -> np.ndarray:
    """Half-hits, squares of differences and numbers of labels, int [settings, 3 G]."""
    group = answers if num_groups > 1 else np.zeros(len(answers), np.int64)

    def by_group(values: np.ndarray) -> np.ndarray:
        return np.bincount(group, values, num_groups).astype(np.int64)

    labels = by_group(np.ones(len(group)))
    rows = [(by_group(hits), by_group((hits - halves[0]) ** 2), labels) for hits in halves]
    return np.stack([np.concatenate(row) for row in rows])


def _chosen(p: Propagation, chosen: Propagation) -> dict[str, Any]:
    names = {entry.partition(":")[0] for entry in p.select}
    if "client_prior" in names:
        names.add("client_prior_labels")
    keys = (*CANDIDATES, "client_prior_labels")
    return {key: getattr(chosen, key) for key in keys if key in names and key != "head"}


PRIOR_LABELS = tuple(2.0**k for k in range(-3, 10))  # s


def fitted(points: Labeled, p: P) -> P:
    """Return `p` with the prior fitted to leave-one-out data."""
    counts, cohort = (np.maximum(each, 0) for each in left_out_counts(points))
    of_labels = [shares(counts, cohort, labels)[0] for labels in PRIOR_LABELS]
    labels = PRIOR_LABELS[_mean_index(log_sums(of_labels, points.answers))]

    def at(gamma: float) -> np.ndarray:
        weighed = replace(p, client_prior=1 / gamma, client_prior_labels=labels)
        return np.asarray(probabilities(left_out_scores(points, weighed), gamma))

    gamma = SHARPNESS[_mean_index(log_sums([at(gamma) for gamma in SHARPNESS], points.answers))]
    return replace(p, client_prior=1 / gamma, client_prior_labels=labels)


def _mean_index(sums: np.ndarray) -> int:
    likelihoods = sums[:-1, 0]
    weights = np.exp(likelihoods - likelihoods.max())
    return round(float(weights @ np.arange(len(weights)) / weights.sum()))


def largest_settings(p: Parameters, num_points: int) -> Parameters:
    """`p` with the largest num_bits and num_neighbors among the candidates.

    There are `num_points` neighbors at most: further ones would hold no edges.
    """
    tried = settings_of(p) if p.select else [p]
    return replace(
        p,
        select=(),
        num_bits=max(s.num_bits for s in tried),
        num_neighbors=min(max(s.num_neighbors for s in tried), num_points),
    )


def choose(
    p: Parameters, graphs: KnnGraphs, vectors: Sequence[np.ndarray]
) -> Choice[Parameters] | None:
    """Choose the settings by leave-one-out; None if `p` leaves nothing to choose.

    One process has everything and computes what parties would (`Parameters` refuses protocols). `vectors` are
    the clients', centered with `center`.
    """
    if not p.asks_labels:
        return None
    choice = select(p, lambda s: _joint(s, graphs))
    return with_head(choice, p, graphs, vectors) if fits("head", p.select) else choice


def with_head(
    choice: Choice[Parameters], p: Parameters, graphs: KnnGraphs, vectors: Sequence[np.ndarray]
) -> Choice[Parameters]:
    """The choice, with a head unless the graph alone is clearly ahead of a ridge on the labels.

    Leaving a label out of the ridge on the graph's labels would take a labeling. The ridge on the given
    labels, in closed form, tells as well whether classes are linear in the features. Without a recovered
    label there is no head.
    """
    graph = _joint(choice.p, graphs)
    labels = graphs.points(choice.p.num_bits).labels
    of = {j: y.any(axis=1) for j, y in labels.items()}
    zero = np.zeros(vectors[0].shape[1], np.float32)
    z = {j: unit_rows(vectors[j][rows], zero) for j, rows in of.items()}
    y = {j: labels[j][rows] for j, rows in of.items()}
    sums = ClientSums(len(of), "plaintext")
    moments = summed_moments(sums, z, y)
    ridge = moments.left_out(1.0, *(np.concatenate(list(parts.values())) for parts in (z, y)))
    num_groups = groups_of(p.select_measure, p.num_classes)
    hits = [
        half_hits(ridge, graph.answers),
        half_hits(left_out_scores(graph, choice.p), graph.answers),
    ]
    tally = Sums.of(counts_of_hits(hits, graph.answers, num_groups))
    sums.communication.down("moments", sum(sums.communication.upload.values()))
    sums.communication.up("hits", 24 * num_groups * len(of))
    takes = bool(tally.halves[0].any()) and not tally.is_clear(1, p.select_measure)
    settings = replace(choice.p, head="ridge" if takes else "none")
    chosen = {**choice.chosen, "head": settings.head}
    return choice._replace(p=settings, chosen=chosen, of_head=sums.communication)


def _joint(s: Parameters, graphs: KnnGraphs) -> Labeled:
    matrix = PropagationMatrix(graphs.graph(s), s.alpha, s.tolerance, s.max_steps)
    points = graphs.points(s.num_bits)
    y = np.concatenate(list(points.labels.values()))
    answers = answers_of(y)
    owner = np.concatenate([np.full(r.stop - r.start, j) for j, r in points.rows.items()])
    n = matrix.num_points
    y, owner, answers = padded_to(y, n), padded_to(owner, n), padded_to(answers, n, fill=-1)
    return labeled_rows(matrix, _unbiased(y, s), owner, answers)


def _unbiased(y: np.ndarray, p: Parameters) -> np.ndarray:
    """Y, or the unbiased estimate of Y if labels are randomized."""
    if not p.label_epsilon:
        return y
    estimate = randomized_response.unbiased(y, p.num_classes, p.label_epsilon)
    return estimate.astype(np.float32)
