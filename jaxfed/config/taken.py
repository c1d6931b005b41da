"""Which examples of a data set an experiment takes: `dataset.pooled`, `dataset.balanced` and its sizes.

    part, numbers = taken(dataset, config)
    is_test = drawn_for_test(config, part)           # of a set that has no test split of its own

All of it depends on `config.seed` alone and is the same in every repeat. Of a set that has no test split, or
whose own is undone (`pooled`), one is held out: `test_size` of the examples with a label, or else
`test_fraction` of them. What is taken of it is `train_size` and these.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from jaxfed.data import Dataset
from jaxfed.data.dealing import apportion
from jaxfed.data.strata import chosen_of_each, stratified
from jaxfed.errors import UsageError

_COLUMNS = ("client_id", "subclass")  # of a data set, which may lack them
_EXAMPLES = 0x73697A65  # sets what is taken of a set apart from what deals it: both begin with a permutation


def taken(dataset: Dataset, config: ConfigDict) -> tuple[Dataset, np.ndarray]:
    """The part of the data set that the config asks for, and its examples' numbers in the set, int64.

    Numbers count the training split from 0 on and the test split behind it, pooled or not. A size of 0 takes
    all; any other is stratified: the same share of each class and of the examples without a label, or with
    `balanced` the same number of each class. With `balanced` or an `unlabeled_size` the examples without a
    label are taken apart, and `train_size` counts the others.

    Raises:
        UsageError: more examples asked for than there are.

    Cost: with `pooled` one copy of all examples beside that of the part.
    """
    wanted = config.dataset
    if wanted.pooled:
        dataset = _pooled(dataset)
    rng = np.random.default_rng((config.seed, _EXAMPLES))
    train = _of_training(rng, dataset, wanted)
    test: np.ndarray | slice = slice(None)
    if len(dataset.y_test):
        asked = f"test_size={wanted.test_size}"
        test = _drawn(rng, dataset.y_test, wanted.test_size, asked, dataset.name, wanted.balanced)
    numbers = np.arange(len(dataset.y)), len(dataset.y) + np.arange(len(dataset.y_test))
    columns: dict[str, Any] = {}
    for name in _COLUMNS:
        for key, rows in ((name, train), (f"{name}_test", test)):
            columns[key] = _part(getattr(dataset, key), rows)
    part = dataclasses.replace(
        dataset,
        x=dataset.x[train],
        y=dataset.y[train],
        x_test=dataset.x_test[test],
        y_test=dataset.y_test[test],
        **columns,
    )
    return part, np.concatenate([numbers[0][train], numbers[1][test]])


def _part(column: np.ndarray | None, rows: np.ndarray | slice) -> np.ndarray | None:
    return None if column is None else column[rows]


def drawn_for_test(config: ConfigDict, data: Dataset) -> np.ndarray:
    """bool [n], which training examples are the test split; none where the set has one of its own.

    Stratified, by clients where test examples are those of natural clients.

    Raises:
        UsageError: `test_size` leaves none to train on.
    """
    is_test = np.zeros(len(data.y), bool)
    if len(data.y_test):
        return is_test
    natural = config.federation.partition == "natural" and config.federation.test == "clients"
    strata = data.y if not natural or data.client_id is None else data.client_id
    known = np.flatnonzero(data.is_labeled)
    rng = np.random.default_rng((config.seed, 1))
    is_test[known] = stratified(strata[known], _num_test(config, len(known)), rng)
    return is_test


def _num_test(config: ConfigDict, num_labeled: int) -> int:
    """How many of the labeled examples are the test split of a set without one of its own."""
    wanted = config.dataset
    if wanted.test_size >= max(num_labeled, 1):
        raise UsageError(
            f"config.dataset.test_size={wanted.test_size}: {wanted.name} has {num_labeled} examples with a "
            "label to take it from, and one at least is to train on"
        )
    return int(wanted.test_size) or round(wanted.test_fraction * num_labeled)


def _pooled(dataset: Dataset) -> Dataset:
    """All examples as training examples, those of the test split behind the others."""
    columns: dict[str, Any] = {}
    for name in _COLUMNS:
        train, test = getattr(dataset, name), getattr(dataset, f"{name}_test")
        if train is not None and test is not None:
            train = np.concatenate([train, test])
        columns |= {name: train, f"{name}_test": _part(train, slice(0))}
    return dataclasses.replace(
        dataset,
        x=np.concatenate([dataset.x, dataset.x_test]),
        y=np.concatenate([dataset.y, dataset.y_test]),
        x_test=dataset.x_test[:0],
        y_test=dataset.y_test[:0],
        **columns,
    )


def _of_training(
    rng: np.random.Generator, dataset: Dataset, wanted: ConfigDict
) -> np.ndarray | slice:
    """Which training examples are taken, those of a test split to come among them."""
    size, asked = wanted.train_size, f"train_size={wanted.train_size}"
    if size and wanted.test_size and not len(dataset.y_test):
        size, asked = size + wanted.test_size, f"{asked} beside test_size={wanted.test_size}"
    strata = np.where(dataset.is_labeled, dataset.y, dataset.num_classes)
    if not (wanted.unlabeled_size or wanted.balanced):
        return _drawn(rng, strata, size, asked, dataset.name)
    known, unknown = np.flatnonzero(dataset.is_labeled), np.flatnonzero(~dataset.is_labeled)
    labeled = known[_drawn(rng, strata[known], size, asked, dataset.name, wanted.balanced)]
    size = wanted.unlabeled_size
    if size > len(unknown):
        raise UsageError(
            f"config.dataset.unlabeled_size={size}: {dataset.name} has {len(unknown)} examples without a "
            "label"
        )
    unlabeled = rng.permutation(unknown)[: size or None]
    return np.sort(np.concatenate([labeled, unlabeled]))


def _drawn(
    rng: np.random.Generator,
    strata: np.ndarray,
    size: int,
    asked: str,
    name: str,
    balanced: bool = False,
) -> np.ndarray | slice:
    """`size` of the examples, all for 0, ascending; `asked` is the config's key and value for it."""
    if size > len(strata):
        raise UsageError(f"config.dataset.{asked}: {name} has {len(strata)}; 0 takes all of them")
    if not balanced:
        return np.flatnonzero(stratified(strata, size, rng)) if size else slice(None)
    totals = np.bincount(strata)
    occurs = totals > 0
    smallest = int(totals[occurs].min(initial=len(strata)))
    most = smallest * int(np.count_nonzero(occurs))
    if size > most:
        rarest = int(np.argmin(np.where(occurs, totals, len(strata))))
        raise UsageError(
            f"config.dataset.{asked}: with balanced=True at most {most}, {smallest} of each class; that is "
            f"all that {name} has of class {rarest}"
        )
    counts = apportion(occurs, size or most, rng)
    return np.flatnonzero(chosen_of_each(strata, counts, rng))
