"""Settings of a one-shot method chosen without test labels: cross-validation over the labeled points.

Every client splits its labeled points into F random folds, stratified by class. For each of the settings,

    for f = 1 .. F:  hide the labels of fold f at all clients,  label all points as the method does,
                     each client counts, by class, its hidden points that got their own label,
    the server adds up the counts and selects the settings that are right most often,

the first of equal ones. Then the method runs with these settings and all labels. A real federation can do
this: in addition to the method's own messages, a client sends C counts for each of the settings. XCLP's
authors chose L and k by cross-validation (Scott, Yeo, Lampert, TMLR 2023, A.1) and do not say how many folds;
they kept alpha = 0.99.

It wraps any method whose state is a `Transduction`, by that method's own `round`. Under randomized response
every labeling may spend its budget again (docs/threat-model.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any

import jax
import numpy as np

from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics
from jaxfed.federation.clients import UNLABELED
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.execution import HERE, Execution
from jaxfed.random_streams import Stream
from jaxfed.xclp.one_shot.transduction import Transduction
from jaxfed.xclp.settings.parameters import MEASURES

Settings = Mapping[str, Any]
Make = Callable[[Settings, Execution], FederatedAlgorithm]


def cross_validated(
    make: Make,
    candidates: Sequence[Settings],
    *,
    num_folds: int = 5,
    measure: str = "accuracy",
    execution: Execution = HERE,
) -> FederatedAlgorithm:
    """The method that `make(settings, execution)` makes, with settings chosen again in every round.

    Args:
        make: makes the one-shot method. Its `execution` has a cache, so what does not depend on labels is
            computed once.
        candidates: settings with the same keys, numbers or switches, at least one. The first of equally good
            ones is selected, so the given settings come first.
        num_folds: F, 2 or more.
        measure: a key of `MEASURES`.

    Returns:
        An algorithm whose round reports, beside the method's own metrics, `selected` (key -> value) and
        `cross_validation`: `accuracy` of the selected settings and `given_accuracy` of the first ones,
        by `measure`; without any labeled point both are None, and the first settings are selected. The
        method's `communication` is that of the last labeling, with all labels.

    Cost: F labelings for each candidate, and one more. For XCLP and label propagation with plaintext steps
    each is a conjugate-gradient solve, since codes and neighbors are cached; protocols run again each time.
    """
    for settings in candidates:
        make(settings, HERE)  # a bad value is rejected when the method is made, not in round 1
    first = make(candidates[0], HERE)
    report = execution.counting("settings of cross-validation") or (lambda done, total: None)

    @wraps(first.round)
    def round(state: Transduction, cohort: Cohort, key: jax.Array) -> tuple[Transduction, Metrics]:
        remembering = replace(execution, memory={})
        methods = [make(settings, remembering) for settings in candidates]
        fold = folds(cohort, num_folds, int(jax.random.bits(jax.random.fold_in(key, Stream.FOLDS))))
        is_labeled = fold >= 0
        counts = np.bincount(np.asarray(cohort.y)[is_labeled])
        scores: list[float] = []
        for method in methods if is_labeled.any() else ():
            hits = recovered(method, state, cohort, fold, key)
            scores.append(MEASURES[measure](hits, counts))
            report(len(scores), len(methods))
        best = int(np.argmax(scores)) if scores else 0  # the first of equal ones
        quality = (scores[best], scores[0]) if scores else (None, None)
        state, metrics = methods[best].round(state, cohort, key)
        return state, {
            **metrics,
            "selected": {**metrics.get("selected", {}), **candidates[best]},
            "cross_validation": dict(zip(("accuracy", "given_accuracy"), quality, strict=True)),
        }

    return first._replace(round=round)


def folds(cohort: Cohort, num_folds: int, seed: int) -> np.ndarray:
    """int32 [K, N]: the fold, 0 to F - 1, of every labeled point; -1 where there is no label.

    Fold sizes differ by at most one, for a client's points of one class and for all its points together. The
    assignment and each client's first fold are random. They depend on the client's id and labels, not on the
    rest of the cohort.
    """
    fold = np.full(cohort.mask.shape, -1, np.int32)
    for fold_of_row, client, y in zip(fold, cohort.client_id, np.asarray(cohort.y), strict=True):
        rng = np.random.default_rng((seed, int(client)))
        shuffled = rng.permutation(np.flatnonzero(y >= 0))
        rank = rng.permutation(y.max() + 1)  # random class order, else c, c + 1 never share a fold
        by_class = shuffled[np.argsort(rank[y[shuffled]], kind="stable")]
        fold_of_row[by_class] = (rng.integers(num_folds) + np.arange(len(by_class))) % num_folds
    return fold


def recovered(
    method: FederatedAlgorithm,
    state: Transduction,
    cohort: Cohort,
    fold: np.ndarray,
    key: jax.Array,
) -> np.ndarray:
    """int [C']: number of labels by class that come back when their fold is hidden, summed over all clients.

    C' is the largest labeled class plus 1. Folds without any label are skipped.
    """
    y = np.asarray(cohort.y)
    hits = np.zeros(y[fold >= 0].max() + 1, np.int64)
    for number in np.unique(fold[fold >= 0]):
        is_hidden = fold == number
        visible = cohort._replace(y=np.where(is_hidden, UNLABELED, y))
        labeled, _ = method.round(state, visible, key)
        is_hit = is_hidden & (labeled.label[cohort.client_id] == y)
        hits += np.bincount(y[is_hit], minlength=len(hits))  # the sum of the clients' own counts
    return hits
