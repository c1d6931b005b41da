"""Image files, images and bytes as examples, decoded and resized as the reader of a folder does."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from jaxfed.data.readers.array_encoder import ArrayEncoder
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
class ImageEncoder:
    """Encoder of paths of image files, of their bytes, of PIL images, and of arrays as stored.

    Bytes may stand in a dict, as `datasets` writes them: {"bytes": ..., "path": ...}.

    Attributes:
        width: of an example, pixels.
        height: of an example, pixels.
        channels: 1 for grey, 3 for RGB.
        share: of the shorter side that a center crop keeps; 0: images are resized whole.
    """

    width: int
    height: int
    channels: int
    share: float = 0.0

    def __post_init__(self) -> None:
        """Refuse images that no file has."""
        self.blank()  # refuses impossible shapes
        if self.channels not in (1, 3) or not 0 <= self.share <= 1:
            raise ValueError(f"images of {self.channels} channels, {self.share} of their side")

    @property
    def names(self) -> tuple[str, ...]:
        """No names."""
        return ()

    @property
    def accepts(self) -> str:
        """The kinds of images in words."""
        return (
            "a path, a PIL image or the bytes of an image file, a list of them, or "
            f"{self._arrays.accepts}"
        )

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

    def described(self) -> dict[str, Any]:
        """Return the attributes."""
        return {"kind": "images", **asdict(self)}

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
