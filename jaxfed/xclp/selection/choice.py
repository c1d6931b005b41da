"""Settings chosen by leave-one-out over the clients' labels, `xclp.select`; no system is solved twice.

The candidate settings s (`jaxfed.xclp.settings.candidates`) begin with the given one. A labeled point i is a
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
settings some are lucky. The client prior is fitted afterwards, to the chosen settings, by likelihood
(`jaxfed.xclp.selection.prior_fit`).

Leaving a label out takes it from its class. With "plain", which favors classes of many labels, that makes
hits rarer; with "class_balanced" it does not.

Privacy: the server learns h, d and n of all settings, as sums over the clients, by class if the measure is.
Clients learn which setting was chosen. The hit rate of the chosen setting is reported; it is slightly
optimistic, being the best of several.

Cost: settings that differ in `label_matrix` alone share neighbors, graph and systems. Those that differ in
alpha share neighbors and graph; those that differ in num_neighbors share the neighbors. So there is one set
of codes, one neighbor search for each num_bits, and for every matrix S the columns that `leave_one_out`
states: at most one labeling for each setting. Fitting `client_prior` solves nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import product
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from jaxfed.xclp.selection.leave_one_out import Labeled, half_hits, left_out_scores
from jaxfed.xclp.settings.candidates import CANDIDATES, MEASURES, parsed
from jaxfed.xclp.settings.parameters import Propagation
from jaxfed.xclp.steps.calibration import likeliest, log_likelihoods
from jaxfed.xclp.steps.propagation_matrix import SolverAccuracy

P = TypeVar("P", bound=Propagation)
Evidence = Callable[[P], Mapping[int, Labeled]]  # leave-one-out data by client, for one setting
# Adds up the clients' counts, int [G, t], or sums, float64 [G, t].
Total = Callable[[Mapping[int, np.ndarray]], np.ndarray | None]


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
        sharpness: of calibrated confidences (`jaxfed.xclp.steps.calibration`); None if confidences are line
            16's.
        log_loss: leave-one-out log loss with this sharpness, mean nats; None without labels.
        systems: accuracy of the linear systems that were solved for the choice.
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

    def metrics(self) -> dict[str, Any]:
        """Metrics that a round reports: numbers; a chosen name is reported as 1 and its alternatives as 0."""
        return {
            "selected": {
                key: {name: int(name == value) for name in CANDIDATES[key]}
                if isinstance(value, str)
                else value
                for key, value in self.chosen.items()
            },
            "leave_one_out": {
                "accuracy": self.accuracy,
                "given_accuracy": self.given_accuracy,
                "settings": self.num_settings,
            },
            **(
                {"calibration": {"sharpness": self.sharpness, "log_loss": self.log_loss}}
                if self.sharpness is not None
                else {}
            ),
        }


def select(p: P, evidence: Evidence[P], total: Total) -> Choice[P]:
    """Choose among the candidates that `p.select` names.

    Args:
        p: the given settings.
        evidence: leave-one-out data for a setting; called once for all settings that share them.
        total: sums the clients' numbers; None without clients, or with too few to hide a single one.
    """
    settings = settings_of(p)
    num_groups = p.num_classes if p.select_measure == "balanced_accuracy" else 1
    by_matrix: dict[tuple[Any, ...], Mapping[int, Labeled]] = {}

    def labeled(s: P) -> Mapping[int, Labeled]:
        key = _in_common(s)
        if key not in by_matrix:
            by_matrix[key] = evidence(s)
        return by_matrix[key]

    hits = [_hits(labeled(s), s) for s in settings]
    clients = [j for j in hits[0] if all(j in own for own in hits)]

    def summed(hits: list[dict[int, Hits]]) -> Sums | None:
        counts = {j: _counts([own[j] for own in hits], num_groups) for j in clients}
        return _by_group(total(counts), num_groups)

    size = len(settings), len(by_matrix)
    accuracies = [own.accuracy for points in by_matrix.values() for own in points.values()]
    systems = reduce(SolverAccuracy.worst, accuracies, SolverAccuracy())
    sums = summed(hits)
    if sums is None or not sums.labels.any():
        flat = 1.0 if p.confidence == "calibrated" else None
        return Choice(settings[0], _chosen(p, settings[0]), None, None, *size, flat, None, systems)
    qualities = sums.qualities(p.select_measure)
    best = int(np.argmax(qualities))
    if not sums.is_clear(best, p.select_measure):
        best = 0
    found, quality = settings[best], qualities[best]
    if fits_prior(p):
        from jaxfed.xclp.selection.prior_fit import fitted

        weighed = fitted({j: labeled(found)[j] for j in clients}, found, total)
        again = None if weighed is found else summed([_hits(labeled(found), weighed)])
        if again is not None and again.labels.any():
            found, quality = weighed, again.qualities(p.select_measure)[0]
    sharpness, log_loss = None, None
    if found.confidence == "calibrated":
        left_out = {
            j: (left_out_scores(own, found), own.answers) for j, own in labeled(found).items()
        }
        likelihoods = total({j: log_likelihoods(*left_out[j]) for j in clients})
        sharpness, log_loss = (1.0, None) if likelihoods is None else likeliest(likelihoods)
    return Choice(
        found,
        _chosen(p, found),
        float(quality),
        float(qualities[0]),
        *size,
        sharpness,
        log_loss,
        systems,
    )


def mean_metrics(choices: Sequence[Choice[P]]) -> dict[str, Any]:
    """Metrics if every client chooses for itself: mean hit rates over the clients that have labels."""
    rates = [(c.accuracy, c.given_accuracy) for c in choices if c.accuracy is not None]
    accuracy, given = np.mean(np.array(rates, float), axis=0).tolist() if rates else (None, None)
    return {"leave_one_out": {"accuracy": accuracy, "given_accuracy": given}}


def settings_of(p: P) -> list[P]:
    """All combinations without `client_prior`, the given settings first, each with an empty `select`.

    Raises:
        UsageError: an invalid combination.
    """
    values = parsed(p.select, p.selectable)
    values.pop("client_prior", None)
    given = replace(p, select=())
    found = [given]
    for combination in product(*values.values()):
        settings = replace(given, **dict(zip(values, combination, strict=True)))
        if settings not in found:
            found.append(settings)
    return found


def fits_prior(p: Propagation) -> bool:
    """True if `select` has the client prior fitted."""
    return "client_prior" in p.select


def plaintext_total(counts: Mapping[int, np.ndarray]) -> np.ndarray | None:
    """The sum of the clients' counts in the clear."""
    return np.sum(list(counts.values()), axis=0) if counts else None


