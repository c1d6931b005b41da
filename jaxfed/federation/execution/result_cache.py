"""Cache of computed results, by the contents of their arguments.

Cross-validation labels the same points again and again with other labels and settings. The larger part of the
work (codes, nearest neighbors) depends on the points alone, and is the same every time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxfed.kernels.devices.spread import everywhere


class ResultCache:
    """Cache by the function and the contents of its arguments, without eviction.

    Cost: a look-up reads all arguments once (BLAKE2b, about 1 GB/s).
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[Callable[..., Any], bytes], Any] = {}

    def once(self, compute: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Return `compute(*arguments, **keywords)`, or the cached result of the same call.

        Arguments are trees of arrays, numbers and text. `compute` must depend on nothing else, and
        its result must not be written to.
        """
        key = compute, digest_of((arguments, keywords))
        if key not in self._kept:
            self._kept[key] = compute(*arguments, **keywords)
        return self._kept[key]


def digest_of(arguments: Any) -> bytes:
    """BLAKE2b, 32 bytes, of a tree of arrays, numbers and text: of contents, shapes and dtypes."""
    leaves, structure = jax.tree.flatten(arguments)
    digest = hashlib.blake2b(repr(structure).encode(), digest_size=32)
    for leaf in leaves:
        array = np.asarray(everywhere(leaf))
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        # A contiguous copy has at least one axis.
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.digest()
