"""Schemes of a partition: by class, with weights of classes at clients; by owner, with a column of each
example's client.

A new scheme is one class, here in full:

    from dataclasses import dataclass
    import numpy as np
    from jaxfed.data import SCHEMES, Scheme, partition
    from jaxfed.settings import Positive

    @SCHEMES.register("two_camps")
    @dataclass(frozen=True, kw_only=True)
    class TwoCamps(Scheme):
        '''Even clients prefer the first half of the classes, odd clients the second.

        Attributes:
            preference: weight of a preferred class; the others have weight 1.
        '''

        preference: Positive = 4.0

        def weights(self, occurs, num_clients, rng):
            camp = np.arange(len(occurs)) * 2 // len(occurs)
            is_preferred = np.arange(num_clients)[:, None] % 2 == camp
            return np.where(is_preferred, self.preference, 1.0)

    partition(y, num_clients=10, scheme=TwoCamps(preference=9.0))

A config file that contains or imports this code may set `config.federation.partition = "two_camps"`, and the
fields in a section of that name, `config.two_camps = ConfigDict({"preference": 9.0})`. The fields can be set
on the command line, too: `--config.two_camps.preference=9`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt

from jaxfed.data.controlled_rounding import (
    apportion,
    expected,
    owners_of,
    round_at_random,
    split_at_random,
)
from jaxfed.data.dataset import UNLABELED
from jaxfed.errors import UsageError
from jaxfed.registry import Registry
from jaxfed.settings import Allowed, Count, Positive, check

_MAX_DRAWS = 1000  # for one pair of clients


class Scheme:
    """Class proportions of the clients: a scheme that gives weights.

    A subclass is a frozen dataclass. The partition scales its weights to the sizes of clients and classes.

    Attributes:
        is_uniform: True if all clients have the same proportions; examples are then shuffled and cut.
        has_random_sizes: True if the weights determine the clients' sizes too; else these are equal.
        is_independent: True if `skew="both"` means two draws, one for the labeled examples and one for the
            others, as `skew="independent"` does with every scheme.
    """

    is_uniform: ClassVar[bool] = False
    has_random_sizes: ClassVar[bool] = False
    is_independent: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check the fields by their hints."""
        check(self)

    def weights(self, occurs: np.ndarray, num_clients: int, rng: np.random.Generator) -> np.ndarray:
        """Return weights of the classes at the clients, float [M, C]; only proportions within a class matter.

        `occurs` [C] is True for classes with examples; `rng` is the source of all random choices.
        """
        raise NotImplementedError(f"{type(self).__name__}.weights")

    def adjusted(
        self, weights: np.ndarray, totals: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Return the weights [M, C], adjusted to the classes' sizes `totals` [C]; by default the same."""
        return weights


class OwnerScheme(Scheme):
    """A scheme that fixes the client of each example, by a column of the data; sizes follow from it.

    Attributes:
        column: name of the column in `jaxfed.data.Dataset`, and of the field that holds it here. The field
            `new_COLUMN` holds that of `new_y`.
    """

    column: ClassVar[str]

    def owners(
        self, y: np.ndarray, num_clients: int | None, rng: np.random.Generator
    ) -> tuple[np.ndarray, int]:
        """Return the client of each example, those of new_y last, int64 [n], and their number."""
        raise NotImplementedError(f"{type(self).__name__}.owners")

    def _joined(self, y: np.ndarray) -> np.ndarray:
        """The column of all examples, those of new_y last."""
        new = getattr(self, f"new_{self.column}")
        columns = [np.asarray(getattr(self, self.column)), np.asarray([] if new is None else new)]
        if columns[0].ndim == 0:
            raise self._error("missing")
        self.check_length(len(y) - len(columns[1]))
        return np.concatenate(columns if new is not None else columns[:1])

    def check_length(self, number: int) -> None:
        """Refuse a column of other than this number of entries, those of new_y aside."""
        if len(getattr(self, self.column)) != number:
            raise self._error("entries do not match the examples")

    def _error(self, wrong: str) -> UsageError:
        allowed = f"use one entry an example, also in new_{self.column} for new_y"
        return UsageError(wrong, owner=type(self).__name__, key=self.column, allowed=allowed)


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

    Client sizes are random. With a small alpha, clients may be empty; set `min_size`.

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
    """Two Dirichlet draws, mixed: of each class, client m gets the share 0.9 p_m + 0.1 q_m.

    p is drawn with `alpha`, q with `alpha_rest`. FedCT uses alpha 2 and 100: in these shares in Appendix C.4
    and in the code, in halves in Section 5. Its Table 5 has alpha 0.01.

    Attributes:
        alpha: concentration of the first draw; small values make clients unlike.
        alpha_rest: concentration of the second draw.
    """

    alpha_rest: Positive = 100.0

    def adjusted(
        self, weights: np.ndarray, totals: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Return the mixture of `weights` and a second draw, float [M, C]."""
        num_clients, num_classes = weights.shape
        rest = _shares(self.alpha_rest, num_clients, num_classes, rng)
        parts = ((0.9, weights), (1 - 0.9, rest))  # 1 - 0.9 has other bits than 0.1
        table = sum(expected(w, s * totals, None) for s, w in parts)
        return np.where(totals > 0, table, sum(s * w for s, w in parts))


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
        """Return 1 for the classes that a client holds and 0 for the others, float [M, C]."""
        num_classes, k, covered = np.count_nonzero(occurs), self.per_client, 0
        held = np.zeros((num_clients, len(occurs)))
        if k <= num_classes:
            share = np.full((num_clients, num_classes), k / num_classes)
            held[:, occurs] = round_at_random(share, rng)
            covered = int(np.count_nonzero(held.any(axis=0)))
        if covered < num_classes:
            wrong = f"{num_clients} clients cover {covered} of {num_classes} classes"
            allowed = f"use 1 to {num_classes} classes a client, and enough clients to hold all"
            raise UsageError(wrong, owner="Classes", key="per_client", value=k, allowed=allowed)
        return held


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
        """Return the clients' rows, float [M, C]."""
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


@dataclass(frozen=True)
class DirichletPairs(Dirichlet):
    """Dirichlet splits between two clients at a time, as in the code of SAGE (CVPR 2025).

    1. The shuffled examples are cut into M / 2 parts of equal size, one for each pair of clients.
    2. Within a pair, each class in turn is split by a draw from Dir(alpha 1_2). A client that holds half of
       the pair's examples gets no more. If a client ends with less than a quarter of them, the pair is drawn
       again, up to 1,000 times; then the most even of its draws is used. (The code draws without end.)
    3. The clients' examples, sorted by class within each client, are concatenated and cut into M equal
       pieces, one for each client.

    Labeled and unlabeled examples are drawn separately, from two draws, unless `skew` is "labeled" or
    "unlabeled". All clients have the same size. An odd last client has no partner.

    Clients differ less than with `Dirichlet` of the same alpha, since a pair holds a random part of the data
    (`docs/your-data.md`). Over 200 seeds, mean distances of classes are those of SAGE's code to 0.02; its
    seed 0, the only one that it uses, is up to a standard deviation off. Difference from the code: it deals
    the labeled examples; here a deal of all examples is scaled to the number of labels, rounded at random.

    Attributes:
        alpha: concentration of the Dirichlet distribution; small values make the clients of a pair unlike.
    """

    is_independent = True

    def weights(self, occurs: np.ndarray, num_clients: int, rng: np.random.Generator) -> np.ndarray:
        """Return ones [M, C]; the deal is in `adjusted`, which knows the numbers of examples."""
        return np.ones((num_clients, len(occurs)))

    def adjusted(
        self, weights: np.ndarray, totals: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Return the number of examples of each class at each client, float [M, C]."""
        num_clients, num_classes = weights.shape
        share = int(2 / num_clients * totals.sum())
        of_pairs = np.full((num_clients + 1) // 2, share)
        of_pairs[-1] = totals.sum() - of_pairs[:-1].sum()
        table = np.zeros((num_clients, num_classes), np.int64)
        for pair, counts in enumerate(split_at_random(totals, of_pairs, rng)):
            rest = self._split(counts, rng) if 2 * pair + 1 < num_clients else None
            table[2 * pair] = counts if rest is None else counts - rest
            if rest is not None:
                table[2 * pair + 1] = rest
        classes = np.repeat(np.tile(np.arange(num_classes), num_clients), table.ravel())
        pieces = np.array_split(classes, num_clients)
        return np.array([np.bincount(piece, minlength=num_classes) for piece in pieces], float)

    def _split(self, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return the second client's number of examples of each class, int [C]."""
        size = int(counts.sum())
        fullest, best = -1, np.zeros_like(counts)
        for _ in range(_MAX_DRAWS):
            first = second = 0
            of_second = np.zeros_like(counts)
            shares = rng.beta(self.alpha, self.alpha, size=len(counts))
            for c, (count, share) in enumerate(zip(counts.tolist(), shares.tolist(), strict=True)):
                of_first = int(share * count)
                if 2 * first >= size:
                    of_first = 0
                elif 2 * second >= size:
                    of_first = count
                first += of_first
                second += count - of_first
                of_second[c] = count - of_first
            if min(first, second) > fullest:
                fullest, best = min(first, second), of_second
            if fullest >= size // 4:
                break
        return best


@dataclass(frozen=True, eq=False)
class Natural(OwnerScheme):
    """The clients of the data: one for each client id, in sorted order.

    Attributes:
        client_id: [n], the id of each example's client, a number or a name.
        new_client_id: [n_new], the ids of `new_y`. An id that `client_id` lacks is a client without other
            examples.
    """

    column = "client_id"

    client_id: npt.ArrayLike | None = None
    new_client_id: npt.ArrayLike | None = None

    def owners(
        self, y: np.ndarray, num_clients: int | None, rng: np.random.Generator
    ) -> tuple[np.ndarray, int]:
        """Return the client of each example, and the number of client ids."""
        names, numbers = np.unique(self._joined(y), return_inverse=True)
        if num_clients not in (None, len(names)):
            wrong, allowed = f"the data have {len(names)} client ids", f"use {len(names)}"
            raise UsageError(wrong, key="num_clients", value=num_clients, allowed=allowed)
        return numbers.astype(np.int64), len(names)


@dataclass(frozen=True, eq=False)
class Subclasses(OwnerScheme):
    """Each client holds one subclass of every class, such as one of the five of a CIFAR-100 superclass.

    The subclasses of every class are assigned to the clients in turn, both shuffled: the numbers of clients
    that hold any two subclasses of a class differ by at most one. A subclass's examples are split evenly
    among its holders. There must be as many clients as a class has subclasses (FedMD; FedCT, Appendix C.4).

    Attributes:
        subclass: [n], the subclass of each example; all examples of a subclass are of one class.
        new_subclass: [n_new], the subclasses of `new_y`.
    """

    column = "subclass"

    subclass: npt.ArrayLike | None = None
    new_subclass: npt.ArrayLike | None = None

    def owners(
        self, y: np.ndarray, num_clients: int | None, rng: np.random.Generator
    ) -> tuple[np.ndarray, int]:
        """Return the client of each example: one that holds its subclass."""
        names, finer = np.unique(self._joined(y), return_inverse=True)
        class_of = np.full(len(names), UNLABELED)
        class_of[finer] = y
        is_bad = (class_of[finer] != y) | (y == UNLABELED)
        if is_bad.any():
            name = names[finer[is_bad][0]]
            raise self._error(f"{name} has examples of several classes, or of unknown class")
        most = int(np.bincount(class_of, minlength=1).max(initial=0))
        if num_clients is None or num_clients < most:
            wrong = f"a class has {most} subclasses, each of which needs a client"
            allowed = f"use integers from {most} on"
            raise UsageError(wrong, key="num_clients", value=num_clients, allowed=allowed)
        holds = np.zeros((len(names), num_clients), bool)
        for c in np.unique(class_of):
            ids = rng.permutation(np.flatnonzero(class_of == c))
            holds[ids[np.arange(num_clients) % len(ids)], rng.permutation(num_clients)] = True
        num_own = len(np.asarray(self.subclass))
        parts = (_split_among(part, holds, rng) for part in np.split(finer, [num_own]))
        return np.concatenate(list(parts)), num_clients


def _split_among(numbers: np.ndarray, holds: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """int64 [n], the client of each example; `holds` [F, M] is True for the clients that hold a subclass."""
    totals = np.bincount(numbers, minlength=len(holds))
    counts = [apportion(row, total, rng) for row, total in zip(holds, totals, strict=True)]
    return owners_of(numbers, np.stack(counts, axis=1), rng)


SCHEMES: Registry[type[Scheme]] = Registry(
    "scheme",
    {
        "iid": Iid,
        "dirichlet": Dirichlet,
        "dirichlet_mixture": DirichletMixture,
        "dirichlet_pairs": DirichletPairs,
        "classes_per_client": Classes,
        "subclasses": Subclasses,
        "table": Table,
        "natural": Natural,
    },
)
"""Name in configs (`federation.partition`) -> scheme."""
