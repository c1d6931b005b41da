"""From a config to simulated clients: load, take a part, preprocess, deal out.

    simulation = Simulation(config)              # reads the data set
    simulation.check()                           # what cannot work shows now
    federation = simulation.federation(seed)     # preprocesses at the first call; one a repeat

The examples (`jaxfed.config.taken`) and the test split of a set that comes without one, or whose own is
undone (`dataset.pooled`), depend on `config.seed` alone and are the same in every repeat. Who holds which,
which carry labels, and the validation split depend on the repeat's seed. All of these are stratified: they
take the same share of each class, or of each of the data's own clients.

Public examples (`jaxfed.config.public_examples`) and those of a server with labels are drawn from what is
left to train on, before clients are dealt the rest.

Examples of which the data themselves have no label (y = -1) are some client's unlabeled ones. Shares and
numbers of labels, of points to test on and to validate on are counted over the others.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from jaxfed.config import memory_demand
from jaxfed.config.feasibility import (
    check_class_weights,
    check_clients,
    check_enough,
    check_labels_a_class,
    check_models,
    check_points,
    check_rounds,
    warn_of_empty_clients,
    warn_of_unused_learners,
)
from jaxfed.config.holdings import Holdings, holdings
from jaxfed.config.preprocessing import (
    PREPROCESSING,
    Parts,
    Report,
    check_learned,
    check_pretrained,
    to_nobody,
    warn_of_scales,
    with_learned_features,
)
from jaxfed.config.public_examples import classes_to_measure_by, drawn_own, drawn_public
from jaxfed.config.server_labels import drawn_for_server
from jaxfed.config.sources import clients_set, public_set
from jaxfed.config.taken import drawn_for_test, taken
from jaxfed.data import Dataset, Partition, class_counts, partition
from jaxfed.data.strata import stratified
from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation

GRAPHS = ("labeled+unlabeled", "labeled")
TESTS = ("clients", "central")

_MOST_CHECKED = 100  # repeats; each takes milliseconds
_OF_NO_NUMBER = -1


class Simulation:
    """The examples of one experiment and the federations made of them.

    Attributes:
        numbers: int64 [n], what number each example of a federation has in the data set: of the training
            split from 0 on, of the test split behind it; -1 those of another, public data set.
    """

    def __init__(self, config: ConfigDict, dataset: Dataset | None = None) -> None:
        """Load the data set, unless it is given (`clients_set`), and take the part that the config asks for.

        Raises:
            UsageError: the set cannot be found or read, or is smaller than asked for.
        """
        self._config = config
        self._vectors: np.ndarray | None = None
        dataset = dataset or clients_set(config)
        self._public = public_set(config, dataset)
        self._holdings: Holdings | None = None
        self._labels = np.concatenate([dataset.y, dataset.y_test])
        self._dataset, self.numbers = taken(dataset, config)
        if self._dataset.has_gaps:
            self._dataset = self._dataset.completed(~drawn_for_test(config, self._dataset))
        if self._public is not None:
            self.numbers = np.pad(
                self.numbers, (0, len(self._public.y)), constant_values=_OF_NO_NUMBER
            )

    def check(self, look: Callable[[int, Federation], None] = lambda repeat, dealt: None) -> None:
        """Try what is cheap of all that `federation` will do: deal out the first 100 repeats' labels.

        Args:
            look: shown each of these repeats, without its examples (`dealt`), when it is in order.

        Raises:
            UsageError: more labels, classes or examples asked for than there are; preprocessing
                that does not fit the examples, or lacks a file.
        """
        if self._config.preprocessing.kind == "pretrained":
            for dataset in filter(None, (self._dataset, self._public)):
                check_pretrained(dataset, self._config)
        if self._config.preprocessing.kind == "federated_features":
            check_learned(self._dataset, self._config)
        else:
            check_models(self._dataset, self._config)
        check_class_weights(self._dataset, self._config)
        check_clients(self._dataset, self._config)
        for repeat in range(min(self._config.num_repeats, _MOST_CHECKED)):
            federation = self.dealt(self._config.seed + repeat)
            check_rounds(self._config, federation.num_clients)
            check_points(self._dataset, self._config, federation)
            check_labels_a_class(self._config, federation)
            if repeat == 0:
                warn_of_empty_clients(federation)
                self._holdings = self._held(federation)
            look(repeat, federation)
        memory_demand.check(self._config, federation, math.prod(self._dataset.x.shape[1:]))
        warn_of_scales(self._dataset, self._config)
        warn_of_unused_learners(self._config)

    def check_given(self, overrides: Sequence[str]) -> None:
        """Check that these `KEY=VALUE` count for these data; `jaxfed.config.unread` has what needs no data.

        Raises:
            UsageError: a share to test on, of a set that has a test split.
        """
        for text in overrides:
            if text.startswith("dataset.test_fraction=") and len(self._dataset.y_test):
                raise UsageError(
                    f"config.{text}: nothing reads it, for {self._dataset.name} has a test split; leave it "
                    "out, or set dataset.pooled to True"
                )

    def dealt(self, seed: int) -> Federation:
        """The clients of the repeat with this seed, without their examples: who holds which, in no time."""
        return self._federation(np.zeros((len(self.numbers), 0), np.float32), seed)

    def federation(
        self, seed: int, report: Report = to_nobody, folder: Path | None = None
    ) -> Federation:
        """The clients of the repeat with this seed; `x` float32 [n, d], preprocessed.

        `report` hears of preprocessing that takes a while; `folder` keeps what can be resumed of it (the
        model behind 'federated_features').
        """
        kind = self._config.preprocessing.kind
        if self._vectors is None:
            self._vectors = PREPROCESSING[kind](self._parts(), self._config, report)
        federation = self._federation(self._vectors, seed)
        if kind == "federated_features":
            return with_learned_features(federation, self._config, seed, report, folder)
        return federation

    def holdings(self) -> Holdings:
        """Numbers of examples by who holds them, in the first repeat."""
        if self._holdings is None:
            self._holdings = self._held(self.dealt(self._config.seed))
        return self._holdings

    def _held(self, federation: Federation) -> Holdings:
        return holdings(self._labels, federation, has_public_set=self._public is not None)

    def data_checksums(self) -> dict[str, str]:
        """Type, shape and checksum of the examples and labels in use: other data has others.

        With them go the checksums of weights files (`jaxfed.config.weights_files`).
        """
        # Here, because Flax takes half a second to import, which a mistake need not wait for.
        from jaxfed.config.weights_files import weights_checksums

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
        }
        if self._public is not None:
            arrays |= {"x_public": self._public.x, "y_public": self._public.y}
        found = {name: _checksum(array) for name, array in arrays.items() if array is not None}
        return found | weights_checksums(self._config)

    @property
    def origin(self) -> str:
        """What reports are to say of where the examples come from; mostly nothing."""
        sets = (self._dataset, self._public)
        return "; ".join(dict.fromkeys(data.origin for data in sets if data and data.origin))

    def class_counts(self, federation: Federation) -> dict[str, Any]:
        """Clients x classes counts of labeled, unlabeled and new points, and the classes' names.

        Of the server's examples and of public ones there is one row. The last class is "(unknown)" where
        there are points of which nobody knows it.
        """
        counts = {
            kind: class_counts(federation.y, indices, federation.num_classes)
            for kind, indices in federation.partition._asdict().items()
        }
        for kind, indices in (("server", federation.server), ("public", federation.public)):
            if len(indices):
                counts[kind] = class_counts(federation.y, [indices], federation.num_classes)
        unknown = () if (federation.y >= 0).all() else ("(unknown)",)
        return {**counts, "class_names": (*self._dataset.class_names, *unknown)}

    def _parts(self) -> Parts:
        """All examples, in the order in which federations number them."""
        data = self._dataset
        public = data.x[:0] if self._public is None else self._public.x
        is_test = drawn_for_test(self._config, data)
        return Parts(data.x, data.x_test, public, ~is_test if is_test.any() else slice(None))

    def _federation(self, x: np.ndarray, seed: int) -> Federation:
        data, wanted = self._dataset, self._config.federation
        y = np.concatenate([data.y, data.y_test, classes_to_measure_by(data, self._public)])
        held_out = _hold_out(self._config, data, seed)
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
            self._partition(seed, held_out),
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

    def _partition(self, seed: int, held_out: HeldOut) -> Partition:
        data, wanted, train = self._dataset, self._config.federation, held_out.train
        try:
            dealt = partition(
                data.y[train],
                num_clients=wanted.num_clients or None,
                quantity=None if wanted.quantity == "default" else wanted.quantity,
                quantity_parameter=wanted.quantity_parameter,
                min_size=wanted.min_size,
                num_labeled_clients=wanted.num_labeled_clients or None,
                skew=wanted.skew,
                seed=seed,
                **_scheme(wanted, data, train),
                **_labels(wanted),
                **_new_points(data, held_out.new, wanted.partition),
            )
        except UsageError as error:
            raise UsageError(_by_key(str(error), wanted)) from error
        # Indices count the training examples first; those of new points, if any, go on after them.
        source = np.concatenate([train, held_out.new])
        return Partition(*(tuple(source[indices] for indices in clients) for clients in dealt))


def _checksum(array: np.ndarray) -> str:
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return f"{array.dtype}{list(array.shape)} {zlib.crc32(content):08x}"


class HeldOut(NamedTuple):
    """Indices into the examples, training split first: what clients share, and what is held out.

    The test split is either clients' new points or the central test set.
    """

    train: np.ndarray
    validation: np.ndarray
    new: np.ndarray
    test: np.ndarray

    def without(self, points: np.ndarray) -> HeldOut:
        """The same, but these points are no client's."""
        return self._replace(train=self.train[~np.isin(self.train, points)])


