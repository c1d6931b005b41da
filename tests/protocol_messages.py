"""Messages and labels of XCLP over every pair of protocols, of the tree on PYTHONPATH, as JSON.

    python -P tests/protocol_messages.py FILE.json

Parties draw their randomness from the operating system, so bits of messages differ between two runs. Compared
are the sender, receiver, kind, number and bytes of messages, and every label. Headers are parsed here, by the
wire format of `jaxfed.secure.session.framing`: a change of it is a difference.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import struct
import sys
from collections import defaultdict
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

HEADER = struct.Struct(">6sBBB16siiQQ")
SETTINGS = {
    "num_classes": 10,
    "num_bits": 64,
    "num_neighbors": 3,
    "alpha": 0.9,
    "influence": "columns",
}
HAMMING = ("plaintext", "masked", "ot", "phe")
ROW_SUMS = ("plaintext", "masked", "masked_resilient", "masked_resilient_signed")
MASKED = {"hamming": "masked", "row_sums": "masked"}
RESILIENT = {"hamming": "masked", "row_sums": "masked_resilient"}
MORE: dict[str, dict[str, Any]] = {
    "labels": {"hamming": "masked", "influence": "labels"},
    "class balanced, prior": {**MASKED, "label_matrix": "class_balanced", "client_prior": 1.0},
    "left at hamming": {**RESILIENT, "presence": ("1@hamming",)},
    "left at row sums": {**RESILIENT, "presence": ("1@row_sums",)},
    "left at sums": {**RESILIENT, "presence": ("2@sums",)},
}


def channel_classes() -> list[type]:
    """Classes named Channel of `jaxfed.secure`, wherever it has them."""
    import jaxfed.secure

    found = set()
    for module in pkgutil.walk_packages(jaxfed.secure.__path__, "jaxfed.secure."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if name == "Channel" and inspect.isclass(value):
                found.add(value)
    return list(found)


def record(log: list[tuple[str, int]]) -> None:
    """Append the route and length of every message that is sent from now on."""
    (channel,) = channel_classes()
    send: Callable[..., None] = channel.send

    def recorded(self: Any, message: bytes) -> None:
        _, _, _, length, _, sender, receiver, _, _ = HEADER.unpack_from(message)
        kind = bytes(message[HEADER.size : HEADER.size + length]).decode()
        log.append((f"{sender} to {receiver}: {kind}", len(message)))
        send(self, message)

    channel.send = recorded


def clients(number: int = 3, size: int = 12) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Digits of a few clients, every third with its label."""
    data = load_digits()
    x = data.data[: number * size].astype(np.float32) - 5
    y = np.where(np.arange(number * size) % 3 == 0, data.target[: number * size], -1)
    return np.split(x, number), np.split(y, number)


def case(log: list[tuple[str, int]], **settings: Any) -> dict[str, Any]:
    """Labels and messages of one run."""
    from jaxfed.xclp import propagate_labels

    log.clear()
    labeling = propagate_labels(*clients(), **SETTINGS | settings)
    messages = defaultdict(list)
    for route, size in log:
        messages[route].append(size)
    return {
        "labels": [np.asarray(own.labels).tolist() for own in labeling],
        "messages": {route: [len(sizes), sum(sizes)] for route, sizes in messages.items()},
    }


def main(file: Path) -> None:
    """Write the file."""
    log: list[tuple[str, int]] = []
    record(log)
    found = {}
    for hamming, row_sums in product(HAMMING, ROW_SUMS):
        found[f"{hamming} {row_sums}"] = case(log, hamming=hamming, row_sums=row_sums)
    for name, settings in MORE.items():
        found[name] = case(log, **settings)
    file.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
