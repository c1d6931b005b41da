"""The simulated clients: their examples, and which of these carry labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from jaxfed.data.dataset import UNLABELED as UNLABELED
from jaxfed.data.dataset import Partition
from jaxfed.data.labels import read_labels
from jaxfed.errors import UsageError
from jaxfed.federation.census import Census, census_of, counts_of, most_of_a_class
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.feature_statistics import added, feature_sums, mean_and_deviation
from jaxfed.federation.ragged import length_for, stacked

_PADDING_ALLOWED = 2.0  # ratio of padded rows to examples above which examples are `Ragged`
_SMALL = 4096  # rows up to which the cost of padding is negligible


def _no_points() -> np.ndarray:
    return np.zeros(0, np.int64)


def _pair(part: object, name: str) -> tuple[npt.ArrayLike, npt.ArrayLike]:
    """Return examples and labels of a given pair."""
    if isinstance(part, tuple | list) and len(part) == 2:
        return part[0], part[1]
    raise UsageError(
        f"from_clients: {name} is {type(part).__name__}; use a pair (examples, labels)"
    )


class _Examples:
    """Concatenation of arrays [n_i, ...] and labels [n_i]."""

    def __init__(self) -> None:
        self.x: list[np.ndarray] = []
        self.y: list[np.ndarray] = []
        self._count = 0

    def add(self, x: npt.ArrayLike, y: npt.ArrayLike) -> np.ndarray:
        """Add examples, and return their row numbers, int64 [n_i]."""
        if np.ma.is_masked(x):
            raise UsageError(
                "from_clients: examples are a masked array; fill its gaps first, x.filled(VALUE)"
            )
        x, y = np.asarray(x), np.ma.asarray(y) if np.ma.isMaskedArray(y) else np.asarray(y)
        if x.dtype.kind not in "biuf":
            raise UsageError(f"from_clients: examples of type {x.dtype}; numbers are needed")
        first = self.x[0] if self.x else x
        if (x.dtype == np.uint8) != (first.dtype == np.uint8):
            raise UsageError(
                f"from_clients: some examples are {first.dtype} and some {x.dtype}; bytes 0..255 and numbers "
                "of another scale do not go together: give all parts the same type"
            )
        shape = first.shape[1:]
        if x.ndim < 2 or x.shape[1:] != shape:
            raise UsageError(
                f"from_clients: examples [n, ...] of one shape are needed; here are {x.shape[1:]} "
                f"and {shape}"
            )
        if y.shape != x.shape[:1]:
            raise UsageError(
                f"from_clients: labels of shape {y.shape}, {y.dtype}, for {len(x)} examples; one integer "
                "each is needed, -1 for unlabeled"
            )
        (labels,) = read_labels([y], "from_clients", are_known=True)
        if labels.values.dtype.kind not in "biu":
            name = str(labels.values[labels.is_labeled][0])
            raise UsageError(
                f"from_clients: label {name!r} is a name; number the classes from 0, -1 is unlabeled"
            )
        with np.errstate(over="ignore"):  # to inf
            if x.dtype.kind == "f" and not np.isfinite(x.astype(np.float32, copy=False)).all():
                raise UsageError(
                    "from_clients: examples have values that are nan or infinite in float32; every value "
                    "must be finite"
                )
        self.x.append(x)
        self.y.append(np.where(labels.is_labeled, labels.values, UNLABELED).astype(np.int32))
        self._count += len(x)
        return np.arange(self._count - len(x), self._count)


@dataclass(frozen=True)
class Federation:
    """All clients' examples in one array, and each client's share of them as indices.

    A client's examples are ordered labeled, unlabeled, new. `new` is what Section 4.1 of the XCLP
    paper calls X_new: points the client wants labeled, held out from every training use, on which
    `test_accuracy` is measured.

    Attributes:
        x: [n, ...], the examples of all clients.
        y: int32 [n], the true classes, -1 if unknown: only some of the unlabeled and the public points.
            Algorithms see them through `cohort` only, labeled ones only.
        partition: indices into `x` and `y`, per client: labeled, unlabeled and new.
        num_classes: C.
        validation: int64 indices of examples that no client holds, by which states are selected.
        test: int64 indices of examples that no client holds, for the final measure.
        server: int64 indices of labeled examples that the server holds and no client; empty if labels are
            at clients.
        public: int64 indices of examples that everybody has, clients and server, without their labels.
            Their classes are in `y`, for evaluation; a method receives `public_examples`.
        public_labels: int32 [n_u], labels of the public examples if everybody has these, too (FedMD's
            public data); else None.
        num_public_classes: number of classes of `public_labels`. They are the classes 0..C-1 themselves, or
            others if the public examples are another data set's and `y` is -1.
        predicted: int32 [n], classes by the trained model whose features `x` are; None if `x` are others.
        census: counts of all clients' examples if this is one side of a network, which holds its own examples
            alone; None: all clients' examples are here.
    """

    x: np.ndarray
    y: np.ndarray
    partition: Partition
    num_classes: int
    validation: np.ndarray = field(default_factory=_no_points)
    test: np.ndarray = field(default_factory=_no_points)
    server: np.ndarray = field(default_factory=_no_points)
    public: np.ndarray = field(default_factory=_no_points)
    public_labels: np.ndarray | None = None
    num_public_classes: int = 0
    predicted: np.ndarray | None = None
    census: Census | None = None

    @classmethod
    def from_clients(
        cls,
        clients: Iterable[tuple[npt.ArrayLike, npt.ArrayLike]],
        *,
        test: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
        validation: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
        new: Iterable[tuple[npt.ArrayLike, npt.ArrayLike]] | None = None,
        server: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
        public: npt.ArrayLike | tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
        public_labeled: bool = False,
        num_classes: int | None = None,
    ) -> Federation:
        """Build a federation from the clients' arrays.

        Args:
            clients: each client's examples [n_j, ...] and labels int [n_j]; -1 is unlabeled.
            test: examples that no client holds, and their classes, to evaluate trained models.
            validation: the same, to select models.
            new: each client's points that a one-shot method labels for it; -1 for an unknown class.
            server: examples that the server holds, all labeled; `ServerTraining.examples` receives the same.
            public: examples that everybody has without their labels: an array; or a pair of it and their
                classes, for evaluation, -1 for an unknown class.
            public_labeled: True if everybody has the labels of `public`, too.
            num_classes: C; by default the largest label plus one.

        Raises:
            UsageError: arrays of different shapes, labels that are no classes, another number of `new` than
                of clients, an argument that is no pair of examples and labels.
        """
        examples = _Examples()
        own = [examples.add(*_pair(part, "a client")) for part in clients]
        later = (
            [_no_points() for _ in own]
            if new is None
            else [examples.add(*_pair(part, "a client's `new`")) for part in new]
        )
        if len(later) != len(own) or not own:
            raise UsageError(
                f"from_clients: {len(own)} clients and {len(later)} of their new points; one client "
                "is needed at least, and as many of both"
            )
        if public is not None and not isinstance(public, tuple):
            public = public, np.full(len(np.asarray(public)), UNLABELED)
        apart = [
            _no_points() if part is None else examples.add(*_pair(part, f"`{name}`"))
            for name, part in (
                ("validation", validation),
                ("test", test),
                ("server", server),
                ("public", public),
            )
        ]
        y = np.concatenate(examples.y)
        classes = int(y.max(initial=-1)) + 1 if num_classes is None else num_classes
        if y.max(initial=-1) >= classes or y.min(initial=0) < UNLABELED or classes < 2:
            raise UsageError(
                f"from_clients: labels {y.min(initial=0)}..{y.max(initial=-1)} with num_classes={classes}; "
                "use 0..num_classes-1, of two classes or more, and -1 for unlabeled"
            )
        if np.any(y[apart[2]] < 0):
            raise UsageError("from_clients: every example of the server needs its label, 0 or more")
        if public_labeled and not (len(apart[3]) and np.all(y[apart[3]] >= 0)):
            raise UsageError(
                "from_clients: public_labeled=True: every public example needs its label, 0 or more, and one "
                "at least there must be"
            )
        partition = Partition(
            labeled=tuple(points[y[points] >= 0] for points in own),
            unlabeled=tuple(points[y[points] < 0] for points in own),
            new=tuple(later),
        )
        x = np.concatenate(examples.x)
        validated, tested, held, known_to_all = apart
        return cls(
            x,
            y,
            partition,
            classes,
            validation=validated,
            test=tested,
            server=held,
            public=known_to_all,
            public_labels=y[known_to_all] if public_labeled else None,
            num_public_classes=classes if public_labeled else 0,
        )

    @property
    def num_clients(self) -> int:
        """M, the number of clients, empty ones included."""
        return len(self.partition.labeled)

    @property
    def capacity(self) -> int:
        """N, the size of the largest client: every cohort is padded to it, so shapes never change."""
        return int(self._sizes[:1].max(initial=0)) if self.census is None else self.census.capacity

    @property
    def max_labels(self) -> int:
        """The largest number of labels of a client."""
        return max(self.label_counts, default=0) if self.census is None else self.census.max_labels

    @property
    def max_labels_of_a_class(self) -> int:
        """The largest number of labels of one class at a client that is here; 0 without any labels."""
        return max((most_of_a_class(self.y[rows]) for rows in self.partition.labeled), default=0)

    @property
    def label_counts(self) -> list[int]:
        """The number of labels of each client."""
        return list(map(len, self.partition.labeled) if self.census is None else self.census.labels)

    @property
    def server_examples(self) -> tuple[np.ndarray, np.ndarray] | None:
        """x [n_s, ...] and labels int32 [n_s] of the server; None if it has none."""
        return (self.x[self.server], self.y[self.server]) if len(self.server) else None

    @property
    def public_examples(self) -> np.ndarray:
        """The public examples [n_u, ...], a copy, without their classes; 0 rows if there are none."""
        return self.x[self.public]

    @cached_property
    def normalization(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation of each entry of the last axis, over all clients' examples and the server's.

        On a network each client sends its sums (`Census`), or a `UsageError` says that one did not; a
        simulation counts no bytes for them.
        """
        owned = [self.points(client) for client in range(self.num_clients)]
        here = feature_sums(self.x, np.concatenate([*owned, self.server]))
        if self.census is not None:
            if self.census.sums is None:
                raise UsageError("a client has sent no sums of features to normalize inputs by")
            here = added([self.census.sums, feature_sums(self.x, self.server)])
        return mean_and_deviation(here, of_bytes=self.x.dtype == np.uint8)

    def counted(self) -> Census:
        """Count every client's examples, all of which are here."""
        rows = enumerate(self.partition.labeled)
        own = [(self.points(client), labeled) for client, labeled in rows]
        return census_of([counts_of(self.x[all_], self.y[labels]) for all_, labels in own])

    def examples_like_these(self, x: npt.ArrayLike, asked: str) -> np.ndarray:
        """Return examples [n, ...] as an array, checked to have the clients' shape; `asked` names the caller.

        Raises:
            UsageError: another shape.
        """
        given = np.asarray(x)
        if given.ndim < 1 or given.shape[1:] != self.x.shape[1:]:
            wanted = ", ".join(["n", *map(str, self.x.shape[1:])])
            raise UsageError(
                f"{asked}: examples are an array {list(given.shape)}; use [{wanted}], as clients' are"
            )
        return given

    def points(self, client: int) -> np.ndarray:
        """int64 [n_j], the indices of a client's examples: labeled, then unlabeled, then new."""
        part = self.partition
        return np.concatenate([part.labeled[client], part.unlabeled[client], part.new[client]])

    def cohort(self, clients: Sequence[int] | None = None, *, ragged: bool | None = None) -> Cohort:
        """Stack the given clients (default all) into a `Cohort`; one copy of their examples.

        Every cohort has the capacity of the largest of all clients, not of its own: with one shape a round
        is compiled once for an experiment. A further shape costs as much as all padding of tens to hundreds
        of rounds, measured with clients as unequal as 50 and 2,000 examples.
        If the K largest clients together would fill less than half of the padded array, examples are
        concatenated (`Ragged`) in as many rows as these K clients have. No step, feature or pair of points
        is then computed on padding. Only labels, their weights and the mask stay padded, 9 bytes for each of
        K x capacity places.

        Args:
            clients: their numbers.
            ragged: True for `Ragged` examples; None: if they are worth it, the same for all cohorts of
                K clients.
        """
        clients = range(self.num_clients) if clients is None else clients
        shape = (len(clients), int(self._sizes[:1].max(initial=0)))
        y = np.full(shape, UNLABELED, np.int32)
        mask = np.zeros(shape, bool)
        own = [self.points(client) for client in clients]
        for row, (client, points) in enumerate(zip(clients, own, strict=True)):
            num_labeled = len(self.partition.labeled[client])
            y[row, :num_labeled] = self.y[points[:num_labeled]]
            mask[row, : len(points)] = True
        most = int(self._sizes[: len(clients)].sum())
        if ragged is None:
            ragged = mask.size > max(_SMALL, _PADDING_ALLOWED * most)
        if ragged and own:
            parts = [self.x[points] for points in own]
            # One client may occur twice; then there may be more examples than the largest clients have.
            count = max(1, most, sum(map(len, parts)))
            examples = stacked(parts, length_for(count, count), shape[1])
            return Cohort(np.asarray(clients, np.int32), examples, y, mask)
        x = np.zeros((*shape, *self.x.shape[1:]), self.x.dtype)
        for row, points in enumerate(own):
            x[row, : len(points)] = self.x[points]
        return Cohort(np.asarray(clients, np.int32), x, y, mask)

    @cached_property
    def _sizes(self) -> np.ndarray:
        """The sizes of all clients, int64 [M], the largest first."""
        sizes = [len(self.points(client)) for client in range(self.num_clients)]
        return np.sort(np.array(sizes, np.int64))[::-1]

    def without_unlabeled(self) -> Federation:
        """The same clients without their unlabeled points: `XCLP (labeled)` of Table 3."""
        nothing = tuple(part[:0] for part in self.partition.unlabeled)
        return replace(self, partition=self.partition._replace(unlabeled=nothing))

    def fully_labeled(self) -> Federation:
        """The same clients with all known labels: supervised training, the upper bound."""
        part = self.partition
        known = [self.y[points] != UNLABELED for points in part.unlabeled]
        revealed = [
            points[is_known] for points, is_known in zip(part.unlabeled, known, strict=True)
        ]
        return replace(
            self,
            partition=part._replace(
                labeled=tuple(map(np.concatenate, zip(part.labeled, revealed, strict=True))),
                unlabeled=tuple(
                    points[~is_known]
                    for points, is_known in zip(part.unlabeled, known, strict=True)
                ),
            ),
        )

    def pooled(self) -> Federation:
        """Merge all clients into one: the bound of a method that sees everything."""
        return replace(
            self, partition=Partition(*((np.concatenate(part),) for part in self.partition))
        )

    def leave_out(self, client: int) -> Federation:
        """One client contributes no labels; all its points are new, the others' new points go (Table 2).

        Points of unknown class stay unlabeled, at that client as at others.

        Raises:
            UsageError: there is no such client.
        """
        if not 0 <= client < self.num_clients:
            raise UsageError(
                f"config.federation.left_out_client={client}: use 0 to {self.num_clients - 1}, "
                "or -1 to leave no client out"
            )
        part = self.partition

        def only(indices: np.ndarray, keep: bool) -> np.ndarray:
            return indices if keep else indices[:0]

        others = [j != client for j in range(self.num_clients)]
        points = self.points(client)
        is_known = self.y[points] != UNLABELED
        unlabeled = list(part.unlabeled)
        unlabeled[client] = points[~is_known]
        return replace(
            self,
            partition=Partition(
                labeled=tuple(map(only, part.labeled, others)),
                unlabeled=tuple(unlabeled),
                new=tuple(
                    part.new[j][:0] if other else points[is_known] for j, other in enumerate(others)
                ),
            ),
        )
