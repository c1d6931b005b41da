"""Holders of the examples of a run, and warnings about its data.

Preprocessing computes exact statistics of clients' rows, without noise; on a network each client sends its
sums, and a model contains the result (`docs/privacy.md`). Methods with a guarantee refuse such settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from jaxfed.config import methods
from jaxfed.config.keys import refused
from jaxfed.data import SCHEMES, ClientRows, Dataset
from jaxfed.data.mapped_rows import parts
from jaxfed.federation.clients import Federation

_FEW_TEST, _FEW_VALIDATION = 100, 30
_LARGEST_RATIO = 100  # of feature scales without a warning


class Holdings(NamedTuple):
    """Numbers of examples in the first repeat, printed at the start of a run and stored in summary.json."""

    clients: int
    labeled: int  # at clients, with a label to learn from
    unlabeled: int  # at clients, without a label
    server: int  # at a server with labels
    public: int  # shared by everybody
    validation: int  # held out for model selection
    test: int  # held out for testing, including clients' new points
    dropped: int  # all other examples of the data
    without_label: int  # examples without a label in the data, including dropped ones
    test_classes: tuple[int, ...] = ()  # test examples of each class that any has
    test_rows: str = "shared"  # by all repeats, or drawn "by_repeat"

    @classmethod
    def of(cls, y: np.ndarray, federation: Federation, test_rows: str) -> Holdings:
        """Count the examples of a federation whose data set has classes y, int [n], in all splits."""
        new = ClientRows.of(federation.partition.new).joined
        tested = federation.y[np.concatenate([federation.test, new])]
        of_each = np.bincount(tested[tested >= 0])
        labeled, unlabeled, _ = federation.partition.sizes.sum(axis=1).tolist()
        server, public = len(federation.server), len(federation.public)
        validation, test = len(federation.validation), len(tested)
        held = labeled + unlabeled + server + public + validation + test
        return cls(
            *(federation.num_clients, labeled, unlabeled, server, public, validation, test),
            dropped=len(y) - held,
            without_label=int(np.count_nonzero(y < 0)),
            test_classes=tuple(of_each[of_each > 0].tolist()),
            test_rows=test_rows,
        )

    def line(self, name: str) -> str:
        """Return a readable line on the data set of this name."""
        server = f"the server {self.server:,} labeled, " if self.server else ""
        unknown = f"; {self.without_label:,} came without a label" if self.without_label else ""
        clients = f"{self.clients:,} client{'s' if self.clients > 1 else ''}"
        return (
            f"{name}: {server}{clients} {self.labeled:,} labeled and {self.unlabeled:,} unlabeled, public "
            f"{self.public:,}, validation {self.validation:,}, test {self.test:,}, dropped {self.dropped:,}"
            f"{unknown}"
        )


def few_rows(test: int, validation: int) -> list[str]:
    """Return warnings about test or validation examples that are too few to compare methods."""
    found = []
    if 0 < test < _FEW_TEST:
        found.append(
            f"{test} test rows, fewer than {_FEW_TEST}: differences between methods depend on their choice; "
            "hold out more (config.dataset.test_fraction), or raise config.num_repeats"
        )
    if 0 < validation < _FEW_VALIDATION:
        found.append(
            f"{validation} validation rows, fewer than {_FEW_VALIDATION}: they select states by chance; hold "
            "out more (config.dataset.validation_fraction), or none to take the last states"
        )
    return found


def warnings(
    dataset: Dataset, x: np.ndarray, config: ConfigDict, federation: Federation
) -> Iterator[str]:
    """Yield a line for data that a run does not use, or uses otherwise than the user may expect.

    `x` are the training examples without gaps; `federation` has the clients of the first repeat.
    """
    name, given = dataset.name, config.federation
    is_other = ~np.isin(dataset.y_test, dataset.y[dataset.is_labeled])
    if is_other.any():
        others = [repr(dataset.class_names[c]) for c in np.unique(dataset.y_test[is_other])]
        yield (
            f"{name}: {np.count_nonzero(is_other)} of {len(dataset.y_test)} test examples count as wrong: no "
            f"training example is of class {' or '.join(others[:8])}"
        )
    if empty := np.count_nonzero(federation.partition.sizes.sum(axis=0) == 0):
        yield (
            f"{empty} of {federation.num_clients} clients have no examples "
            "(config.federation.num_clients, partition)"
        )
    yield from scale_warnings(name, x, config)
    is_named = config.dataset.client_key or Path(config.dataset.name).suffix
    is_dealt_to_others = given.partition not in ("natural", *SCHEMES.from_outside())
    if dataset.client_names and is_named and is_dealt_to_others:
        yield (
            f"config.federation.partition={given.partition!r}: deals examples to other clients than the "
            f"{len(dataset.client_names)} that {name} names; with 'natural' and "
            "config.federation.num_clients=0 it is these"
        )


def scale_warnings(name: str, x: np.ndarray, config: ConfigDict) -> Iterator[str]:
    """Yield a line if unscaled features lose values, or differ so much that a few dominate distances.

    A feature's scale is its largest absolute value; features that are 0 everywhere have none. Only vectors
    are checked, because all entries of an image have the same unit.
    """
    if config.preprocessing.kind != "identity" or x.ndim != 2:
        return
    advice = "config.preprocessing.kind='standardized'"
    if x.dtype == np.float64:
        yield f"{name}: float32 makes different values of some features equal; use {advice}"
    # Networks standardize every feature (`Federation.normalization`), and trees ignore scales.
    chosen = methods.chosen(config)
    heed = [repr(name) for name in chosen if not methods.needs(config, name).trains]
    scales = np.max([np.abs(part).max(axis=0) for part in parts(x)], axis=0)
    large, small = int(scales.argmax()), int(np.where(scales > 0, scales, np.inf).argmin())
    if heed and scales[large] > _LARGEST_RATIO * scales[small]:
        yield (
            f"{name}: feature {large} goes up to {scales[large]:.3g}, feature {small} to "
            f"{scales[small]:.3g}; the large ones decide cosines and distances, as {', '.join(heed)} may "
            f"take: {advice} gives all the same weight"
        )


def check_private(config: ConfigDict, dataset: Dataset) -> None:
    """Refuse exact statistics of clients' rows for methods with a guarantee for these rows."""
    kind, of_kind = config.preprocessing.kind, "preprocessing.kind"
    means = "exact means and deviations of all features over all clients' rows"
    public = "use 'identity'; its network scales by public examples (federation.public_size)"
    components = "exact principal components of the features of all clients' rows"
    medians = "exact medians, over all clients' rows, of columns in which numbers are missing"
    filled = "fill the missing values in the data with public numbers"
    trained = "a model trained on clients' labels"
    statistics = (
        (of_kind, kind == "standardized", means, public),
        (of_kind, kind == "federated_features", trained, "use 'pretrained'"),
        ("preprocessing.components", config.preprocessing.components, components, "use 0"),
        ("dataset.name", dataset.has_gaps, medians, filled),
    )
    private = [name for name in methods.chosen(config) if methods.needs(config, name).private]
    for key, holds, what, instead in statistics:
        if holds and private:
            wrong = f"reveals {what}, which the epsilon of {private[0]!r} does not cover"
            raise refused(config, key, wrong, instead)
