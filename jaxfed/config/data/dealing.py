"""Federations of a config: the subsample of a data set, and the holder of each of its examples in a repeat.

    part, numbers = subsampled(dataset, config)
    federation = partitioned(config, part, seed)      # partition, server, public, .. without examples

The subsample depends on `config.seed` alone and is the same in every repeat. From a set without a test split,
or whose test split is pooled with the training split (`dataset.pooled`), a test split is held out:
`test_size` of the labeled examples, else `test_fraction` of them. The subsample then has `train_size`
examples and, in addition, `test_size` ones. Draws for testing, validation and a server are stratified: they
take the same share of each class, or of each natural client. Examples without a label in the data (y = -1)
become unlabeled examples of clients; shares and numbers of labels refer to the other examples.

FedCT (A. Abourayya et al. "Little is Enough: Boosting Privacy by Sharing Only Hard Labels in Federated
Semi-Supervised Learning". AAAI 2025) has clients agree on labels of U, public examples of the clients' own
distribution: in its experiments a part of the training split. The paper does not say how that part is drawn;
here it is drawn at random, by the repeat's seed, from all classes together. Without `federation.own_size`,
clients hold all examples that are not public. With it, clients hold the same examples for every public_size,
a smaller U is a subset of a larger one, and the remaining examples are unused (Appendix C.5).
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from jaxfed.config.keys import refused
from jaxfed.data import SCHEMES, ClientRows, Dataset, Labels, OwnerScheme, Partition, partition
from jaxfed.data.controlled_rounding import apportion, chosen_of_each, stratified
from jaxfed.errors import UsageError, section
from jaxfed.federation.clients import Federation
from jaxfed.random_streams import Stream

KEYS = {
    **{"scheme": "partition", "num_clients": "num_clients", "skew": "skew"},
    **{"alpha": "dirichlet_alpha", "alpha_rest": "dirichlet_alpha_rest"},
    **{"per_client": "classes_per_client", "rows": "table"},
    **{"fraction": "labeled_fraction", "number": "num_labeled", "per_class": "labeled_per_class"},
    **{"clients": "num_labeled_clients", "min_size": "min_size"},
}
"""Argument of `partition`, or field of a scheme or of `Labels` -> key of `federation`."""

_COLUMNS = ("x", "y", "client_id", "subclass")  # of each split; the last two are optional


def partitioned(config: ConfigDict, data: Dataset, seed: int) -> Federation:
    """Deal out the subsample, training split first, in the repeat with this seed; `x` has no features."""
    wanted, share = config.federation, config.dataset.validation_fraction
    y = np.concatenate([data.y, data.y_test])
    train, test = np.split(np.arange(len(y)), [len(data.y)])
    if not len(test):
        is_test = drawn_for_test(config, data, seed)
        train, test = train[~is_test], train[is_test]
    known, rng = train[y[train] >= 0], np.random.default_rng((seed, 2))
    validation = known[stratified(y[known], round(share * len(known)), rng)]
    train = np.setdiff1d(train, validation)
    server = drawn_for_server(wanted, data, train, seed)
    train = np.setdiff1d(train, server)
    _check("federation.own_size", wanted.own_size, len(train), "all that there is to train on")
    private = np.random.default_rng((seed, Stream.OWN_EXAMPLES)).permutation(train)
    private = np.sort(private[: wanted.own_size])
    train = np.setdiff1d(train, private)
    public = _drawn_public(wanted, y, train, seed, beside_own=len(private) > 0)
    new, test = (test[:0], test) if wanted.test == "central" else (test, test[:0])
    clients = private if len(private) else np.setdiff1d(train, public)
    federation = Federation(
        np.zeros((len(y), 0), np.float32),
        y,
        _partition(config, data, clients, new, seed),
        data.num_classes,
        validation=validation,
        test=test,
        server=server,
        public=public,
        public_labels=y[public].astype(np.int32) if wanted.public_labeled else None,
    )
    if wanted.reveal_labels:
        federation = federation.fully_labeled()
    if wanted.graph == "labeled":
        federation = federation.without_unlabeled()
    if wanted.left_out_client >= 0:
        federation = federation.leave_out(wanted.left_out_client)
    return federation


def test_seed(config: ConfigDict, data: Dataset, seed: int) -> int:
    """Return the seed of a repeat's test rows: that of the repeat, or `config.seed` if all share them."""
    is_drawn = config.dataset.test_rows == "by_repeat" and not len(data.y_test)
    return int(seed if is_drawn else config.seed)


