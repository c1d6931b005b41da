"""From a config to simulated clients: load, subsample, preprocess, deal out.

    simulation = Simulation(config)              # reads the data set
    federation = simulation.federation(seed)     # preprocesses at the first call; one for each repeat

Roles of examples are drawn first (`jaxfed.config.data.roles`): the subsample, and the test split of a set
without one, by `config.seed` or in each repeat. Validation, the server's, public and clients' examples depend
on the repeat's seed. If the test split differs between repeats, so do the estimates from training rows:
scales, components, and medians of missing values. Draws for testing, validation and a server are stratified:
they take the same share of each class, or of each natural client.

Examples without a label in the data (y = -1) become unlabeled examples of clients. Shares and numbers of
labeled, test and validation examples refer to the other examples.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging
from ml_collections import ConfigDict

from jaxfed.config.build.networks import checksums
from jaxfed.config.data import row_statistics
from jaxfed.config.data.feasibility import check_data, check_dealt, warnings
from jaxfed.config.data.federated_features import FeatureTraining, feature_training
from jaxfed.config.data.holdings import Holdings, holdings
from jaxfed.config.data.partitioning import partitioned
from jaxfed.config.data.preprocessing import (
    Parts,
    Report,
    is_flat,
    preprocessed,
    projection,
    scaling,
)
from jaxfed.config.data.roles import drawn_for_test, roles_of, subsampled, test_seed
from jaxfed.config.data.sources import clients_set, completed_public, public_set
from jaxfed.data import Dataset, class_counts
from jaxfed.data.encoding import RowEncoding, encoder_of
from jaxfed.data.mapped_rows import parts
from jaxfed.data.principal_components import Projection
from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation
from jaxfed.host.checkpoint import Checkpoints

_MOST_WITH_ROOM = 100  # repeats; each takes milliseconds
_MOST_COUNTED = 10_000  # clients in partition.json
_OF_NO_NUMBER = -1
_ARRAYS = (
    *("x", "y", "x_test", "y_test", "client_id", "client_id_test", "subclass", "subclass_test"),
    *("x_validation", "y_validation"),
)


class Simulation:
    """Examples of one experiment, and the federations made from them.

    The data set is checked against the config when the object is made. The clients of a repeat are checked
    when they are made: those of the first repeat before a run makes its workdir, those of a later one when it
    begins.

    Attributes:
        numbers: int64 [n], index of each of a federation's examples in the data set: training split from 0
            on, then the test split; -1 for examples of another, public data set.
    """

    def __init__(self, config: ConfigDict, dataset: Dataset | None = None) -> None:
        """Load the data set unless it is given (`clients_set`), and subsample it as the config requests.

        Raises:
            UsageError: the set cannot be found or read, is smaller than requested, has one class, or its
                examples are not those of `preprocessing.kind`; a method's guarantee does not cover statistics
                of clients' rows.
        """
        self._config = config
        self._vectors: tuple[int, np.ndarray] | None = None  # seed of the test rows, features
        self._dealt: tuple[int, Federation] | None = None
        self._made: tuple[int, Federation] | None = None
        self._features: tuple[int, FeatureTraining] | None = None
        dataset = dataset or clients_set(config)
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
        check_data(self._dataset, config)

    def _completed(self, seed: int) -> tuple[Dataset, Dataset | None]:
        """Return the clients' and the public set; a repeat's training rows fill the gaps."""
        data, public = self._with_gaps
        if data.has_gaps:
            data = data.completed(~drawn_for_test(self._config, data, seed))
        return data, None if public is None else completed_public(public, data.gaps)

    def warn(self) -> None:
        """Log warnings about data that the first repeat does not use, or uses in an unexpected way."""
        for line in warnings(self._dataset, self._config, self.dealt(self._config.seed)):
            logging.warning("%s", line)

    def check_given(self, overrides: Sequence[str]) -> None:
        """Check that these `KEY=VALUE` have an effect with these data; see `jaxfed.config.checks.reading`.

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
        """Return the clients of the repeat with this seed without their examples: only the partition.

        Raises:
            UsageError: more labels, clients or examples are requested than exist; a round, a deadline or the
                memory does not suffice for these clients.
        """
        if self._dealt is None or self._dealt[0] != seed:
            federation = replace(self._deal(seed), room=self._room)
            check_dealt(self._dataset, self._config, federation, seed)
            self._dealt = seed, federation
        return self._dealt[1]

    @cached_property
    def _room(self) -> np.ndarray | None:
        """The largest sizes of clients in the first 100 repeats, `Federation.room`; None for one repeat."""
        if self._config.num_repeats == 1:
            return None
        seeds = range(self._config.seed, self._config.seed + self._config.num_repeats)
        sizes = [self._deal(seed).sizes for seed in seeds[:_MOST_WITH_ROOM]]
        return np.array(list(zip_longest(*sizes, fillvalue=0)), np.int64).max(axis=1, initial=0)

    def federation(
        self,
        seed: int,
        report: Report = lambda done, total: None,
        folder: Path | None = None,
    ) -> Federation:
        """Return the clients of the repeat with this seed; `x` float32 [n, d], preprocessed.

        The last repeat's clients are cached. `report` receives the progress of long preprocessing. `folder`
        stores its resumable state, the model of 'federated_features'.

        Raises:
            UsageError: as `dealt`; preprocessing lacks a file or memory, or its training diverges.
        """
        if self._made is None or self._made[0] != seed:
            self._made = None
            if self._config.preprocessing.kind == "federated_features":
                training = self.feature_training(seed)
                made = training.with_features(Checkpoints(folder) if folder else None, report)
            else:
                made = self._with_examples(seed, report)
            self._made = seed, made
        return self._made[1]

    def feature_training(self, seed: int) -> FeatureTraining:
        """Return the training of kind='federated_features' in this seed's repeat, before its first round."""
        if self._features is None or self._features[0] != seed:
            federation = self._with_examples(seed)
            repeat = seed - self._config.seed
            self._features = seed, feature_training(self._config, federation, repeat)
        return self._features[1]

    def _with_examples(self, seed: int, report: Report = lambda done, total: None) -> Federation:
        """Return the clients with the examples that models take first."""
        dealt = self.dealt(seed)
        drawn_by = test_seed(self._config, self._dataset, seed)
        if self._vectors is None or self._vectors[0] != drawn_by:
            self._vectors = None
            self._vectors = drawn_by, preprocessed(self._parts(seed), self._config, report)
        return replace(dealt, x=self._vectors[1])

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
        other = self._config.seed + 1
        is_drawn = test_seed(self._config, self._dataset, other) == other
        return holdings(
            *(self._labels, self.dealt(self._config.seed)),
            has_public_set=self._public is not None,
            test_rows="by_repeat" if is_drawn else "shared",
        )

    def row_statistics(self) -> list[str]:
        """Return lines on the exact statistics of clients' rows that a run computes, and who learns them."""
        return row_statistics.lines(self._config, self._dataset, self.holdings().public)

    def data_checksums(self) -> dict[str, str]:
        """Return type, shape and checksum of the examples and labels in use, to detect changed data.

        Checksums of weights files are included (`jaxfed.config.build.networks`).
        """
        arrays = {name: getattr(self._dataset, name) for name in _ARRAYS}
        if self._public is not None:
            arrays |= {"x_public": self._public.x, "y_public": self._public.y}
        found = {name: _checksum(array) for name, array in arrays.items() if array is not None}
        return found | checksums(self._config)

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

    def _deal(self, seed: int) -> Federation:
        """Return the clients of a repeat, with examples of no features."""
        data, other, wanted = self._dataset, self._public, self._config.federation
        known_to_measure = data.y[:0]
        if other is not None:  # of other classes, none is
            is_same = other.class_names == data.class_names
            known_to_measure = other.y if is_same else np.full_like(other.y, -1)
        roles = roles_of(self._config, data, other, seed)
        of_public: dict[str, Any] = {"public": roles.public}
        if wanted.public_labeled and len(roles.public):
            source, first = data, 0
            if other is not None:
                source, first = other, len(data.y) + len(data.y_test)
            of_public["public_labels"] = source.y[roles.public - first].astype(np.int32)
            of_public["num_public_classes"] = source.num_classes
        federation = Federation(
            np.zeros((len(self.numbers), 0), np.float32),
            np.concatenate([data.y, data.y_test, known_to_measure, data.validation[1]]),
            partitioned(self._config, data, roles.clients, roles.new, seed),
            data.num_classes,
            validation=roles.validation,
            test=roles.test,
            server=roles.server,
            **of_public,
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
