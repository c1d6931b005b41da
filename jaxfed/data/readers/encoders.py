"""Encoders of arrays and of images: what files, TFDS sets and readers of your own hold."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from jaxfed.data.given_examples import Range, as_array, examples_of
from jaxfed.data.readers.image_files import (
    Encoded,
    Fit,
    Shape,
    center,
    decoded_image,
    fitted,
    whole,
)
from jaxfed.errors import UsageError


@dataclass(frozen=True)
class ArrayEncoder:
    """Encoder of arrays [n, ...], or of one example without its first axis.

    The single channel of grey images may be left out.

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

    names = ()

    @classmethod
    def of(cls, x: np.ndarray) -> ArrayEncoder:
        """Return the encoder of rows like these examples."""
        is_bytes = x.dtype == np.uint8
        scale = None if is_bytes else Range.of(x)
        return cls(x.shape[1:], is_bytes, x.dtype == np.float64, scale)

    def __post_init__(self) -> None:
        """Refuse shapes that no example has."""
        if not all(size > 0 for size in self.shape) or math.prod(self.shape) >= 2**31:
            raise ValueError(f"an example of shape {list(self.shape)}")

    @property
    def accepts(self) -> str:
        """The arrays in words."""
        kind = "uint8" if self.is_bytes else "numbers"
        return f"an array of {kind} [{', '.join(['n', *map(str, self.shape)])}]"

    def __call__(self, rows: Any) -> np.ndarray:
        """Return the examples [n, *shape]."""
        x = rows if np.ma.isMaskedArray(rows) else as_array(rows, "rows")
        flat = self.shape[:-1] if self.shape[-1] == 1 else self.shape
        if x.shape not in (self.shape, flat) and x.shape[1:] not in (self.shape, flat):
            raise UsageError(f"rows have shape {list(x.shape)}; give {self.accepts}")
        x = x.reshape(-1, *self.shape)
        x = examples_of(x, f"rows ({self.accepts})", like=self.blank())
        if self.scale is not None:
            Range(*self.scale).check(x, "rows")
        return x.astype(self.blank().dtype, copy=False)

    def blank(self) -> np.ndarray:
        """Return no examples, [0, *shape]."""
        numbers = np.float64 if self.is_wide else np.float32
        return np.zeros((0, *self.shape), np.uint8 if self.is_bytes else numbers)


@dataclass(frozen=True)
class ImageEncoder:
    """Encoder of paths of image files, of their bytes, of PIL images, and of arrays as stored.

    They are decoded and resized as the reader of a folder does. Bytes may stand in a dict, as `datasets`
    writes them: {"bytes": ..., "path": ...}.

    Attributes:
        width, height: of an example, pixels.
        channels: 1 for grey, 3 for RGB.
        share: of the shorter side that a center crop keeps; 0: images are resized whole.
    """

    width: int
    height: int
    channels: int
    share: float = 0.0

    names = ()

    @property
    def accepts(self) -> str:
        """The kinds of images in words."""
        files = "a path, a PIL image or the bytes of an image file, a list of them"
        return f"{files}, or {self._arrays.accepts}"

    def __call__(self, rows: Any) -> np.ndarray:
        """Return uint8 [n, height, width, channels]."""
        if isinstance(rows, np.ndarray):
            return self._arrays(rows)
        is_one = isinstance(rows, str | bytes | Mapping | os.PathLike) or hasattr(rows, "convert")
        if not is_one and not isinstance(rows, Iterable):
            raise UsageError(f"rows are a {type(rows).__name__}; give {self.accepts}")
        images = [self._decoded(each) for each in ([rows] if is_one else rows)]
        return np.stack(images) if images else self.blank()

    def blank(self) -> np.ndarray:
        """Return no images, uint8 [0, height, width, channels]."""
        return self._arrays.blank()

    @property
    def _arrays(self) -> ArrayEncoder:
        return ArrayEncoder((self.height, self.width, self.channels), is_bytes=True)

    def _decoded(self, image: Any) -> np.ndarray:
        shape = Shape(self.width, self.height, self.channels)
        fit: Fit = partial(center, share=self.share) if self.share else whole
        if isinstance(image, bytes | Mapping):
            return decoded_image(Encoded.of("an image of bytes", image), shape, fit)
        if isinstance(image, str | os.PathLike):
            return decoded_image(Path(image).expanduser(), shape, fit)
        if hasattr(image, "convert"):
            return fitted(image, "a PIL image", shape, fit)
        return self._arrays(image)[0]
