"""Roles of examples: the subsample of a data set, and the holder of each of its examples in a repeat.

    part, numbers = subsampled(dataset, config)
    roles = roles_of(config, part, other, seed)      # roles.clients, roles.server, roles.public, ...

The subsample depends on `config.seed` alone and is the same in every repeat. From a set without a test split,
or whose test split is pooled with the training split (`dataset.pooled`), a test split is held out:
`test_size` of the labeled examples, else `test_fraction` of them. The subsample then has `train_size`
examples and, in addition, `test_size` ones.

All clients and the server have the public examples, without their labels unless `federation.public_labeled`.
FedCT (A. Abourayya et al. "Little is Enough: Boosting Privacy by Sharing Only Hard Labels in Federated
Semi-Supervised Learning". AAAI 2025) has clients agree on labels of U, public examples of the clients' own
distribution: in its experiments a part of the training split. The paper does not say how that part is drawn;
here it is drawn at random, by the repeat's seed, from all classes together. FedMD (D. Li, J. Wang. "FedMD:
Heterogenous Federated Learning via Model Distillation". 2019) uses another data set, with its labels
(`federation.public_dataset`).

Without `federation.own_size`, clients hold all examples that are not public: the larger U, the fewer they
hold. With `own_size`, clients hold the same examples for every public_size, a smaller U is a subset of a
larger one, and the remaining examples are unused (FedCT, Appendix C.5: varying |U| with the local data
fixed).
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


class Roles(NamedTuple):
    """Examples of one repeat by their holders: int64 indices, first the training split, then the test split.

    Fields:
        clients: training examples of all clients together.
        validation: examples that select models; those of the data set itself come after all others.
        new: the test split if clients hold it, as their new points.
        test: the test split if nobody holds it.
        server: the server's labeled examples, ascending; empty if labels are at clients.
        public: public examples, ascending; indices after both splits are those of another, public data set.
    """

    clients: np.ndarray
    validation: np.ndarray
    new: np.ndarray
    test: np.ndarray
    server: np.ndarray
    public: np.ndarray


def roles_of(config: ConfigDict, data: Dataset, other: Dataset | None, seed: int) -> Roles:
    """Draw the roles of examples in the repeat with this seed.

    Args:
        config: of the experiment.
        data: the clients' data set, subsampled. If it has validation examples, none are drawn.
        other: the public data set, if there is one.
        seed: of the repeat.

    Raises:
        UsageError: more examples are requested than exist, or none would be left for clients.
    """
    is_test = drawn_for_test(config, data, seed)
    rest = np.flatnonzero(~is_test)
    test = np.arange(len(data.y), len(data.y) + len(data.y_test))
    if not len(test):
        test = np.flatnonzero(is_test)
    is_validation = np.zeros(len(rest), bool)
    known = np.flatnonzero(data.is_labeled[rest])
    share, num_fixed = config.dataset.validation_fraction, len(data.validation[1])
    number = 0 if num_fixed else round(share * len(known))
    is_validation[known] = stratified(data.y[rest[known]], number, np.random.default_rng((seed, 2)))
    validation = rest[is_validation]
    if num_fixed:
        first = len(data.y) + len(data.y_test) + (0 if other is None else len(other.y))
        validation = first + np.arange(num_fixed if share else 0)
    wanted, train = config.federation, rest[~is_validation]
    server = drawn_for_server(wanted, data, train, seed)
    train = _without(train, server)
    own = _drawn_own(wanted, train, seed)
    train = _without(train, own)
    public = _drawn_public(wanted, data, other, train, seed)
    is_central = wanted.test == "central"
    return Roles(
        clients=own if len(own) else _without(train, public),
        validation=validation,
        new=test[:0] if is_central else test,
        test=test if is_central else test[:0],
        server=server,
        public=public,
    )


def test_seed(config: ConfigDict, data: Dataset, seed: int) -> int:
    """Return the seed of a repeat's test rows: that of the repeat, or `config.seed` if all share them."""
    is_drawn = config.dataset.test_rows == "by_repeat" and not len(data.y_test)
    return int(seed if is_drawn else config.seed)


def drawn_for_test(config: ConfigDict, data: Dataset, seed: int) -> np.ndarray:
    """Return the mask, bool [n], of training examples drawn as test split; all False if the set has one.

    The draw is stratified by class, or by client if natural clients have their own test examples.

    Raises:
        UsageError: `test_size` leaves no example to train on.
    """
    is_test, wanted = np.zeros(len(data.y), bool), config.dataset
    if len(data.y_test):
        return is_test
    natural = config.federation.partition == "natural" and config.federation.test == "clients"
    strata = data.y if not natural or data.client_id is None else data.client_id
    known = np.flatnonzero(data.is_labeled)
    if wanted.test_size >= max(len(known), 1):
        raise UsageError(
            f"config.dataset.test_size={wanted.test_size}: {wanted.name} has {len(known)} examples with a "
            "label to take it from, and one at least is to train on"
        )
    number = int(wanted.test_size) or round(wanted.test_fraction * len(known))
    rng = np.random.default_rng((test_seed(config, data, seed), 1))
    is_test[known] = stratified(strata[known], number, rng)
    return is_test


