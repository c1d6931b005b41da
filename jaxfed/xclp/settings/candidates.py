"""Settings of XCLP and of label propagation that can be selected, and their candidate values: `xclp.select`.

("alpha", "label_matrix")                    every combination of the values in `CANDIDATES`
("alpha:0.5:0.9:0.99", "num_neighbors")      these values of alpha instead
    ("alpha", "client_prior")                    and an estimate of the client prior, which has no candidates
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxfed.errors import UsageError

LABEL_MATRICES = ("plain", "class_balanced")  # as in `jaxfed.xclp.steps.label_matrix`
CANDIDATES: dict[str, tuple[Any, ...]] = {
    "alpha": (0.5, 0.8, 0.9, 0.95, 0.99),
    "label_matrix": LABEL_MATRICES,
    "num_neighbors": (5, 10, 20),
    "similarity_power": (1.0, 3.0),
    "num_bits": (1024, 4096),
    "client_prior": (),  # estimated, not picked: `jaxfed.xclp.selection.prior_fit`
}


def hit_rate(hits: np.ndarray, counts: np.ndarray) -> float:
    """Share of labels that leave-one-out recovers, from numbers by class, [C] each."""
    return float(hits.sum() / counts.sum())


def balanced_hit_rate(hits: np.ndarray, counts: np.ndarray) -> float:
    """Mean share of recovered labels over the classes that have labels."""
    present = counts > 0
    return float(np.mean(hits[present] / counts[present]))


MEASURES = {"accuracy": hit_rate, "balanced_accuracy": balanced_hit_rate}


def parsed(entries: Sequence[str], keys: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Parse entries "KEY" or "KEY:VALUE:..." to a mapping from key to values.

    Raises:
        UsageError: not a list of entries, an unknown or repeated key, or a value of the wrong type.
    """
    if not isinstance(entries, list | tuple):
        raise refused(entries, "use a list of texts, such as ('alpha', 'num_neighbors:5:10')")
    found: dict[str, tuple[Any, ...]] = {}
    for entry in entries:
        key, *texts = str(entry).split(":")
        if key not in keys or key in found:
            raise refused(
                entry,
                f"use each of {', '.join(map(repr, keys))} once, alone or with values as in 'alpha:0.5:0.9'",
            )
        if not CANDIDATES[key]:
            if texts:
                raise refused(entry, f"use {key!r} alone; leave-one-out estimates it")
            found[key] = ()
            continue
        kind = type(CANDIDATES[key][0])
        try:
            found[key] = tuple(kind(text) for text in texts) or CANDIDATES[key]
        except ValueError:
            like = f"use {kind.__name__}s as values of {key}, such as {CANDIDATES[key][0]}"
            raise refused(entry, like) from None
    return found


def refused(value: Any, allowed: str, wrong: str = "") -> UsageError:
    """Return the error for a value of `select`."""
    return UsageError(wrong, key="select", owner="xclp", value=value, allowed=allowed)
