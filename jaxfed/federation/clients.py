"""The simulated clients: their examples, and which of these carry labels."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from jaxfed.data import given_examples
from jaxfed.data.client_rows import ClientRows, Partition
from jaxfed.data.dataset import UNLABELED as UNLABELED
from jaxfed.data.mapped_rows import MappedRows, copy_rows, gathered, is_mapped, parts
from jaxfed.errors import UsageError
from jaxfed.federation.census import Census, added, feature_sums, mean_and_deviation
from jaxfed.federation.cohort import Cohort, Ragged, length_for

_PADDING_ALLOWED = 2.0  # ratio of padded rows to examples above which examples are `Ragged`
_SMALL = 4096  # rows up to which the cost of padding is negligible


def _no_points() -> np.ndarray:
    return np.zeros(0, np.int64)


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
        predicted: int32 [n], classes by the trained model whose features `x` are; None if `x` are others.
        census: counts of all clients' examples if this is one side of a network, which holds its own examples
            alone; None: all clients' examples are here.
        room: int64 [M], sizes of clients, the largest first, for which cohorts have room, so that the
            repeats of an experiment share their compiled programs; None: for these clients alone.
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
    predicted: np.ndarray | None = None
    census: Census | None = None
    room: np.ndarray | None = None

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
            UsageError: what `jaxfed.data.given_examples` refuses; another number of `new` than of clients.
        """
        examples = given_examples.GivenExamples("from_clients", num_classes)
        num_clients = num_new = 0
        for part in given_examples.each_of(clients, "from_clients: `clients`"):
            examples.add(part, "clients[{}]")
            num_clients += 1
        for part in given_examples.each_of(() if new is None else new, "from_clients: `new`"):
            examples.add(part, "new[{}]")
            num_new += 1
        if num_new != (0 if new is None else num_clients) or not num_clients:
            raise UsageError(
                f"from_clients: {num_clients} clients and {num_new} of their new points; one client "
                "is needed at least, and as many of both"
            )
        others: dict[str, Any] = {
            "validation": validation,
            "test": test,
            "server": server,
            "public": given_examples.with_unknown_classes(public, "from_clients: `public`"),
        }
        others = {name: part for name, part in others.items() if part is not None}
        for name, part in others.items():
            examples.add(part, name)
        x, y, sizes = examples.joined()
        rows = ClientRows.contiguous(sizes)
        apart: dict[str, Any] = {"public": _no_points(), "server": _no_points()}
        apart.update(zip(others, rows[num_clients + num_new :], strict=True))
        classes = given_examples.num_classes_of("from_clients", int(y.max(initial=-1)), num_classes)
        known_to_all = y[apart["public"]]
        given_examples.check_labels_of(
            "from_clients", y[apart["server"]], known_to_all, public_labeled
        )
        client_rows, later = rows[:num_clients], rows[num_clients:][:num_new]
        is_labeled = y[: client_rows.sizes.sum()] >= 0
        return cls(
            x,
            y,
            Partition(
                client_rows.chosen(is_labeled),
                client_rows.chosen(~is_labeled),
                later if num_new else ClientRows.empty(num_clients),
            ),
            classes,
            **apart,
            public_labels=known_to_all if public_labeled else None,
        )

    @classmethod
    def open_packed(cls, folder: str | os.PathLike[str]) -> Federation:
        """Open the federation in a folder that `jaxfed.data.pack` wrote; examples stay on disk.

        A cohort reads its own clients' examples. In memory are labels (4 bytes an example) and each client's
        numbers of examples (24 bytes). A damaged folder is a UsageError.
        """
        from jaxfed.data.packing import opened

        return cls(**opened(folder))

    @property
    def num_clients(self) -> int:
        """M, the number of clients, empty ones included."""
        return len(self.partition.labeled)

    @property
    def capacity(self) -> int:
        """N, the size to which every cohort is padded, so that shapes never change."""
        return int(self._room[:1].max(initial=0)) if self.census is None else self.census.capacity

    @property
    def largest(self) -> int:
        """The number of examples of the largest client."""
        return int(self.sizes[:1].max(initial=0)) if self.census is None else self.census.capacity

    @property
    def max_labels(self) -> int:
        """The largest number of labels of a client."""
        return max(self.label_counts, default=0) if self.census is None else self.census.max_labels

    @property
    def max_labels_of_a_class(self) -> int:
        """The largest number of labels of one class at a client that is here; 0 without any labels."""
        labeled = ClientRows.of(self.partition.labeled)
        labels = self.y[labeled.joined]
        groups = labeled.owner * (int(labels.max(initial=0)) + 1) + labels
        return int(np.unique(groups, return_counts=True)[1].max(initial=0))

    @property
    def label_counts(self) -> list[int]:
        """The number of labels of each client."""
        if self.census is not None:
            return list(self.census.labels)
        return ClientRows.of(self.partition.labeled).sizes.tolist()

    @cached_property
    def by_labels(self) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the clients with labels, and of those without; counted once."""
        has_labels = np.array(self.label_counts) > 0
        return np.flatnonzero(has_labels), np.flatnonzero(~has_labels)

    def num_training(self, *, needs_labels: bool) -> int:
        """Return the number of clients with a label if `needs_labels`, else with an example."""
        if needs_labels:
            return len(self.by_labels[0])
        return int(np.count_nonzero(self.sizes if self.census is None else self.census.examples))

    @property
    def server_examples(self) -> tuple[np.ndarray, np.ndarray] | None:
        """x [n_s, ...] and labels int32 [n_s] of the server; None if it has none."""
        return (gathered(self.x, self.server), self.y[self.server]) if len(self.server) else None

    @property
    def public_examples(self) -> np.ndarray:
        """The public examples [n_u, ...], a copy, without their classes; 0 rows if there are none."""
        return gathered(self.x, self.public)

    def examples(self, indices: np.ndarray) -> Any:
        """Return x[indices]; if `x` lies in a file, rows are read as they are asked for."""
        return MappedRows(self.x, indices) if is_mapped(self.x) else self.x[indices]

    @cached_property
    def normalization(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation of each entry of the last axis, over all clients' examples and the server's.

        On a network each client sends its sums (`Census`); a simulation counts no bytes for them.
        """
        here = feature_sums(self.x, np.concatenate([self.partition.joined.joined, self.server]))
        if self.census is not None:
            if self.census.sums is None:
                raise UsageError("a client has sent no sums of features to normalize inputs by")
            here = added([self.census.sums, feature_sums(self.x, self.server)])
        return mean_and_deviation(here, of_bytes=self.x.dtype == np.uint8)

    def examples_like_these(self, x: npt.ArrayLike, asked: str) -> np.ndarray:
        """Return examples [n, ...] as an array of the clients' shape, kind and scale; errors name `asked`."""
        examples = given_examples.examples_of(x, asked, like=self.x)
        self._scale.check(examples, asked)
        return examples

    def check_arrays(self, x: Any, asked: str, y: Any = None) -> None:
        """Check examples [n, ...] that a method uses as they are, and labels [n]: `examples_like_these`."""
        like_these = self.examples_like_these(x, asked)
        if not hasattr(x, "dtype") or like_these.dtype != x.dtype:
            wrong = f"{asked}: examples are not an array of {like_these.dtype}; convert them"
            raise UsageError(wrong)
        if y is not None:
            given_examples.labels_of(y, asked, len(x), self.num_classes)

    @cached_property
    def levels(self) -> tuple[float, float]:
        """The smallest and the largest value of the examples; 0 and 1 for bytes."""
        is_unit = self.x.dtype == np.uint8 or not self.x.size
        ends = (0, 1) if is_unit else [(part.min(), part.max()) for part in parts(self.x)]
        return float(np.min(ends)), float(np.max(ends))

    @cached_property
    def _scale(self) -> given_examples.Range:
        return given_examples.Range.of(self.x)

    def points(self, client: int) -> np.ndarray:
        """int64 [n_j], the indices of a client's examples: labeled, then unlabeled, then new."""
        part = self.partition
        return np.concatenate([part.labeled[client], part.unlabeled[client], part.new[client]])

    def cohort(self, clients: Sequence[int] | None = None, *, ragged: bool | None = None) -> Cohort:
        """Stack the given clients (default all) into a `Cohort`; one copy of their examples.

        Every cohort has the capacity of the largest of all clients, not of its own, and of all repeats'
        (`room`): with one shape a round is compiled once for an experiment. A further shape costs as much as
        all padding of tens to hundreds of rounds, measured with clients as unequal as 50 and 2,000 examples.
        If the K largest clients together would fill less than half of the padded array, examples are
        concatenated (`Ragged`) in as many rows as these K clients have; `ragged` decides that otherwise.
        Labels, weights and the mask stay padded, 9 bytes for each of K x capacity entries.
        """
        chosen = np.arange(self.num_clients) if clients is None else np.asarray(clients, np.int64)
        labeled, *others = (ClientRows.of(rows)[chosen] for rows in self.partition)
        points, capacity = Partition(labeled, *others).joined, int(self._room[:1].max(initial=0))
        is_labeled, mask = (np.arange(capacity) < rows.sizes[:, None] for rows in (labeled, points))
        y = np.full(mask.shape, UNLABELED, np.int32)
        y[is_labeled] = self.y[labeled.joined]
        most = int(self._room[: len(chosen)].sum())
        if ragged is None:
            ragged = mask.size > max(_SMALL, _PADDING_ALLOWED * most)
        if ragged and len(chosen):
            # One client may occur twice; then there may be more examples than the largest clients have.
            count = max(1, most, int(points.sizes.sum()))
            shape, positions = (length_for(count, count),), np.arange(points.sizes.sum())
        else:
            ragged, shape, positions = False, mask.shape, np.flatnonzero(mask)
        x: Any = np.zeros((*shape, *self.x.shape[1:]), self.x.dtype)
        copy_rows(self.x, points.joined, x, positions)
        if ragged:
            x = Ragged(x, points.start.astype(np.int32), points.sizes.astype(np.int32), capacity)
        return Cohort(chosen.astype(np.int32), x, y, mask)

    @cached_property
    def sizes(self) -> np.ndarray:
        """The sizes of all clients, int64 [M], the largest first."""
        return np.sort(self.partition.sizes.sum(axis=0))[::-1]

    @cached_property
    def _room(self) -> np.ndarray:
        """The sizes, int64 [M], the largest first, for which a cohort has room."""
        others = self.sizes[:0] if self.room is None else self.room[: self.num_clients]
        return np.maximum(self.sizes, np.pad(others, (0, self.num_clients - len(others))))

    def with_partition(self, partition: Partition) -> Federation:
        """The same examples, held otherwise."""
        return replace(self, partition=partition, room=None)

    def without_unlabeled(self) -> Federation:
        """The same clients without their unlabeled points: `XCLP (labeled)` of Table 3."""
        nothing = ClientRows.empty(self.num_clients)
        return self.with_partition(self.partition._replace(unlabeled=nothing))

    def fully_labeled(self) -> Federation:
        """The same clients with all known labels: supervised training, the upper bound."""
        hidden = ClientRows.of(self.partition.unlabeled)
        is_known = self.y[hidden.joined] != UNLABELED
        revealed = hidden.chosen(is_known)
        nothing = ClientRows.empty(self.num_clients)
        labeled = Partition(self.partition.labeled, revealed, nothing).joined
        unlabeled = hidden.chosen(~is_known)
        return self.with_partition(self.partition._replace(labeled=labeled, unlabeled=unlabeled))

    def pooled(self) -> Federation:
        """Merge all clients into one: the bound of a method that sees everything."""
        joint = (ClientRows.of(part).joined for part in self.partition)
        return self.with_partition(Partition(*((rows,) for rows in joint)))

    def leave_out(self, client: int) -> Federation:
        """One client contributes no labels; all its points are new, the others' new points go (Table 2).

        Points of unknown class stay unlabeled, at that client as at others.
        """
        if not 0 <= client < self.num_clients:
            raise UsageError(
                f"config.federation.left_out_client={client}: use 0 to {self.num_clients - 1}, "
                "or -1 to leave no client out"
            )
        points = self.points(client)
        is_known = self.y[points] != UNLABELED
        labeled, unlabeled, _ = (list(kind) for kind in self.partition)
        new = [points[:0]] * self.num_clients
        labeled[client], unlabeled[client] = points[:0], points[~is_known]
        new[client] = points[is_known]
        return self.with_partition(Partition(tuple(labeled), tuple(unlabeled), tuple(new)))