def drawn_for_test(config: ConfigDict, data: Dataset, seed: int) -> np.ndarray:
    """Return the mask, bool [n], of training examples drawn as test split; all False if the set has one."""
    is_test, wanted = np.zeros(len(data.y), bool), config.dataset
    if len(data.y_test):
        return is_test
    natural = config.federation.partition == "natural" and config.federation.test == "clients"
    strata = data.y if not natural or data.client_id is None else data.client_id
    known = np.flatnonzero(data.is_labeled)
    _check("dataset.test_size", wanted.test_size, max(len(known) - 1, 0), "one is to train on")
    number = int(wanted.test_size) or round(wanted.test_fraction * len(known))
    rng = np.random.default_rng((test_seed(config, data, seed), 1))
    is_test[known] = stratified(strata[known], number, rng)
    return is_test


def _check(key: str, value: int, most: int, why: str) -> None:
    """Refuse a number of examples that is above `most`, for which `why` is the reason."""
    if value > most:
        raise UsageError(f"at most {most}, {why}", key=f"config.{key}", value=value)


def drawn_for_server(wanted: ConfigDict, data: Dataset, train: np.ndarray, seed: int) -> np.ndarray:
    """Draw the examples of a server with labels from `train`; `wanted` is the section `federation`."""
    if wanted.labels_at == "clients":
        return train[:0]
    known = train[data.is_labeled[train]]
    y, rng = data.y[known], np.random.default_rng((seed, Stream.SERVER_EXAMPLES))
    if each := wanted.labeled_per_class:
        smallest = int(np.bincount(y, minlength=data.num_classes).min())
        _check("federation.labeled_per_class", each, smallest, "all that a class has")
        return np.sort(known[chosen_of_each(y, np.full(data.num_classes, each), rng)])
    _check("federation.num_labeled", wanted.num_labeled, len(known), f"all that {data.name} has")
    number = wanted.num_labeled or round(wanted.labeled_fraction * len(known))
    return np.sort(known[stratified(y, number, rng)])


def _drawn_public(
    wanted: ConfigDict, y: np.ndarray, train: np.ndarray, seed: int, *, beside_own: bool
) -> np.ndarray:
    """Draw public examples of `train`, ascending; one at least is left if clients have none yet."""
    most = max(len(train) - (not beside_own), 0)
    if wanted.public_labeled:
        train = train[y[train] >= 0]
    why = f"with own_size={wanted.own_size}" if beside_own else "for one is the clients'"
    _check("federation.public_size", wanted.public_size, min(most, len(train)), why)
    rng = np.random.default_rng((seed, Stream.PUBLIC_EXAMPLES))
    return np.sort(rng.permutation(train)[: wanted.public_size])


def _partition(
    config: ConfigDict, data: Dataset, train: np.ndarray, new: np.ndarray, seed: int
) -> Partition:
    """Return the partition of training examples and new points, both as indices into the data set."""
    wanted, y = config.federation, np.concatenate([data.y, data.y_test])
    _check("federation.num_clients", wanted.num_clients, len(train) + len(new), "all examples")
    amount: dict[str, Any] = {"fraction": wanted.labeled_fraction}
    if wanted.labels_at == "server":
        amount = {"fraction": 0.0}
    elif wanted.labeled_per_class:
        amount = {"per_class": wanted.labeled_per_class}
    elif wanted.num_labeled:
        amount = {"number": wanted.num_labeled}
    scheme: Any = SCHEMES[wanted.partition]
    names = {field.name for field in fields(scheme)}
    columns: dict[str, Any] = {}
    if issubclass(scheme, OwnerScheme):
        column = _column(config, data, scheme.column)
        columns = {scheme.column: column[train], f"new_{scheme.column}": column[new]}
    if wanted.partition in SCHEMES.from_outside():
        with section(f"config.{wanted.partition}", names):
            scheme = scheme(**config.get(wanted.partition, {}), **columns)
    with section("config.federation", KEYS):
        if isinstance(scheme, type):
            scheme = scheme(**{name: wanted[KEYS[name]] for name in names & KEYS.keys()}, **columns)
        parts = partition(
            y[train],
            num_clients=wanted.num_clients or None,
            scheme=scheme,
            min_size=wanted.min_size,
            labels=Labels(**amount, clients=wanted.num_labeled_clients or None),
            skew=wanted.skew,
            new_y=y[new] if len(new) else None,
            seed=seed,
        )
    # Indices count the training examples first, then new points, if any.
    source = np.concatenate([train, new])
    kinds = map(ClientRows.of, parts)
    return Partition(*(ClientRows.contiguous(rows.sizes, source[rows.joined]) for rows in kinds))


