"""Bytes on the wire, by kind of message, counted from shapes and dtypes.

A method counts each message once per round; `summary.json` reports the totals. Bytes are those of the
payload, without headers, and without compression except a method's own (entries that it does not send).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import jax


@dataclass
class Communication:
    """Bytes that the clients of one round send to the server (upload) and receive from it (download).

    Messages from client to client pass through the server in this field's protocols: they count once
    as upload and once as download.
    """

    upload: Counter[str] = field(default_factory=Counter)
    download: Counter[str] = field(default_factory=Counter)

    def up(self, kind: str, num_bytes: int) -> None:
        """Count `num_bytes` sent by clients as messages of this kind."""
        self.upload[kind] += int(num_bytes)

    def down(self, kind: str, num_bytes: int) -> None:
        """Count `num_bytes` received by clients as messages of this kind."""
        self.download[kind] += int(num_bytes)

    def add(self, other: Communication) -> None:
        """Add the bytes that the other has counted."""
        self.upload.update(other.upload)
        self.download.update(other.download)

    def metrics(self) -> dict[str, int | dict[str, int]]:
        """Totals and the bytes of every kind, as the `communication` entry of a round's metrics."""
        return {
            "upload_bytes": sum(self.upload.values()),
            "download_bytes": sum(self.download.values()),
            "upload": dict(self.upload),
            "download": dict(self.download),
        }


def num_bytes_of(tree: Any) -> int:
    """Bytes of all arrays of a pytree, sent whole; FedMatch counts partial ones."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def bytes_unit(size: float) -> tuple[str, float]:
    """Unit for a number of bytes, with a leading space, and the bytes of that unit."""
    for unit, scale in ((" GB", 1e9), (" MB", 1e6), (" kB", 1e3)):
        if size >= scale:
            return unit, scale
    return " B", 1.0


def label_bytes(num_labels: int, num_values: int) -> int:
    """Bytes of packed labels with `num_values` values, ceil(log2 num_values) bits each.

    The values are the C classes, and one more if a label may be missing.
    """
    return -(-num_labels * (num_values - 1).bit_length() // 8)
