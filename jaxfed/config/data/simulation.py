"""From a config to simulated clients: load, subsample, preprocess, deal out.

    simulation = Simulation(config)              # reads the data set
    simulation.check()                           # fails early if the config cannot work
    federation = simulation.federation(seed)     # preprocesses at the first call; one for each repeat

The subsample of examples (`jaxfed.config.data.subsampling`) depends on `config.seed` alone and is the same in
every repeat. The test split of a set without one, or with its own undone (`dataset.pooled`), is drawn in each
repeat, or once (`dataset.test_rows`). The assignment to clients, the choice of labeled examples and the
validation split depend on the repeat's seed. If the test split differs between repeats, so do the estimates
from training rows: scales, components, and medians of missing values.
All draws are stratified: they take the same share of each class, or of each natural client.

Public examples (`jaxfed.config.data.public_examples`) and those of a server with labels are drawn from the
training examples before the rest is dealt to clients.

Examples without a label in the data (y = -1) become unlabeled examples of clients. Shares and numbers of
labeled, test and validation examples refer to the other examples.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging
from flax import nnx
from ml_collections import ConfigDict

from jaxfed.config.build.networks import without_clients
from jaxfed.config.build.weights_files import weights_checksums
from jaxfed.config.clock import check_deadlines
from jaxfed.config.data import federated_features, row_statistics
from jaxfed.config.data.feasibility import (
    check_class_weights,
    check_classes,
    check_clients,
    check_enough,
    check_labels_a_class,
    check_methods,
    check_models,
    check_points,
    check_rounds,
    warn_of_empty_clients,
    warn_of_unused_clients,
)
from jaxfed.config.data.holdings import Holdings, holdings
from jaxfed.config.data.partitioning import partitioned
from jaxfed.config.data.preprocessing import (
    Parts,
    Report,
    check_copies,
    check_kind,
    is_flat,
    preprocessed,
    projection,
    scaling,
    warn_of_scales,
)
from jaxfed.config.data.public_examples import classes_to_measure_by, drawn_own, drawn_public
from jaxfed.config.data.sources import clients_set, completed_public, public_set
from jaxfed.config.data.subsampling import drawn_for_test, hold_out, subsampled, test_seed
from jaxfed.config.server_labels import drawn_for_server
from jaxfed.data import Dataset, class_counts
from jaxfed.data.encoding import RowEncoding, encoder_of
from jaxfed.data.mapped_rows import parts
from jaxfed.data.principal_components import Projection
from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation
from jaxfed.federation.execution.memory import require
from jaxfed.host.checkpoint import Checkpoints
from jaxfed.models import Model

GRAPHS = ("labeled+unlabeled", "labeled")
TESTS = ("clients", "central")

_MOST_CHECKED = 100  # repeats; each takes milliseconds
_MOST_COUNTED = 10_000  # clients in partition.json
_OF_NO_NUMBER = -1


class Simulation:
    """Examples of one experiment, and the federations made from them.

    Attributes:
        numbers: int64 [n], index of each of a federation's examples in the data set: training split from 0
            on, then the test split; -1 for examples of another, public data set.
    """

    def __init__(self, config: ConfigDict, dataset: Dataset | None = None) -> None:
        """Load the data set unless it is given (`clients_set`), and subsample it as the config requests.

        Raises:
            UsageError: the set cannot be found or read, or is smaller than requested.
        """
        self._config = config
        self._vectors: tuple[int, np.ndarray] | None = None  # seed of the test rows, features
        dataset = dataset or clients_set(config)
        self._holdings: Holdings | None = None
        self._sizes: dict[int, np.ndarray] = {}
        self._labels = np.concatenate([dataset.y, dataset.y_test, dataset.validation[1]])
        part, self.numbers = subsampled(dataset, config)
        self._with_gaps = part, public_set(config, dataset)
        self._dataset, self._public = self._completed(config.seed)
        if self._public is not None:
            self.numbers = np.pad(
                self.numbers, (0, len(self._public.y)), constant_values=_OF_NO_NUMBER
            )
        of_validation = np.arange(len(self._labels))[len(dataset.y) + len(dataset.y_test) :]
        self.numbers = np.append(self.numbers, of_validation[: len(self._dataset.validation[1])])

    def _completed(self, seed: int) -> tuple[Dataset, Dataset | None]:
        """Return the clients' and the public set; a repeat's training rows fill the gaps."""
        data, public = self._with_gaps
        if data.has_gaps:
            data = data.completed(~drawn_for_test(self._config, data, seed))
        return data, None if public is None else completed_public(public, data.gaps)

    def check(self, look: Callable[[int, Federation], None] = lambda repeat, dealt: None) -> None:
        """Run the cheap part of `federation` in advance: deal out the labels of the first 100 repeats.

        Args:
            look: called with each of these repeats, without its examples (`dealt`), once it passes.

        Raises:
            UsageError: more labels, classes or examples are requested than exist; preprocessing does not fit
                the examples, or lacks a file.
        """
        for dataset in filter(None, (self._dataset, self._public)):
            check_kind(dataset, self._config)
        if self._config.preprocessing.kind == "federated_features":
            examples = without_clients(self._dataset.x[:0], self._dataset.num_classes)
            federated_features.check(self._config, examples)
        else:
            check_models(self._dataset, self._config)
        row_statistics.check_private(self._config, self._dataset)
        if len(self._dataset.validation[1]) and not self._config.dataset.validation_fraction:
            logging.warning(
                "%s: its validation examples are not used; set config.dataset.validation_fraction above 0",
                self._dataset.name,
            )
        check_classes(self._dataset)
        check_class_weights(self._dataset, self._config)
        check_clients(self._dataset, self._config)
        for repeat in range(min(self._config.num_repeats, _MOST_CHECKED)):
            federation = self._dealt(self._config.seed + repeat)
            self._completed(self._config.seed + repeat)
            check_rounds(self._config, federation.num_clients)
            check_deadlines(self._config, federation, self._config.seed + repeat)
            check_points(self._dataset, self._config, federation)
            check_labels_a_class(self._config, federation)
            if repeat == 0:
                check_methods(self._dataset, self._config, federation)
                warn_of_empty_clients(self._dataset, self._config, federation)
                self._holdings = self._held(federation)
            look(repeat, federation)
        federation = replace(federation, room=self._room)
        clients, public = self._config.cohort_size or federation.num_clients, len(federation.public)
        what, key = f"{clients} clients' labels of them", "config.federation.public_size"
        require(4 * clients * public, what, key=key, value=public)
        check_copies(self._dataset, self._config, self._public)
        warn_of_scales(self._dataset, self._config)
        warn_of_unused_clients(self._dataset, self._config)

    def check_given(self, overrides: Sequence[str]) -> None:
        """Check that these `KEY=VALUE` have an effect with these data; see `jaxfed.config.checks.unread`.

        Raises:
            UsageError: a key of a drawn test split is set for a data set with its own.
        """
        keys = ("dataset.test_fraction=", "dataset.test_rows=by_repeat")
        for text in overrides:
            if text.startswith(keys) and len(self._dataset.y_test):
                raise UsageError(
                    f"config.{text}: nothing reads it, for {self._dataset.name} has a test split; leave it "
                    "out, or set dataset.pooled to True"
                )

    def dealt(self, seed: int) -> Federation:
        """Return the clients of the repeat with this seed without their examples: only the partition."""
        return replace(self._dealt(seed), room=self._room)

    def _dealt(self, seed: int) -> Federation:
        federation = self._federation(np.zeros((len(self.numbers), 0), np.float32), seed)
        self._sizes[seed] = federation.sizes
        return federation

    @cached_property
    def _room(self) -> np.ndarray | None:
        """The largest sizes of clients in the first 100 repeats, `Federation.room`; None for one repeat."""
        if self._config.num_repeats == 1:
            return None
        seeds = range(self._config.seed, self._config.seed + self._config.num_repeats)
        seeds = seeds[:_MOST_CHECKED]
        sizes = [self._sizes[s] if s in self._sizes else self._dealt(s).sizes for s in seeds]
        return np.array(list(zip_longest(*sizes, fillvalue=0)), np.int64).max(axis=1, initial=0)

    def federation(
        self,
        seed: int,
        report: Report = lambda done, total: None,
        folder: Path | None = None,
    ) -> Federation:
        """Return the clients of the repeat with this seed; `x` float32 [n, d], preprocessed.

        `report` receives the progress of long preprocessing. `folder` stores its resumable state, the model
        of 'federated_features'.
        """
        federation = self._without_features(seed, report)
        if self._config.preprocessing.kind != "federated_features":
            return federation
        return federated_features.with_learned_features(
            self._config,
            federation,
            seed - self._config.seed,
            Checkpoints(folder) if folder else None,
            report,
        )

    def feature_model(self, seed: int, folder: Path) -> tuple[Model, nnx.State]:
        """Return the model of 'federated_features' in the repeat with this seed; `folder` as above."""
        federation = self._without_features(seed, lambda done, total: None)
        repeat = seed - self._config.seed
        place = Checkpoints(folder)
        return federated_features.trained_model(self._config, federation, repeat, place)

    def _without_features(self, seed: int, report: Report) -> Federation:
        drawn_by = test_seed(self._config, self._dataset, seed)
        if self._vectors is None or self._vectors[0] != drawn_by:
            self._vectors = None
            self._vectors = drawn_by, preprocessed(self._parts(seed), self._config, report)
        return replace(self._federation(self._vectors[1], seed), room=self._room)

    def projection(self, seed: int) -> Projection | None:
        """Return the repeat's projection of pretrained features, if the config asks for one."""
        return projection(self._parts(seed), self._config)

    def row_encoding(self, seed: int) -> RowEncoding:
        """Return the repeat's encoding of rows from outside, up to features that networks compute."""
        return RowEncoding(
            encoder_of(self._dataset),
            self._completed(seed)[0].gaps,
            scaling(self._parts(seed), self._config),
            is_flat(self._config),
        )

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, in the order of their numbers."""
        return self._dataset.class_names

    @property
    def names(self) -> dict[str, list[str]]:
        """Names of classes and features, `Dataset.names`."""
        return self._dataset.names

    def holdings(self) -> Holdings:
        """Return numbers of examples by holder in the first repeat."""
        if self._holdings is None:
            self._holdings = self._held(self.dealt(self._config.seed))
        return self._holdings

    def row_statistics(self) -> list[str]:
        """Return lines on the exact statistics of clients' rows that a run computes, and who learns them."""
        return row_statistics.lines(self._config, self._dataset, self.holdings().public)

    def _held(self, federation: Federation) -> Holdings:
        other = self._config.seed + 1
        is_drawn = test_seed(self._config, self._dataset, other) == other
        return holdings(
            *(self._labels, federation),
            has_public_set=self._public is not None,
            test_rows="by_repeat" if is_drawn else "shared",
        )

    def data_checksums(self) -> dict[str, str]:
        """Return type, shape and checksum of the examples and labels in use, to detect changed data.

        Checksums of weights files are included (`jaxfed.config.build.weights_files`).
        """
        data = self._dataset
        arrays = {
            "x": data.x,
            "y": data.y,
            "x_test": data.x_test,
            "y_test": data.y_test,
            "client_id": data.client_id,
            "client_id_test": data.client_id_test,
            "subclass": data.subclass,
            "subclass_test": data.subclass_test,
            "x_validation": data.x_validation,
            "y_validation": data.y_validation,
        }
        if self._public is not None:
            arrays |= {"x_public": self._public.x, "y_public": self._public.y}
        found = {name: _checksum(array) for name, array in arrays.items() if array is not None}
        return found | weights_checksums(self._config)

    @property
    def origin(self) -> str:
        """Note on the origin of the examples for reports; mostly empty."""
        sets = (self._dataset, self._public)
        return "; ".join(dict.fromkeys(data.origin for data in sets if data and data.origin))

    def class_counts(self, federation: Federation) -> dict[str, Any]:
        """Return clients x classes counts of labeled, unlabeled and new points, and the classes' names.

        The server's examples and public ones have one row each. If the class of some points is unknown, the
        last class is "(unknown)". Clients of the data that have names have them in `client_names`. Of more
        than 10,000 clients, every `every`-th is counted.
        """
        every = -(-federation.num_clients // _MOST_COUNTED)
        counts: dict[str, Any] = {
            kind: class_counts(federation.y, indices[::every], federation.num_classes)
            for kind, indices in federation.partition._asdict().items()
        }
        for kind, indices in (("server", federation.server), ("public", federation.public)):
            if len(indices):
                counts[kind] = class_counts(federation.y, [indices], federation.num_classes)
        unknown = () if (federation.y >= 0).all() else ("(unknown)",)
        if names := self._client_names(federation):
            counts["client_names"] = names[::every]
        if every > 1:
            counts["every"] = every
        return {**counts, "class_names": (*self._dataset.class_names, *unknown)}

    def _client_names(self, federation: Federation) -> list[str]:
        """Return the name of each natural client, its number if it holds several or none; mostly empty."""
        data = self._dataset
        if self._config.federation.partition != "natural" or not data.client_names:
            return []
        columns = (data.client_id, data.client_id_test)
        ids = np.concatenate([column for column in columns if column is not None])
        held, last = federation.partition.joined, len(data.client_names)
        first, final = np.full(len(held), last), np.full(len(held), -1)
        np.minimum.at(first, held.owner, ids[held.joined])
        np.maximum.at(final, held.owner, ids[held.joined])
        return [
            data.client_names[own] if own == other else str(client)
            for client, (own, other) in enumerate(zip(first.tolist(), final.tolist(), strict=True))
        ]

    def _parts(self, seed: int) -> Parts:
        """Return all examples in the order of federations, with the repeat's training rows."""
        data, public = self._completed(seed)
        is_test = drawn_for_test(self._config, data, seed)
        return Parts(
            *(data.x, data.x_test, data.x[:0] if public is None else public.x),
            ~is_test if is_test.any() else slice(None),
            data.x_validation,
        )

    def _federation(self, x: np.ndarray, seed: int) -> Federation:
        data, wanted = self._dataset, self._config.federation
        before = data.y, data.y_test, classes_to_measure_by(data, self._public)
        y = np.concatenate([*before, data.validation[1]])
        held_out = hold_out(self._config, data, seed, sum(map(len, before)))
        at_server = drawn_for_server(wanted, data, held_out.train, seed)
        held_out = held_out.without(at_server)
        own = drawn_own(wanted, held_out.train, seed)
        held_out = held_out.without(own)
        public = drawn_public(wanted, data, self._public, held_out.train, seed)
        held_out = held_out._replace(train=own) if len(own) else held_out.without(public.points)
        check_enough(data, self._config, len(held_out.train) + len(held_out.new))
        federation = Federation(
            x,
            y,
            partitioned(self._config, data, held_out.train, held_out.new, seed),
            data.num_classes,
            validation=held_out.validation,
            test=held_out.test,
            server=at_server,
            public=public.points,
            public_labels=public.labels,
            num_public_classes=public.num_classes,
        )
        if wanted.reveal_labels:
            federation = federation.fully_labeled()
        if wanted.graph == "labeled":
            federation = federation.without_unlabeled()
        if wanted.left_out_client >= 0:
            federation = federation.leave_out(wanted.left_out_client)
        return federation


def _checksum(array: np.ndarray) -> str:
    crc = 0
    for part in parts(array):
        crc = zlib.crc32(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data, crc)
    return f"{array.dtype}{list(array.shape)} {crc:08x}"
