"""Protocols inside one process, without a transport: endpoints, distances and figures per pair."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from jaxfed.secure.hamming.pair import Block, bits_of
from jaxfed.secure.primitives.prg import derived_seed


class Run(NamedTuple):
    """Result and cost of a protocol: distances uint16 [n, m], bytes of all messages' payloads."""

    distances: np.ndarray
    num_bytes: int


class Loopback:
    """All parties' endpoints in one: messages wait in a queue; seeds come from a fixed secret."""

    def __init__(self) -> None:
        self.queues: dict[tuple[int, int, str], deque[bytes]] = defaultdict(deque)
        self.num_bytes = 0

    def endpoint(self, address: int) -> LoopbackEndpoint:
        """One party's end."""
        return LoopbackEndpoint(self, address)


class LoopbackEndpoint:
    """One party's end of a `Loopback`; see `jaxfed.secure.session.endpoint.Endpoint`."""

    def __init__(self, loopback: Loopback, address: int) -> None:
        self._loopback, self.address = loopback, address

    def send(self, receiver: int, kind: str, payload: bytes) -> None:
        """Put the message into the receiver's queue."""
        self._loopback.num_bytes += len(payload)
        self._loopback.queues[self.address, receiver, kind].append(payload)

    def receive(self, sender: int, kind: str) -> bytes:
        """Take the next message of this kind."""
        return self._loopback.queues[sender, self.address, kind].popleft()

    def discard(self, kind: str) -> None:
        """Do nothing: no abandoned message waits here."""

    def group_seed(self, label: str) -> bytes:
        """A seed shared by all clients."""
        return derived_seed(b"benchmark", f"group/{label}")

    def pair_seed(self, partner: int, label: str) -> bytes:
        """A seed shared by this client and its partner."""
        low, high = sorted((self.address, partner))
        return derived_seed(b"benchmark", f"{low}/{high}/{label}")

    def claim(self, label: str) -> None:
        """Do nothing: every repetition is a new session."""


def a_pair(run: Run, seconds: float) -> dict[str, float]:
    """Cost per pair of points."""
    pairs = run.distances.size
    return {"us a pair": 1e6 * seconds / pairs, "bytes a pair": run.num_bytes / pairs}


def promised(*costs: float) -> dict[str, float]:
    """Promised upper bounds of microseconds and bytes per pair, as far as given."""
    return dict(zip(("us a pair", "bytes a pair"), costs, strict=False))


def joined(blocks: Iterable[Block], shape: tuple[int, int]) -> np.ndarray:
    """All distances between two clients, uint16 [n_j, n_k]."""
    found = np.empty(shape, np.uint16)
    for block in blocks:
        rows, columns = block.rows, block.columns
        found[rows.start : rows.stop, columns.start : columns.stop] = block.distances
    return found


def plaintext(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Distances of codes in the clear."""
    x, y = bits_of(a).astype(np.float32), bits_of(b).astype(np.float32)
    return (x.sum(axis=1)[:, None] + y.sum(axis=1) - 2 * (x @ y.T)).astype(np.uint16)


def equal(ours: Run, theirs: np.ndarray) -> str:
    """Check that a protocol's distances equal the plaintext's."""
    assert np.array_equal(ours.distances, theirs), "secure distances differ from the plaintext's"
    return "equal"
