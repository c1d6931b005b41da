"""Subsample of a data set (`dataset.pooled`, `dataset.balanced` and its sizes), and its held-out splits.

    part, numbers = subsampled(dataset, config)
    is_test = drawn_for_test(config, part, seed)     # for a set without a test split
    held_out = hold_out(config, part, seed)          # test and validation split

The subsample depends on `config.seed` alone and is the same in every repeat. From a set without a test split,
or with its own undone (`pooled`), a test split is held out: `test_size` of the labeled examples, else
`test_fraction` of them. The subsample then has `train_size` examples and, in addition, `test_size` ones.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from jaxfed.data import Dataset
from jaxfed.data.partitioning.controlled_rounding import apportion
from jaxfed.data.partitioning.stratified import chosen_of_each, stratified
from jaxfed.errors import UsageError
from jaxfed.random_streams import Stream

_COLUMNS = ("client_id", "subclass")  # optional columns of a data set


def subsampled(dataset: Dataset, config: ConfigDict) -> tuple[Dataset, np.ndarray]:
    """Return the subsample of the data set and its examples' indices in the set, int64.

    Indices count the training split from 0 on, then the test split, pooled or not. A size of 0 takes all.
    Other sizes are stratified: the same share of each class and of the examples without a label, or with
    `balanced` the same number of each class. With `balanced` or an `unlabeled_size`, examples without a label
    are drawn separately and `train_size` counts the others.

    Raises:
        UsageError: more examples are requested than exist.

    Cost: with `pooled` one copy of all examples in addition to that of the subsample.
    """
    wanted = config.dataset
    if wanted.pooled:
        dataset = _pooled(dataset)
    rng = np.random.default_rng((config.seed, Stream.SUBSAMPLE))
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


def test_seed(config: ConfigDict, data: Dataset, seed: int) -> int:
    """Return the seed of a repeat's test rows: that of the repeat, or `config.seed` if all share them."""
    is_drawn = config.dataset.test_rows == "by_repeat" and not len(data.y_test)
    return int(seed if is_drawn else config.seed)


def drawn_for_test(config: ConfigDict, data: Dataset, seed: int) -> np.ndarray:
    """Return the mask, bool [n], of training examples drawn as test split; all False if the set has one.

    The draw is stratified by class, or by client if natural clients have their own test examples. With
    `dataset.test_rows` "shared" it does not depend on `seed`.

    Raises:
        UsageError: `test_size` leaves no example to train on.
    """
    is_test = np.zeros(len(data.y), bool)
    if len(data.y_test):
        return is_test
    natural = config.federation.partition == "natural" and config.federation.test == "clients"
    strata = data.y if not natural or data.client_id is None else data.client_id
    known = np.flatnonzero(data.is_labeled)
    rng = np.random.default_rng((test_seed(config, data, seed), 1))
    is_test[known] = stratified(strata[known], _num_test(config, len(known)), rng)
    return is_test


class HeldOut(NamedTuple):
    """Indices of training examples for clients and of held-out examples; the training split counts first.

    The test split is either `new`, clients' new points, or `test`, the central test set.
    """

    train: np.ndarray
    validation: np.ndarray
    new: np.ndarray
    test: np.ndarray

    def without(self, points: np.ndarray) -> HeldOut:
        """Return the same split without these points among the training examples."""
        return self._replace(train=self.train[~np.isin(self.train, points)])


def hold_out(config: ConfigDict, data: Dataset, seed: int, first_validation: int) -> HeldOut:
    """Hold out the test split and the validation split of the repeat with this seed.

    Validation examples of the data set, numbered from `first_validation` on, replace drawn ones.
    """
    is_test = drawn_for_test(config, data, seed)
    rest = np.flatnonzero(~is_test)
    is_validation = np.zeros(len(rest), bool)
    known = np.flatnonzero(data.is_labeled[rest])
    share, num_fixed = config.dataset.validation_fraction, len(data.validation[1])
    num_validation = 0 if num_fixed else round(share * len(known))
    rng = np.random.default_rng((seed, 2))
    is_validation[known] = stratified(data.y[rest[known]], num_validation, rng)
    after_training = np.arange(len(data.y), len(data.y) + len(data.y_test))
    test = after_training if len(data.y_test) else np.flatnonzero(is_test)
    nothing = test[:0]
    is_central = config.federation.test == "central"
    fixed = first_validation + np.arange(num_fixed if share else 0)
    return HeldOut(
        train=rest[~is_validation],
        validation=fixed if num_fixed else rest[is_validation],
        new=nothing if is_central else test,
        test=test if is_central else nothing,
    )


def _num_test(config: ConfigDict, num_labeled: int) -> int:
    """Return the size of the test split drawn from the labeled examples of a set without a test split."""
    wanted = config.dataset
    if wanted.test_size >= max(num_labeled, 1):
        raise UsageError(
            f"config.dataset.test_size={wanted.test_size}: {wanted.name} has {num_labeled} examples with a "
            "label to take it from, and one at least is to train on"
        )
    return int(wanted.test_size) or round(wanted.test_fraction * num_labeled)


def _pooled(dataset: Dataset) -> Dataset:
    """Append the test split and validation examples to the training examples.

    Raises:
        UsageError: clients hold the training examples, and nobody the test split's.
    """
    x_validation, y_validation = dataset.validation
    is_nobodys = len(y_validation) or (dataset.client_id_test is None and len(dataset.y_test))
    if dataset.client_id is not None and is_nobodys:
        raise UsageError(
            f"the test or validation examples of {dataset.name!r} belong to no client, unlike the training "
            "examples",
            key="config.dataset.pooled",
            value=True,
            allowed="use False",
        )
    columns: dict[str, Any] = {}
    for name in _COLUMNS:
        train, test = getattr(dataset, name), getattr(dataset, f"{name}_test")
        if train is not None and test is not None:
            train = np.concatenate([train, test])
        columns |= {name: train, f"{name}_test": _part(train, slice(0))}
    return dataclasses.replace(
        dataset,
        x=np.concatenate([dataset.x, dataset.x_test, x_validation]),
        y=np.concatenate([dataset.y, dataset.y_test, y_validation]),
        x_test=dataset.x_test[:0],
        y_test=dataset.y_test[:0],
        x_validation=None,
        y_validation=None,
        **columns,
    )


def _of_training(
    rng: np.random.Generator, dataset: Dataset, wanted: ConfigDict
) -> np.ndarray | slice:
    """Draw the training examples of the subsample, including those of a test split drawn later."""
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
    """Draw `size` examples, all for 0, ascending; `asked` is the config's key and value for errors."""
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
