"""Schemes by class: weights of the classes at the clients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from jaxfed.data.partitioning.controlled_rounding import expected, round_at_random
from jaxfed.data.partitioning.scheme import Scheme
from jaxfed.errors import UsageError
from jaxfed.settings import Allowed, Count, Positive, Share

FEDMATCH_TABLE: tuple[tuple[float, ...], ...] = tuple(
    tuple(
        (0.50, 0.15, 0.03, 0.03, 0.03, 0.02, 0.03, 0.03, 0.03, 0.15)[(c - row) % 10]
        for c in range(10)
    )
    for row in range(10)
)
"""FedMatch's ten client types over ten classes: row t is row 0 rotated right by t. ProtoFSSL, and one
of the settings of XCLP's code (`cifar10_100_3`), use the same."""


@dataclass(frozen=True)
class Iid(Scheme):
    """The same class proportions for all clients: examples are shuffled and cut."""

    is_uniform = True

    def weights(self, occurs: np.ndarray, num_clients: int, rng: np.random.Generator) -> np.ndarray:
        """Return ones [M, C]."""
        return np.ones((num_clients, len(occurs)))


@dataclass(frozen=True)
class Dirichlet(Scheme):
    """Random shares of each class: client m gets the share p_m, p ~ Dir(alpha 1_M), drawn for each class.

    Client sizes are random unless `Sizes` are given. With a small alpha, clients may be empty; set
    `Sizes.min_size`.

    Attributes:
        alpha: concentration of the Dirichlet distribution; small values make clients unlike.
    """

    has_random_sizes = True

    alpha: Positive = 0.5

    def weights(self, occurs: np.ndarray, num_clients: int, rng: np.random.Generator) -> np.ndarray:
        """Return the clients' shares of each class, float [M, C]."""
        return _shares(self.alpha, num_clients, len(occurs), rng)


@dataclass(frozen=True)
class DirichletMixture(Dirichlet):
    """Two Dirichlet draws, mixed: of each class, client m gets the share s p_m + (1 - s) q_m.

    p is drawn with `alpha`, q with `alpha_rest`, and s is `share`. If `Sizes` are given, p distributes the
    share s of every client's examples.

    FedCT uses alpha 2 and 100: in halves in Section 5, with s = 0.9 in Appendix C.4 and in the code. Its
    Table 5 has alpha 0.01 with s = 0.9.

    Attributes:
        alpha: concentration of the first draw; small values make clients unlike.
        alpha_rest: concentration of the second draw.
        share: share of the examples that the first draw distributes.
    """

    alpha_rest: Positive = 100.0
    share: Share = 0.9

    def adjusted(
        self,
        weights: np.ndarray,
        totals: np.ndarray,
        sizes: np.ndarray | None,
        rng: np.random.Generator,
    ) -> np.ndarray:
        """Return the mixture of `weights` and a second draw, float [M, C].

        Each is scaled separately to its part of the classes' totals and of the clients' sizes. With sizes,
        the share therefore holds at every client.
        """
        num_clients, num_classes = weights.shape
        rest = _shares(self.alpha_rest, num_clients, num_classes, rng)
        if sizes is not None:
            sizes = sizes * (totals.sum() / sizes.sum())  # excludes the examples of unknown class
        parts = ((self.share, weights), (1 - self.share, rest))
        table = sum(expected(w, s * totals, None if sizes is None else s * sizes) for s, w in parts)
        return np.where(totals > 0, table, self.share * weights + (1 - self.share) * rest)


@dataclass(frozen=True)
class Classes(Scheme):
    """Each client holds the same number of classes, of those that occur.

    The numbers of clients that hold any two classes differ by at most one. (XCLP's code: 5 random classes
    each, rotated in blocks of ten clients.)

    Attributes:
        per_client: number of classes that each client holds.
    """

    per_client: Count = 2

    def weights(self, occurs: np.ndarray, num_clients: int, rng: np.random.Generator) -> np.ndarray:
        """Return 1 for the classes that a client holds and 0 for the others, float [M, C].

        Raises:
            UsageError: more classes a client than there are, or clients too few to hold all classes.
        """
        present = np.flatnonzero(occurs)
        held = np.zeros((num_clients, len(occurs)))
        for client, places in enumerate(self._places(len(present), num_clients, rng)):
            held[client, present[places]] = 1
        return held

    def _places(
        self, num_classes: int, num_clients: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """Return the classes that each client holds, as indices among the classes that occur."""
        k = self.per_client
        if k > num_classes:
            raise UsageError(
                owner="Classes",
                key="per_client",
                value=k,
                allowed=f"use 1 to {num_classes}, the number of classes that occur",
            )
        holds = round_at_random(np.full((num_clients, num_classes), k / num_classes), rng)
        chosen = [np.flatnonzero(row) for row in holds]
        covered = len(np.unique(np.concatenate(chosen)))
        if covered < num_classes:
            raise UsageError(
                f"{num_clients} clients cover {covered} of {num_classes} classes",
                owner="Classes",
                key="per_client",
                value=k,
                allowed="use more classes a client or more clients",
            )
        return chosen


def _is_table(rows: Any) -> bool:
    """True for equally long rows of finite numbers from 0 on, with a positive one in each."""
    try:
        table = np.asarray(rows)
    except ValueError:  # rows of different lengths
        return False
    if table.shape == (0,):
        return True
    is_numeric = np.issubdtype(table.dtype, np.number) and table.ndim == 2 and table.size
    return bool(is_numeric) and all(min(row) >= 0 < sum(row) < math.inf for row in table.tolist())


Rows = Annotated[
    Sequence[Sequence[float]] | np.ndarray,
    Allowed(
        _is_table,
        "equally long rows of class shares from 0 on, some above 0 in each; () is FedMatch's",
    ),
]


@dataclass(frozen=True)
class Table(Scheme):
    """Class shares by type of client: client m follows row m mod T of a table with T rows.

    The shares give expected counts, which are rounded at random. FedMatch's own code draws the counts.

    Attributes:
        rows: class shares of each type of client, one row a type; the default is FedMatch's ten types.
    """

    rows: Rows = ()

    def __post_init__(self) -> None:
        """Check the rows, and copy those of an array to tuples."""
        if isinstance(self.rows, np.ndarray):  # an error with its text would have several lines
            object.__setattr__(self, "rows", self.rows.tolist())
        super().__post_init__()
        object.__setattr__(self, "rows", tuple(map(tuple, self.rows)))

    def weights(self, occurs: np.ndarray, num_clients: int, rng: np.random.Generator) -> np.ndarray:
        """Return the clients' rows, float [M, C].

        Raises:
            UsageError: the table has fewer columns than there are classes.
        """
        table = np.asarray(self.rows or FEDMATCH_TABLE, float)
        if table.shape[1] < len(occurs):
            raise UsageError(
                f"rows of {table.shape[1]} shares for {len(occurs)} classes",
                owner="Table",
                key="rows",
                allowed="use one share a class",
            )
        return table[np.arange(num_clients) % len(table), : len(occurs)]


def _shares(
    alpha: float, num_clients: int, num_classes: int, rng: np.random.Generator
) -> np.ndarray:
    """float [M, C], the clients' shares of each class, Dir(alpha 1_M)."""
    return rng.dirichlet(np.full(num_clients, alpha), num_classes).T
