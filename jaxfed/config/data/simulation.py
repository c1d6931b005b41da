"""From a config to simulated clients: load, subsample, preprocess, deal out.

    simulation = Simulation(config)              # reads the data set
    federation = simulation.federation(seed)     # preprocesses at the first call; one for each repeat

Roles of examples are drawn first (`jaxfed.config.data.dealing`). If the test split differs between repeats,
so do the estimates from training rows: scales, components, and medians of missing values.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import logging
from ml_collections import ConfigDict

from jaxfed.config import methods
from jaxfed.config.assembly import checksums
from jaxfed.config.check import check_number_of_clients
from jaxfed.config.data.dealing import drawn_for_test, partitioned, subsampled, test_seed
from jaxfed.config.data.preprocessing import (
    FeatureTraining,
    Parts,
    Report,
    feature_training,
    is_flat,
    preprocessed,
    projection,
    scaling,
)
from jaxfed.config.keys import refused
from jaxfed.data import SCHEMES, Dataset, class_counts, load
from jaxfed.data.encoding import Projection, RowEncoding, encoder_of
from jaxfed.data.features import check_images
from jaxfed.data.loading import READERS
from jaxfed.data.mapped_rows import parts as parts_of
from jaxfed.errors import UsageError, section
from jaxfed.federation.clients import Federation
from jaxfed.host.checkpoint import Checkpoints
from jaxfed.models.encoders import num_features

_MOST_WITH_ROOM = 100  # repeats; each takes milliseconds
_MOST_COUNTED = 10_000  # clients in partition.json
_OPTIONS = ("root", "label_key", "client_key", "image_size", "drop")
_COLUMNS = (*("y", "y_test", "client_id", "client_id_test", "subclass", "subclass_test"),)


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

    @classmethod
    def of(cls, y: np.ndarray, federation: Federation) -> Holdings:
        """Count the examples of a federation whose data set has classes y, int [n], in all splits."""
        labeled, unlabeled, new = federation.partition.sizes.sum(axis=1).tolist()
        server, public = len(federation.server), len(federation.public)
        validation, test = len(federation.validation), len(federation.test) + new
        held = labeled + unlabeled + server + public + validation + test
        return cls(
            *(federation.num_clients, labeled, unlabeled, server, public, validation, test),
            dropped=len(y) - held,
            without_label=int(np.count_nonzero(y < 0)),
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


class Simulation:
    """Examples of one experiment, and the federations made from them.

    `numbers`, int64 [n], is the index of each of a federation's examples in the data set: training split from
    0 on, then the test split. `names` and `origin` are those of the data set.
    """

    def __init__(self, config: ConfigDict, dataset: Dataset | None = None) -> None:
        """Load the data set unless it is given (`clients_set`), subsample and check it."""
        self._config = config
        self._newest: dict[str, tuple[int, Any]] = {}  # what -> seed and result
        dataset = dataset or clients_set(config)
        self._labels = np.concatenate([dataset.y, dataset.y_test])
        part, self.numbers = subsampled(dataset, config)
        self._dataset, self.names, self.origin = part, part.names, part.origin
        _check_kind(part, config)
        _check_private(config, part)
        self._parts(config.seed)  # refuses gaps that nothing can fill
        if len(classes := np.unique(part.y[part.is_labeled])) < 2:
            wrong = f"its labels have {len(classes)} classes"
            raise refused(config, "dataset.name", wrong, "two are needed")

    def _once(self, what: str, seed: int, make: Callable[[], Any]) -> Any:
        """Return the newest result of this kind if it is of this seed, else make it."""
        if self._newest.get(what, (None,))[0] != seed:
            self._newest.pop(what, None)  # two at a time may not fit into memory
            self._newest[what] = seed, make()
        return self._newest[what][1]

    def warn(self) -> None:
        """Log warnings about classes without labels at clients, and clients other than the data name."""
        data, wanted, federation = (
            self._dataset,
            self._config.federation,
            self.partitioned(self._config.seed),
        )
        labeled = federation.y[np.concatenate(federation.partition.labeled)]
        missing = np.setdiff1d(data.y[data.is_labeled], labeled)
        if len(labeled) and len(missing):
            names = " or ".join(repr(data.class_names[c]) for c in missing[:8])
            logging.warning(
                f"no client has a label of class {names}: nothing is predicted to be of it"
            )
        is_named = self._config.dataset.client_key or Path(self._config.dataset.name).suffix
        is_drawn = wanted.partition not in ("natural", *SCHEMES.from_outside())
        if data.client_names and is_named and is_drawn:
            logging.warning(
                f"config.federation.partition={wanted.partition!r}: other clients than those that "
                f"{data.name} names; these are 'natural', with config.federation.num_clients=0"
            )

    def partitioned(self, seed: int) -> Federation:
        """Return the clients of the repeat with this seed without their examples: only the partition."""

        def make() -> Federation:
            federation = partitioned(self._config, self._dataset, seed)
            _check_partition(self._config, federation)
            return replace(federation, room=self._room)

        return self._once("partitioned", seed, make)

    @cached_property
    def _room(self) -> np.ndarray | None:
        """The largest sizes of clients in the first 100 repeats, `Federation.room`; None for one repeat."""
        first, number = self._config.seed, self._config.num_repeats
        if number == 1:
            return None
        seeds = range(first, first + min(number, _MOST_WITH_ROOM))
        sizes = [partitioned(self._config, self._dataset, seed).sizes for seed in seeds]
        return np.array(list(zip_longest(*sizes, fillvalue=0)), np.int64).max(axis=1, initial=0)

    def federation(
        self, seed: int, report: Report = lambda done, total: None, folder: Path | None = None
    ) -> Federation:
        """Return the clients of the repeat with this seed; `x` float32 [n, d], preprocessed.

        `report` receives the progress of long preprocessing. `folder` stores its resumable state.
        """

        def make() -> Federation:
            if self._config.preprocessing.kind != "federated_features":
                return self._with_examples(seed, report)
            checkpoints = Checkpoints(folder) if folder else None
            return self.feature_training(seed).with_features(checkpoints, report)

        return self._once("federation", seed, make)

    def feature_training(self, seed: int) -> FeatureTraining:
        """Return the training of kind='federated_features' in this seed's repeat, before its first round."""

        def make() -> FeatureTraining:
            federation = self._with_examples(seed)
            return feature_training(self._config, federation, seed - self._config.seed)

        return self._once("training", seed, make)

    def _with_examples(self, seed: int, report: Report = lambda done, total: None) -> Federation:
        federation, drawn_by = self.partitioned(seed), test_seed(self._config, self._dataset, seed)
        x = self._once("x", drawn_by, lambda: preprocessed(self._parts(seed), self._config, report))
        return replace(federation, x=x)

    def _parts(self, seed: int) -> Parts:
        data = self._dataset
        is_test = drawn_for_test(self._config, data, seed)
        gaps = data.gaps(~is_test)
        fill = gaps.filled if gaps else lambda x: x
        is_seen = ~is_test if is_test.any() else slice(None)
        return Parts(fill(data.x), fill(data.x_test), is_seen, gaps)

    def projection(self, seed: int) -> Projection | None:
        """Return the repeat's projection of pretrained features, if the config asks for one."""
        return projection(self._parts(seed), self._config)

    def row_encoding(self, seed: int) -> RowEncoding:
        """Return the repeat's encoding of rows from outside, up to features that networks compute."""
        parts, config = self._parts(seed), self._config
        scale, encoder = scaling(parts, config), encoder_of(self._dataset)
        return RowEncoding(encoder, parts.gaps, scale, is_flat(config))

    def holdings(self) -> Holdings:
        """Return numbers of examples by holder in the first repeat."""
        return Holdings.of(self._labels, self.partitioned(self._config.seed))

    def data_checksums(self) -> dict[str, str]:
        """Return type, shape and checksum of examples, labels and weights in use, to detect changed data."""
        parts = self._parts(self._config.seed)
        arrays = {name: getattr(self._dataset, name) for name in _COLUMNS}
        arrays |= {"x": parts.train, "x_test": parts.test}
        checksum_of = {
            name: _checksum(array) for name, array in arrays.items() if array is not None
        }
        return checksum_of | checksums(self._config)

    def class_counts(self, federation: Federation) -> dict[str, Any]:
        """Return clients x classes counts of labeled, unlabeled and new points, and the classes' names.

        The server's examples and public ones have one row each. Points of unknown class are in a last class.
        Natural clients have names in `client_names`. Of more than 10,000 clients, every `every`-th counts.
        """
        every = -(-federation.num_clients // _MOST_COUNTED)
        rows = {kind: each[::every] for kind, each in federation.partition._asdict().items()}
        for kind, points in (("server", federation.server), ("public", federation.public)):
            if len(points):
                rows[kind] = [points]
        counts: dict[str, Any] = {
            kind: class_counts(federation.y, each, federation.num_classes)
            for kind, each in rows.items()
        }
        if names := self._client_names(federation):
            counts["client_names"] = names[::every]
        if every > 1:
            counts["every"] = every
        unknown = () if (federation.y >= 0).all() else ("(unknown)",)
        return {**counts, "class_names": (*self._dataset.class_names, *unknown)}

    def _client_names(self, federation: Federation) -> list[str]:
        data, wanted = self._dataset, self._config.federation
        if wanted.partition != "natural" or wanted.num_clients or not data.client_names:
            return []
        columns = (data.client_id, data.client_id_test)
        ids = np.concatenate([column for column in columns if column is not None])
        held = federation.partition.joined
        names = list(map(str, range(len(held))))  # of clients that hold nothing
        for client, first in zip(*np.unique(held.owner, return_index=True), strict=True):
            names[client] = data.client_names[ids[held.joined[first]]]
        return names


def _checksum(array: np.ndarray) -> str:
    crc = 0
    for part in parts_of(array):
        crc = zlib.crc32(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data, crc)
    return f"{array.dtype}{list(array.shape)} {crc:08x}"


def _check_kind(dataset: Dataset, config: ConfigDict) -> None:
    wanted, x = config.preprocessing, dataset.x
    if wanted.kind == "pretrained":
        try:
            check_images(x)
        except UsageError as error:
            raise refused(config, "preprocessing.kind", f"{dataset.name}: {error}") from error
        d = num_features(wanted.network) if wanted.components else 0
        if wanted.components > (most := min(d, len(x))):
            allowed = f"use integers up to {most}, the numbers of features and of images"
            raise refused(config, "preprocessing.components", "", allowed)


def _check_partition(config: ConfigDict, federation: Federation) -> None:
    if not config.federation.num_clients:  # otherwise `jaxfed.config.check` has checked it
        check_number_of_clients(config, federation.num_clients)
    num_labeled, _, num_new = federation.partition.sizes.sum(axis=1)
    for key, number in (
        ("federation.labeled_fraction", num_labeled + len(federation.server)),
        ("dataset.test_fraction", len(federation.test) + num_new),
        ("dataset.validation_fraction", len(federation.validation)),
    ):
        section, _, name = key.partition(".")
        if not number and (section == "federation" or config[section][name]):
            raise refused(config, key, "no example with a label is left for it", "raise it")


def _check_private(config: ConfigDict, dataset: Dataset) -> None:
    """Refuse exact statistics of clients' rows, which a model contains, for methods with a guarantee."""
    wanted, public = config.preprocessing, "use 'identity', which scales by public examples"
    statistics = (
        ("preprocessing.kind", wanted.kind == "standardized", "exact means and deviations", public),
        ("preprocessing.kind", wanted.kind == "federated_features", "a model", "use 'pretrained'"),
        ("preprocessing.components", wanted.components, "exact principal components", "use 0"),
        (
            "dataset.name",
            dataset.has_gaps,
            "exact medians",
            "fill missing values with public numbers",
        ),
    )
    private = [name for name in methods.chosen(config) if methods.needs(config, name).private]
    for key, holds, what, instead in statistics:
        if holds and private:
            wrong = f"reveals {what} of all clients' rows, which the epsilon of {private[0]!r} does not cover"
            raise refused(config, key, wrong, instead)


def clients_set(config: ConfigDict) -> Dataset:
    """Load the data set `dataset.name`; a registered reader receives the section of its name."""
    wanted, name = config.dataset, config.dataset.name
    keys = {key: key for key in wanted} | {"name_or_path": "name"}
    options = config.get(name) if name in READERS else None
    keywords: dict[str, Any] = {key: wanted[key] or None for key in _OPTIONS}
    try:
        with section("config.dataset", keys):
            return load(name, options=options, **keywords)
    except UsageError as error:
        if not error.key:  # what is wrong is the set's content
            error.key = "config.dataset.name"
        raise