def _hold_out(config: ConfigDict, data: Dataset, seed: int) -> HeldOut:
    """Set aside the test split, the same for every seed, and the validation split."""
    is_test = drawn_for_test(config, data)
    rest = np.flatnonzero(~is_test)
    is_validation = np.zeros(len(rest), bool)
    known = np.flatnonzero(data.is_labeled[rest])
    num_validation = round(config.dataset.validation_fraction * len(known))
    rng = np.random.default_rng((seed, 2))
    is_validation[known] = stratified(data.y[rest[known]], num_validation, rng)
    after_training = np.arange(len(data.y), len(data.y) + len(data.y_test))
    test = after_training if len(data.y_test) else np.flatnonzero(is_test)
    nothing = test[:0]
    is_central = config.federation.test == "central"
    return HeldOut(
        train=rest[~is_validation],
        validation=rest[is_validation],
        new=nothing if is_central else test,
        test=test if is_central else nothing,
    )


def _scheme(wanted: ConfigDict, data: Dataset, train: np.ndarray) -> dict[str, Any]:
    """The scheme and what belongs to it alone."""
    own: dict[str, Any] = {
        "dirichlet": {"dirichlet_alpha": wanted.dirichlet_alpha},
        "dirichlet_mixture": {
            key: wanted[key]
            for key in ("dirichlet_alpha", "dirichlet_alpha_rest", "dirichlet_share")
        },
        "classes_per_client": {
            "classes_per_client": wanted.classes_per_client,
            "assignment": wanted.assignment,
        },
        "table": {"table": wanted.table} if wanted.table else {},
        "natural": {"client_id": None if data.client_id is None else data.client_id[train]},
        "subclasses": {"subclass": None if data.subclass is None else data.subclass[train]},
    }
    return {"scheme": wanted.partition, **own.get(wanted.partition, {})}


