"""Schemes by owner: a column of the data determines the client of each example."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jaxfed.data.dataset import UNLABELED
from jaxfed.data.partitioning.controlled_rounding import apportion, owners_of
from jaxfed.data.partitioning.scheme import Owners, OwnerScheme
from jaxfed.errors import UsageError


@dataclass(frozen=True, eq=False)
class Natural(OwnerScheme):
    """The clients of the data: one for each client id, in sorted order.

    With fewer clients than ids, the shuffled ids are assigned to the clients in turn, several to a client.

    Attributes:
        client_id: [n], the id of each example's client, a number or a name.
        new_client_id: [n_new], the ids of `new_y`. An id that `client_id` lacks is a client without other
            examples.
    """

    column = "client_id"

    client_id: npt.ArrayLike | None = None
    new_client_id: npt.ArrayLike | None = None

    def owners(
        self,
        y: np.ndarray,
        new_y: npt.ArrayLike | None,
        num_clients: int | None,
        rng: np.random.Generator,
    ) -> Owners:
        """Return the client of each example; without `num_clients` there is one client an id."""
        if self.client_id is None:
            raise self._error("missing")
        ids = np.asarray(self.client_id)
        new_ids = ids[:0] if new_y is None else np.asarray(self.new_client_id)
        if ids.shape != y.shape or (new_y is not None and new_ids.shape != np.shape(new_y)):
            raise self._error("ids do not match the examples")
        names, numbers = np.unique(np.concatenate([ids, new_ids]), return_inverse=True)
        if num_clients is not None and num_clients != len(names):
            if num_clients > len(names):
                raise UsageError(
                    f"the data have {len(names)} client ids",
                    key="num_clients",
                    value=num_clients,
                    allowed="use at most as many",
                )
            group = np.empty(len(names), np.int64)
            turn = rng.permutation(num_clients)  # the clients with one id more are random
            group[rng.permutation(len(names))] = turn[np.arange(len(names)) % num_clients]
            numbers = group[numbers]
        owner, new_owner = np.split(numbers.astype(np.int64), [len(ids)])
        return Owners(owner, new_owner, len(names) if num_clients is None else num_clients)


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
        self,
        y: np.ndarray,
        new_y: npt.ArrayLike | None,
        num_clients: int | None,
        rng: np.random.Generator,
    ) -> Owners:
        """Return the client of each example: one that holds its subclass."""
        if self.subclass is None:
            raise self._error("missing")
        if num_clients is None:
            raise UsageError(key="num_clients", value=None, allowed="use integers from 1 on")
        columns = [np.asarray(self.subclass)]
        splits = [y]
        if new_y is not None:
            columns.append(np.asarray(self.new_subclass))
            splits.append(np.asarray(new_y))
        if any(column.shape != split.shape for column, split in zip(columns, splits, strict=True)):
            raise self._error("numbers do not match the examples")
        classes = np.concatenate(splits)
        names, finer = np.unique(np.concatenate(columns), return_inverse=True)
        class_of = np.full(len(names), UNLABELED)
        class_of[finer] = classes
        is_bad = (class_of[finer] != classes) | (classes == UNLABELED)
        if is_bad.any():
            raise self._error(
                f"{names[finer[is_bad][0]]} has examples of several classes, or of unknown class"
            )
        most = int(np.bincount(class_of, minlength=1).max(initial=0))
        if num_clients < most:
            raise UsageError(
                f"a class has {most} subclasses, each of which needs a client",
                key="num_clients",
                value=num_clients,
                allowed=f"use integers from {most} on",
            )
        holds = np.zeros((len(names), num_clients), bool)
        for c in np.unique(class_of):
            own = rng.permutation(np.flatnonzero(class_of == c))
            holds[own[np.arange(num_clients) % len(own)], rng.permutation(num_clients)] = True
        owner, new_owner = (_split_among(part, holds, rng) for part in np.split(finer, [len(y)]))
        return Owners(owner, new_owner, num_clients)


def _split_among(numbers: np.ndarray, holds: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """int64 [n], the client of each example; `holds` [F, M] is True for the clients that hold a subclass."""
    totals = np.bincount(numbers, minlength=len(holds))
    counts = [apportion(row, total, rng) for row, total in zip(holds, totals, strict=True)]
    return owners_of(numbers, np.stack(counts, axis=1), rng)