def drawn_for_server(wanted: ConfigDict, data: Dataset, train: np.ndarray, seed: int) -> np.ndarray:
    """Draw the examples of a server with labels from `train`, stratified by class.

    `wanted` is the section `federation`. The server has `labeled_per_class` of each class, else `num_labeled`
    or `labeled_fraction` in total.

    Raises:
        UsageError: more labels are requested than exist, or none.
    """
    if wanted.labels_at == "clients":
        return train[:0]
    known = train[data.is_labeled[train]]
    y, rng = data.y[known], np.random.default_rng((seed, Stream.SERVER_EXAMPLES))
    key, number, most, of = "num_labeled", wanted.num_labeled, len(known), ""
    if wanted.labeled_per_class:
        key, number, of = "labeled_per_class", wanted.labeled_per_class, " of one class"
        most = int(np.bincount(y, minlength=data.num_classes).min())
    if number > most:
        raise UsageError(
            f"the server can have at most {most}, all that {data.name} has to train on{of}",
            key=f"config.federation.{key}",
            value=number,
        )
    if wanted.labeled_per_class:
        of_each = np.full(data.num_classes, number)
        return np.sort(known[chosen_of_each(y, of_each, rng)])
    number = number or round(wanted.labeled_fraction * len(known))
    if not number:
        raise UsageError(
            f"with labels_at='server' the server has no label of {len(known)}; one is needed at least",
            key="config.federation.labeled_fraction",
            value=wanted.labeled_fraction,
        )
    return np.sort(known[stratified(y, number, rng)])


def _drawn_own(wanted: ConfigDict, train: np.ndarray, seed: int) -> np.ndarray:
    """Draw `own_size` examples of `train` for clients, ascending, whatever the number of public examples."""
    size = wanted.own_size
    if size > len(train):
        wrong = f"at most {len(train)}, all that there is to train on"
        raise UsageError(wrong, key="config.federation.own_size", value=size)
    return np.sort(np.random.default_rng((seed, Stream.OWN_EXAMPLES)).permutation(train)[:size])


def _drawn_public(
    wanted: ConfigDict, data: Dataset, other: Dataset | None, train: np.ndarray, seed: int
) -> np.ndarray:
    """Draw public examples from `train`, or from the public set; ascending."""
    source, first, candidates = data, 0, train
    if other is not None:
        source, first, candidates = other, len(data.y) + len(data.y_test), np.arange(len(other.y))
    elif not (wanted.public_size or wanted.public_fraction):
        return train[:0]
    if wanted.public_labeled:
        candidates = candidates[source.is_labeled[candidates]]
    clients_have_theirs = other is not None or wanted.own_size
    most = len(candidates) if clients_have_theirs else min(len(candidates), len(train) - 1)
    size = wanted.public_size or most
    if other is None and not wanted.public_size:
        size = min(most, max(1, round(wanted.public_fraction * len(train))))
    if size > most:
        why = "" if other is not None else ", and one at least is clients'"
        if wanted.own_size and other is None:
            why = f" beside own_size={wanted.own_size}"
        labels = " with a label" if wanted.public_labeled else ""
        wrong = f"at most {most} of what {source.name} has to train on{labels}{why}"
        raise UsageError(wrong, key="config.federation.public_size", value=size)
    rng = np.random.default_rng((seed, Stream.PUBLIC_EXAMPLES))
    return first + np.sort(rng.permutation(candidates)[:size])


def _without(points: np.ndarray, others: np.ndarray) -> np.ndarray:
    return points[~np.isin(points, others)]


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
    columns: dict[str, Any] = {}
    for name in _COLUMNS:
        for key, rows in ((name, train), (f"{name}_test", test)):
            column = getattr(dataset, key)
            columns[key] = None if column is None else column[rows]
    part = dataclasses.replace(
        dataset,
        x=dataset.x[train],
        y=dataset.y[train],
        x_test=dataset.x_test[test],
        y_test=dataset.y_test[test],
        **columns,
    )
    in_test = len(dataset.y) + np.arange(len(dataset.y_test))
    return part, np.concatenate([np.arange(len(dataset.y))[train], in_test[test]])


def _pooled(dataset: Dataset) -> Dataset:
    """Append the test split and validation examples to the training examples.

    Raises:
        UsageError: clients hold the training examples, and nobody the others.
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
        columns |= {name: train, f"{name}_test": None if train is None else train[:0]}
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