def _in_common(s: Propagation) -> tuple[Any, ...]:
    """Settings on which graph and S depend; equal ones share leave-one-out data."""
    return s.alpha, s.num_neighbors, s.similarity_power, getattr(s, "num_bits", None)


class Hits(NamedTuple):
    """A client's half-hits with one setting, int [m], and the classes of its labels, int [m]."""

    halves: np.ndarray
    answers: np.ndarray


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

    def qualities(self, measure: str) -> np.ndarray:
        """Share of recovered labels for each setting, float64 [settings]."""
        return np.array([MEASURES[measure](halves / 2, self.labels) for halves in self.halves])

    def is_clear(self, setting: int, measure: str) -> bool:
        """True if a setting is ahead of the given one by more than one standard error."""
        there = self.labels > 0
        weights = np.where(there, 1 / np.where(there, self.labels, 1), 0)
        if measure == "accuracy":
            weights = there.astype(float)
        ahead = weights @ (self.halves[setting] - self.halves[0])
        return bool(ahead > np.sqrt(weights**2 @ self.squares[setting]))


def _hits(points: Mapping[int, Labeled], s: Propagation) -> dict[int, Hits]:
    return {
        client: Hits(half_hits(left_out_scores(own, s), own.answers), own.answers)
        for client, own in points.items()
    }


def _counts(hit: list[Hits], num_groups: int) -> np.ndarray:
    """A client's half-hits, squares of differences and numbers of labels, int [settings, 3 G]."""
    group = hit[0].answers if num_groups > 1 else np.zeros(len(hit[0].answers), np.int64)

    def by_group(values: np.ndarray) -> np.ndarray:
        return np.bincount(group, values, num_groups).astype(np.int64)

    labels = by_group(np.ones(len(group)))
    return np.stack(
        [
            np.concatenate(
                [by_group(own.halves), by_group((own.halves - hit[0].halves) ** 2), labels]
            )
            for own in hit
        ]
    )


def _by_group(sums: np.ndarray | None, num_groups: int) -> Sums | None:
    if sums is None:
        return None
    halves, squares, labels = np.split(
        np.asarray(sums, np.float64), [num_groups, 2 * num_groups], axis=1
    )
    return Sums(halves, squares, labels[0])


def _chosen(p: Propagation, found: Propagation) -> dict[str, Any]:
    """Chosen values by key."""
    names = {entry.partition(":")[0] for entry in p.select}
    if "client_prior" in names:
        names.add("client_prior_labels")
    keys = (*CANDIDATES, "client_prior_labels")
    return {key: getattr(found, key) for key in keys if key in names}
