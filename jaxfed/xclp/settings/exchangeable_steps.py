"""Exchangeable steps of Algorithm 1 by name: the values that a setting allows, and the functions behind them.

The functions of one table take the same arguments, so a protocol replaces a plaintext step without a change
elsewhere. A function is imported when a labeling uses it, because only protocols need their packages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from jaxfed.registry import Place, Registry

# (indices, distances) of the nearest points, int32 [n, k], after the clients that take part.
Neighbors = tuple[list[int], np.ndarray, np.ndarray]
Counts = Mapping[int, np.ndarray]  # numbers of labels of every client, float32 [t, C]

_PROTOCOLS = ("phe", "ot", "masked")  # functions of `jaxfed.secure.hamming.protocols`


def _table(key: str, **steps: Place) -> Registry[Any]:
    return Registry(f"xclp.{key}", steps)


def _step(file: str, name: str, **keywords: Any) -> Place:
    return Place(f"jaxfed.xclp.steps.{file}", name, keywords)


# Line 3: the source of Pi.
PROJECTIONS: Registry[Callable[..., jax.Array]] = _table(
    "projection",
    seed=_step("projection", "projection_of_seed"),
    group_secret=_step("projection", "projection_of_group_secret"),
)
# Lines 5 and 7: codes of all clients -> `Neighbors`.
HAMMING: Registry[Callable[..., Neighbors]] = _table(
    "hamming",
    plaintext=_step("hamming", "plaintext_hamming"),
    **{name: _step("hamming", "secure_hamming", protocol=name) for name in _PROTOCOLS},
)
# The same for points that come after the graph.
IN_GRAPH: Registry[Callable[..., Neighbors]] = _table(
    "hamming",
    plaintext=_step("hamming", "plaintext_in_graph"),
    **{name: _step("hamming", "secure_in_graph", protocol=name) for name in _PROTOCOLS},
)
# Search over codes in the clear: (codes, k, valid=...) -> (indices, distances).
NEIGHBORS: Registry[Callable[..., tuple[jax.Array, jax.Array]]] = _table(
    "neighbors",
    exact=Place("jaxfed.kernels.knn", "hamming_knn"),
    approximate=Place("jaxfed.kernels.nn_descent", "approximate_hamming_knn"),
)
# Lines 10 to 13: the server's matrix and the clients' labels -> `Contributions`.
INFLUENCE: Registry[Callable[..., Any]] = _table(
    "influence",
    labels=_step("contributions", "contributions_by_labels"),
    columns=_step("contributions", "contributions_by_columns"),
)
# Line 14: `Contributions` and `Counts` -> each client's rows of the sums, and the summed counts.
ROW_SUMS: Registry[Callable[..., dict[int, tuple[np.ndarray, np.ndarray]]]] = _table(
    "row_sums",
    plaintext=_step("row_sums", "plaintext_row_sums"),
    masked=_step("row_sums", "secure_row_sums"),
    masked_resilient=_step("row_sums", "secure_row_sums", resilient=True),
    masked_resilient_signed=_step("row_sums", "secure_row_sums", resilient=True, signed=True),
)
