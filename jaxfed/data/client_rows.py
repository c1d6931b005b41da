"""Row numbers of each client's examples, stored in a few arrays instead of an object for each client.

    rows = ClientRows.by_owner(points, owner, num_clients)
    rows[k], rows.sizes, rows.joined        # one client's; all sizes [M]; all rows, client after client

A federation of a million clients then takes three arrays instead of three million.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class ClientRows(Sequence[np.ndarray]):
    """A sequence of M int64 arrays; client k's array is made when it is indexed.

        self[k] = rows[start[k] : start[k] + sizes[k]]

    Attributes:
        start: int64 [M], position of each client's first entry in `rows`.
        sizes: int64 [M], number of its entries.
        rows: int64 [n]; None stands for 0, 1, ..., if each client's examples are adjacent.
    """

    def __init__(self, start: np.ndarray, sizes: np.ndarray, rows: np.ndarray | None = None):
        self.start, self.sizes = (np.asarray(each, np.int64) for each in (start, sizes))
        self.rows = rows

    @classmethod
    def of(cls, clients: Sequence[np.ndarray]) -> ClientRows:
        """Return the same rows as `ClientRows`; `clients` itself if it is one."""
        if isinstance(clients, ClientRows):
            return clients
        sizes = np.fromiter(map(len, clients), np.int64, len(clients))
        return cls.contiguous(sizes, np.concatenate([np.zeros(0, np.int64), *clients]))

    @classmethod
    def contiguous(cls, sizes: np.ndarray, rows: np.ndarray | None = None) -> ClientRows:
        """Return clients with successive entries of `rows`."""
        sizes = np.asarray(sizes, np.int64)
        return cls(np.cumsum(sizes) - sizes, sizes, rows)

    @classmethod
    def empty(cls, num_clients: int) -> ClientRows:
        """Return clients without rows."""
        return cls.contiguous(np.zeros(num_clients, np.int64))

    @classmethod
    def by_owner(cls, rows: np.ndarray, owner: np.ndarray, num_clients: int) -> ClientRows:
        """Return the rows of each client, in the given order; `owner` int [n] is the client of each row."""
        order = np.argsort(owner, kind="stable")
        return cls.contiguous(np.bincount(owner, minlength=num_clients), rows[order])

    @property
    def joined(self) -> np.ndarray:
        """int64, all clients' rows, client after client."""
        shift = self.start - (np.cumsum(self.sizes) - self.sizes)
        within = np.arange(self.sizes.sum()) + np.repeat(shift, self.sizes)
        return within if self.rows is None else self.rows[within]

    @property
    def owner(self) -> np.ndarray:
        """int64, the client of each of the `joined` rows."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def chosen(self, keep: np.ndarray) -> ClientRows:
        """Return the same clients with only those of the `joined` rows for which `keep` is True."""
        return ClientRows.by_owner(self.joined[keep], self.owner[keep], len(self))

    def __len__(self) -> int:
        """M."""
        return len(self.sizes)

    def __getitem__(self, client: Any) -> Any:
        """One client's rows, or some clients (a slice, or their numbers)."""
        if isinstance(client, slice) or np.ndim(client):
            return ClientRows(self.start[client], self.sizes[client], self.rows)
        start = int(self.start[client])
        end = start + int(self.sizes[client])
        return np.arange(start, end) if self.rows is None else self.rows[start:end]


class Partition(NamedTuple):
    """The examples of each client, as indices; every example of the data appears exactly once.

    Each field may be any sequence of M arrays. Partitions that jaxfed makes have `ClientRows`.

    Attributes:
        labeled: M int64 arrays, the examples whose label the client knows.
        unlabeled: M int64 arrays, the examples it holds without a label.
        new: M int64 arrays, held-out examples it wants labeled (X_new of XCLP's Section 4.1). Those
            of `new_y` count on from the end of `y`: they index the two arrays concatenated.
    """

    labeled: Sequence[np.ndarray]
    unlabeled: Sequence[np.ndarray]
    new: Sequence[np.ndarray]

    @property
    def sizes(self) -> np.ndarray:
        """int64 [3, M], each client's numbers of labeled, unlabeled and new examples."""
        return np.stack([ClientRows.of(part).sizes for part in self])

    @property
    def joined(self) -> ClientRows:
        """All rows of each client: labeled, then unlabeled, then new."""
        parts = list(map(ClientRows.of, self))
        owner = np.concatenate([part.owner for part in parts])
        rows = np.concatenate([part.joined for part in parts])
        return ClientRows.by_owner(rows, owner, len(self.labeled))
