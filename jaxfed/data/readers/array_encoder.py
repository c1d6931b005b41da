"""Arrays as examples: what `.npz` files, TFDS sets, LEAF's files and readers of your own hold."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from jaxfed.data.given_examples import Range, as_array, examples_of
from jaxfed.errors import UsageError

_LONGEST = 2**31  # numbers of an example


@dataclass(frozen=True)
class ArrayEncoder:
    """Encoder of arrays [n, ...], or of one example without its first axis.

    The single channel of grey images may be left out, and examples may be flat.

    Attributes:
        shape: of an example.
        is_bytes: True for uint8, as images are stored; else numbers, which become float32.
        is_wide: numbers become float64.
        scale: `Range` of the numbers that were trained on; None if it is not known.
    """

    shape: tuple[int, ...]
    is_bytes: bool
    is_wide: bool = False
    scale: tuple[float, float, bool] | None = None

    @classmethod
    def of(cls, x: np.ndarray) -> ArrayEncoder:
        """Return the encoder of rows like these examples."""
        is_bytes = x.dtype == np.uint8
        scale = None if is_bytes else Range.of(x)
        return cls(x.shape[1:], is_bytes, x.dtype == np.float64, scale)

    def __post_init__(self) -> None:
        """Refuse shapes that no example has."""
        if not all(0 < size < _LONGEST for size in self.shape) or math.prod(self.shape) > _LONGEST:
            raise ValueError(f"an example of shape {list(self.shape)}")

    @property
    def names(self) -> tuple[str, ...]:
        """No names."""
        return ()

    @property
    def accepts(self) -> str:
        """The arrays in words."""
        kind = "uint8" if self.is_bytes else "numbers"
        return f"an array of {kind} [{', '.join(['n', *map(str, self.shape)])}]"

    def __call__(self, rows: Any) -> np.ndarray:
        """Return the examples [n, *shape]."""
        x = rows if np.ma.isMaskedArray(rows) else as_array(rows, "rows")
        for shape in self._shapes():
            if x.shape[1:] == shape and x.ndim:
                return self._typed(x.reshape(len(x), *self.shape))
        for shape in self._shapes():
            if x.shape == shape:
                return self._typed(x.reshape(1, *self.shape))
        raise UsageError(f"rows have shape {list(x.shape)}; give {self.accepts}")

    def blank(self) -> np.ndarray:
        """Return no examples, [0, *shape]."""
        numbers = np.float64 if self.is_wide else np.float32
        return np.zeros((0, *self.shape), np.uint8 if self.is_bytes else numbers)

    def described(self) -> dict[str, Any]:
        """Return the attributes."""
        return {"kind": "arrays", **asdict(self)}

    def _shapes(self) -> Iterator[tuple[int, ...]]:
        yield self.shape
        if self.shape[-1] == 1:
            yield self.shape[:-1]
        yield (math.prod(self.shape),)

    def _typed(self, x: np.ndarray) -> np.ndarray:
        x = examples_of(x, f"rows ({self.accepts})", like=self.blank())
        if self.scale is not None:
            Range(*self.scale).check(x, "rows")
        return x.astype(self.blank().dtype, copy=False)