def _by_key(message: str, wanted: ConfigDict) -> str:
    """A message of `partition` that begins with the name of an argument, by the config's key for it."""
    word = re.split(r"\W", message, maxsplit=1)[0]
    key = {"scheme": "partition"}.get(word, word)
    return f"config.federation.{key}{message[len(word) :]}" if key in wanted else message


def _labels(wanted: ConfigDict) -> dict[str, Any]:
    """Which of the three ways to say how many labels clients have is in use."""
    if wanted.labels_at == "server":
        return {"labeled_fraction": 0.0}
    if wanted.labeled_per_class:
        return {"labeled_per_class": wanted.labeled_per_class}
    if wanted.num_labeled:
        return {"num_labeled": wanted.num_labeled}
    return {"labeled_fraction": wanted.labeled_fraction}


def _new_points(data: Dataset, new: np.ndarray, scheme: str) -> dict[str, Any]:
    """The points that clients want labeled."""
    if not len(new):
        return {}
    of_the_scheme = {"natural": "client_id", "subclasses": "subclass"}.get(scheme)
    found: dict[str, Any] = {"new_y": data.y_test if len(data.y_test) else data.y[new]}
    if of_the_scheme is not None:
        column = getattr(data, f"{of_the_scheme}_test" if len(data.y_test) else of_the_scheme)
        is_drawn = column is not None and not len(data.y_test)
        found[f"new_{of_the_scheme}"] = column[new] if is_drawn else column
    return found
