"""Schemes of a partition: class weights, client sizes, or the data's own client ids."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from jaxfed.data.dataset import UNLABELED
from jaxfed.data.partitioning.dealing import apportion, expected, owners_of, round_at_random
from jaxfed.errors import UsageError

Scheme = Literal[
    "iid",
    "dirichlet",
    "dirichlet_mixture",
    "classes_per_client",
    "subclasses",
    "table",
    "natural",
]
OWNING = ("natural", "subclasses")  # schemes that fix the client of each example
Quantity = Literal["equal", "dirichlet", "lognormal", "power_law"]
Assignment = Literal["random", "rotated"]

FEDMATCH_TABLE: tuple[tuple[float, ...], ...] = tuple(
    tuple(
        (0.50, 0.15, 0.03, 0.03, 0.03, 0.02, 0.03, 0.03, 0.03, 0.15)[(c - row) % 10]
        for c in range(10)
    )
    for row in range(10)
)
"""FedMatch's ten client types over ten classes: row t is row 0 rotated right by t. ProtoFSSL, and one
of the settings of XCLP's code (`cifar10_100_3`), use the same."""


def weights(
    scheme: Scheme,
    occurs: np.ndarray,
    num_clients: int,
    dirichlet_alpha: float | None,
    classes_per_client: int | None,
    assignment: Assignment,
    table: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """float [M, C], weight of each class at each client."""
    num_classes = len(occurs)
    if scheme == "iid":
        return np.ones((num_clients, num_classes))
    if scheme in ("dirichlet", "dirichlet_mixture"):
        return dirichlet("dirichlet_alpha", dirichlet_alpha, (num_clients, num_classes), rng)
    if scheme == "classes_per_client":
        present = np.flatnonzero(occurs)
        drawn = np.zeros((num_clients, num_classes))
        for client, places in enumerate(
            _places(len(present), num_clients, classes_per_client, assignment, rng)
        ):
            drawn[client, present[places]] = 1
        return drawn
    if table.ndim != 2 or table.shape[1] < num_classes or not (table >= 0).all():
        raise UsageError(
            f"table has shape {list(table.shape)}: allowed are [types, {num_classes} classes] of "
            "numbers from 0 on"
        )
    return table[np.arange(num_clients) % len(table), :num_classes]


def dirichlet(
    name: str, alpha: float | None, shape: tuple[int, int], rng: np.random.Generator
) -> np.ndarray:
    """float [M, C], the clients' shares of each class, Dir(alpha 1_M); `name` is alpha's name in errors."""
    if alpha is None or not 0 < alpha < np.inf:
        raise UsageError(f"{name}={alpha}: allowed are numbers above 0")
    return rng.dirichlet(np.full(shape[0], alpha), shape[1]).T


def mixed(
    first: np.ndarray,
    rest: np.ndarray,
    share: float,
    totals: np.ndarray,
    sizes: np.ndarray | None,
) -> np.ndarray:
    """float [M, C], mixture of two tables of weights; the first determines `share` of the examples.

    Each table is scaled separately to its part of the classes' totals and of the clients' sizes. With sizes,
    the share therefore holds at every client.

    Args:
        first, rest: float [M, C], columns that add up to 1.
        share: s in [0, 1].
        totals: int [C], of the classes.
        sizes: float [M], of the clients, or None.
    """
    if not 0 <= share <= 1:
        raise UsageError(f"dirichlet_share={share}: allowed are 0 to 1")
    if sizes is not None:
        sizes = sizes * (totals.sum() / sizes.sum())  # excludes the examples of unknown class
    parts = ((share, first), (1 - share, rest))
    table = sum(expected(w, s * totals, None if sizes is None else s * sizes) for s, w in parts)
    return np.where(totals > 0, table, share * first + (1 - share) * rest)


def _places(
    num_classes: int,
    num_clients: int,
    classes_per_client: int | None,
    assignment: Assignment,
    rng: np.random.Generator,
) -> list[np.ndarray]:
    """Classes that each client holds, as indices among the classes that occur."""
    k = classes_per_client
    if k is None or not 1 <= k <= num_classes:
        raise UsageError(f"classes_per_client={k}: allowed are 1 to {num_classes}")
    if assignment not in get_args(Assignment):
        raise UsageError(
            f"assignment={assignment!r}: allowed are {', '.join(map(repr, get_args(Assignment)))}"
        )
    if assignment == "rotated":
        step = 1 if num_clients >= num_classes else num_classes / num_clients
        chosen = [
            (int(client * step) + np.arange(k)) % num_classes for client in range(num_clients)
        ]
    else:
        holds = round_at_random(np.full((num_clients, num_classes), k / num_classes), rng)
        chosen = [np.flatnonzero(row) for row in holds]
    covered = len(np.unique(np.concatenate(chosen)))
    if covered < num_classes:
        raise UsageError(
            f"classes_per_client={k} with {num_clients} clients covers {covered} of {num_classes} "
            "classes: some examples would be nobody's; allow more classes or more clients"
        )
    return chosen


def sizes(
    scheme: Scheme,
    quantity: Quantity | None,
    parameter: float,
    num_clients: int,
    num_examples: int,
    rng: np.random.Generator,
) -> np.ndarray | None:
    """float [M], target number of examples of each client; None leaves it to the scheme."""
    if quantity is None and scheme in ("dirichlet", "dirichlet_mixture"):
        return None
    shares = np.ones(num_clients)
    if quantity == "dirichlet":
        shares = rng.dirichlet(np.full(num_clients, parameter))
    elif quantity == "lognormal":
        logarithms = parameter * rng.standard_normal(num_clients)
        shares = np.exp(logarithms - logarithms.max())
    elif quantity == "power_law":
        shares = rng.permutation((1.0 + np.arange(num_clients)) ** -parameter)
    return num_examples * shares / shares.sum()


def natural_owners(
    y: np.ndarray,
    client_id: npt.ArrayLike | None,
    new_y: npt.ArrayLike | None,
    new_client_id: npt.ArrayLike | None,
    num_clients: int | None,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, int]:
    """Each example's client, each new example's client, and M."""
    if client_id is None:
        raise UsageError("scheme='natural' needs client_id, which this data set does not have")
    ids = np.asarray(client_id)
    new_ids = ids[:0] if new_y is None else np.asarray(new_client_id)
    if ids.shape != y.shape or (new_y is not None and new_ids.shape != np.shape(new_y)):
        raise UsageError("client_id (and new_client_id) must have one id an example")
    names, numbers = np.unique(np.concatenate([ids, new_ids]), return_inverse=True)
    if num_clients is not None and num_clients != len(names):
        if num_clients > len(names):
            raise UsageError(f"num_clients={num_clients}: the data have {len(names)} client ids")
        group = np.empty(len(names), np.int64)
        turn = rng.permutation(num_clients)  # the clients with one id more are random
        group[rng.permutation(len(names))] = turn[np.arange(len(names)) % num_clients]
        numbers = group[numbers]
    owner, new_owner = np.split(numbers.astype(np.int64), [len(ids)])
    return owner, new_owner, len(names) if num_clients is None else num_clients


def subclass_owners(
    y: np.ndarray,
    subclass: npt.ArrayLike | None,
    new_y: npt.ArrayLike | None,
    new_subclass: npt.ArrayLike | None,
    num_clients: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Each example's client, and each new example's: one that holds its subclass.

    The subclasses of every class are assigned to the clients in turn, both shuffled. A subclass's examples
    are split evenly among its holders.
    """
    if subclass is None:
        raise UsageError("scheme='subclasses' needs subclass, which this data set does not have")
    splits = [(y, subclass)] if new_y is None else [(y, subclass), (new_y, new_subclass)]
    for classes, finer in splits:
        if np.asarray(finer).shape != np.asarray(classes).shape:
            raise UsageError("subclass (and new_subclass) must have one number an example")
    classes = np.concatenate([np.asarray(classes) for classes, _ in splits])
    names, finer = np.unique(np.concatenate([s for _, s in splits]), return_inverse=True)
    class_of = np.full(len(names), UNLABELED)
    class_of[finer] = classes
    if (class_of[finer] != classes).any() or (classes == UNLABELED).any():
        bad = names[finer[(class_of[finer] != classes) | (classes == UNLABELED)][0]]
        raise UsageError(f"subclass {bad} has examples of several classes, or of none")
    most = int(np.bincount(class_of, minlength=1).max(initial=0))
    if num_clients < most:
        raise UsageError(
            f"num_clients={num_clients}: with scheme='subclasses' {most} or more are needed, as many as a "
            "class has subclasses; some examples would be nobody's"
        )
    holds = np.zeros((len(names), num_clients), bool)
    for c in np.unique(class_of):
        own = rng.permutation(np.flatnonzero(class_of == c))
        holds[own[np.arange(num_clients) % len(own)], rng.permutation(num_clients)] = True
    first, second = (_dealt_to_holders(part, holds, rng) for part in np.split(finer, [len(y)]))
    return first, second


def _dealt_to_holders(
    numbers: np.ndarray, holds: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """int64 [n], the client of each example; `holds` [F, M] is True for the clients that hold a subclass."""
    totals = np.bincount(numbers, minlength=len(holds))
    counts = [apportion(row, total, rng) for row, total in zip(holds, totals, strict=True)]
    return owners_of(numbers, np.stack(counts, axis=1), rng)