def _column(config: ConfigDict, data: Dataset, name: str) -> np.ndarray:
    """Return a scheme's column of both splits."""
    column, of_test = getattr(data, name), getattr(data, f"{name}_test")
    if column is None:
        key = {"client_id": "client_key", "subclass": "label_key"}.get(name, name)
        wrong = f"needs {name}, which {data.name} does not have"
        raise refused(config, "federation.partition", wrong, f"see config.dataset.{key}")
    if of_test is None and config.federation.test == "clients" and len(data.y_test):
        wrong = f"the test split of {data.name} has no {name}, by which clients could hold it"
        raise refused(config, "federation.test", wrong, "use 'central'")
    return column if of_test is None else np.concatenate([column, of_test])


def subsampled(dataset: Dataset, config: ConfigDict) -> tuple[Dataset, np.ndarray]:
    """Return the subsample of the data set and its examples' indices in the set, int64.

    Indices count the training split from 0 on, then the test split. Draws are stratified: the same share of
    each class and of the examples without a label, or with `balanced` the same number of each class. With
    `balanced` or an `unlabeled_size`, `train_size` counts examples with a label.
    """
    wanted = config.dataset
    if wanted.pooled:
        dataset = _pooled(dataset)
    rng = np.random.default_rng((config.seed, Stream.SUBSAMPLE))
    train = _of_training(rng, dataset, wanted)
    test: np.ndarray | slice = slice(None)
    if len(dataset.y_test):
        test = _drawn(rng, dataset.y_test, wanted, "test_size", dataset.name)
    columns: dict[str, Any] = {
        f"{name}{split}": column[rows]
        for split, rows in (("", train), ("_test", test))
        for name in _COLUMNS
        if (column := getattr(dataset, f"{name}{split}")) is not None
    }
    numbers, count = np.arange(len(dataset.y) + len(dataset.y_test)), len(dataset.y)
    return replace(dataset, **columns), np.concatenate(
        [numbers[:count][train], numbers[count:][test]]
    )


def _pooled(dataset: Dataset) -> Dataset:
    """Append the test split to the training examples."""
    if dataset.client_id is not None and dataset.client_id_test is None and len(dataset.y_test):
        wrong = f"the test examples of {dataset.name!r} belong to no client"
        raise UsageError(wrong, key="config.dataset.pooled", value=True, allowed="use False")
    columns: dict[str, Any] = {}
    for name in _COLUMNS:
        if (train := getattr(dataset, name)) is not None:
            of_test = getattr(dataset, f"{name}_test")
            splits = [train] if of_test is None else [train, of_test]
            columns |= {name: np.concatenate(splits), f"{name}_test": train[:0]}
    return replace(dataset, **columns)


def _of_training(
    rng: np.random.Generator, dataset: Dataset, wanted: ConfigDict
) -> np.ndarray | slice:
    """Draw the training examples of the subsample, including those of a test split drawn later."""
    beside = 0 if len(dataset.y_test) or not wanted.train_size else wanted.test_size
    strata = np.where(dataset.is_labeled, dataset.y, dataset.num_classes)
    if not (wanted.unlabeled_size or wanted.balanced):
        return _drawn(rng, strata, wanted, "train_size", dataset.name, beside)
    known, unknown = np.flatnonzero(dataset.is_labeled), np.flatnonzero(~dataset.is_labeled)
    labeled = known[_drawn(rng, strata[known], wanted, "train_size", dataset.name, beside)]
    size, why = wanted.unlabeled_size, f"all that {dataset.name} has"
    _check("dataset.unlabeled_size", size, len(unknown), why)
    return np.sort(np.concatenate([labeled, rng.permutation(unknown)[: size or None]]))


def _drawn(
    rng: np.random.Generator,
    strata: np.ndarray,
    wanted: ConfigDict,
    key: str,
    name: str,
    beside: int = 0,
) -> np.ndarray | slice:
    """Draw as many examples as the key says, and `beside` more, ascending; all for 0."""
    size, why = wanted[key] + beside, f"all that {name} has"
    why += f" beside test_size={beside}" * bool(beside)
    _check(f"dataset.{key}", wanted[key], len(strata) - beside, why)
    if not wanted.balanced:
        return np.flatnonzero(stratified(strata, size, rng)) if size else slice(None)
    totals = np.bincount(strata)
    occurs = totals > 0
    most = int(totals[occurs].min(initial=len(strata))) * int(np.count_nonzero(occurs))
    _check(f"dataset.{key}", wanted[key], most - beside, f"{why} with balanced=True")
    return np.flatnonzero(chosen_of_each(strata, apportion(occurs, size or most, rng), rng))
