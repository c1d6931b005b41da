"""Transforms of examples that training rows determine, and encoding of other rows exactly as at training.

    scale = standardization(x_train)
    x = scale(x_train, x_test)         # float32, one after the other

    encoding = RowEncoding(encoder_of(dataset), gaps, scale)
    x = encoding(rows)                 # as clients held their examples

An encoder belongs to a reader (`Dataset.encoder`); gaps and scaling to the training rows of a run. Scaling
needs memory for the result and for a block of rows of x. Principal components are

    C = 1/n sum_i (x_i - m) (x_i - m)^T = U diag(l) U^T,   l_1 >= l_2 >= ..,   z = (x - m) U[:, :k]

The mean m and C are sums over examples, [d] and [d, d], which clients could add without showing theirs; a
simulation counts no bytes for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from jaxfed.data.dataset import ArrayEncoder, Dataset, Encoder, Gaps
from jaxfed.data.mapped_rows import is_mapped, parts
from jaxfed.data.readers.images import ImageEncoder
from jaxfed.data.readers.tables import Column, TableEncoder
from jaxfed.host.safe_files import typed


class Standardization(NamedTuple):
    """The transform x' = (x - mean) scale, computed in float64, returned as float32."""

    mean: np.ndarray
    scale: np.ndarray

    def __call__(self, *arrays: np.ndarray) -> np.ndarray:
        """Transform arrays of examples [n_i, ...]; return all of them in one array."""
        scaled = np.empty((sum(map(len, arrays)), *arrays[0].shape[1:]), np.float32)
        done = 0
        for x in arrays:
            for part in parts(x):
                scaled[done : done + len(part)] = (part - self.mean) * self.scale
                done += len(part)
        return scaled


def standardization(x: np.ndarray, rows: np.ndarray | slice = slice(None)) -> Standardization:
    """Return the transform that scales every feature to mean 0 and variance 1 over some examples.

    x'_ij = (x_ij - mean_j) / deviation_j, in float32; a constant feature becomes 0. Other
    examples are transformed by the same mean and deviation. Without it, the feature of the largest unit
    (an area, not a radius) would dominate every cosine and distance.

    `rows` [n] of x are measured, by default all.
    """
    is_measured = np.zeros(len(x), bool)
    is_measured[rows] = True
    number = np.count_nonzero(is_measured)

    def mean_of(value: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """The mean over these rows, summed in float64 and in their order, so that blocks do not change it."""
        total, start = np.zeros(x.shape[1:]), 0
        for part in parts(x):
            measured = part[is_measured[start : start + len(part)]].astype(np.float64)
            total = np.concatenate([total[None], value(measured)]).sum(axis=0)
            start += len(part)
        return total / number

    mean = mean_of(lambda part: part)
    deviation = np.sqrt(mean_of(lambda part: (part - mean) ** 2))
    # A constant column may have a deviation of rounding errors only.
    constant = deviation <= 1e-12 * np.abs(mean)
    return Standardization(mean, np.where(constant, 0.0, 1.0 / np.where(constant, 1.0, deviation)))


class Projection(NamedTuple):
    """Projection z = (x - mean) directions: float32 mean [d] and directions [d, k], columns orthonormal."""

    mean: np.ndarray
    directions: np.ndarray

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return float32 [n, k] of x [n, d], NumPy's or JAX's."""
        return (x - self.mean[None]) @ self.directions


def principal_components(x: np.ndarray, number: int) -> Projection:
    """Return the projection onto the directions in which x [n, d] varies most, the largest variance first.

    Of the two signs of a direction the one is taken in which its largest entry is positive. Computed in
    float64: n d^2 multiplications and an eigendecomposition.
    """
    mean = x.mean(axis=0, dtype=np.float64)
    centered = x - mean
    _, vectors = np.linalg.eigh(centered.T @ centered)
    directions = vectors[:, ::-1][:, :number]
    largest = np.take_along_axis(directions, np.abs(directions).argmax(axis=0)[None], axis=0)
    directions = directions * np.sign(largest)
    return Projection(mean.astype(np.float32), directions.astype(np.float32))


@dataclass(frozen=True)
class RowEncoding:
    """All that is done to a row before a network sees it.

    Attributes:
        encoder: from rows to numbers or bytes [n, ...].
        gaps: fills missing numbers; None: there are none.
        scaling: the scale of features; None: as they are.
        is_flat: examples become float32 [n, d].
    """

    encoder: Encoder
    gaps: Gaps | None = None
    scaling: Standardization | None = None
    is_flat: bool = False

    def __call__(self, rows: Any) -> np.ndarray:
        """Return the examples of these rows, as clients held theirs.

        Raises:
            UsageError: rows that the encoder or the gaps refuse.
        """
        return self.prepared(self.encoder(rows))

    def prepared(self, x: np.ndarray) -> np.ndarray:
        """Return the examples of what the encoder gives."""
        if self.gaps is not None:
            x = self.gaps.filled(x, self.encoder.names)
        elif self.encoder.names:
            x = Gaps((), ()).filled(x, self.encoder.names)  # refuses any gap
        if self.scaling is not None:
            x = self.scaling(x)
        return flat(x) if self.is_flat else x

    @property
    def names(self) -> tuple[str, ...]:
        """Names of an example's numbers; () if they have none."""
        names = self.encoder.names
        missing = self.gaps.columns if self.gaps is not None and names else ()
        return (*names, *(f"{names[column]} is missing" for column in missing))

    def described(self) -> dict[str, Any]:
        """Return the encoding as a JSON object, which `encoding_from` reads."""
        return {
            "encoder": _as_json(self.encoder),
            "gaps": self.gaps._asdict() if self.gaps else None,
            "scaling": [part.tolist() for part in self.scaling] if self.scaling else None,
            "is_flat": self.is_flat,
        }


def flat(x: np.ndarray) -> np.ndarray:
    """float32 [n, d] of examples [n, ...]; float32 stays where it is, in memory or mapped."""
    is_read_anew = isinstance(x, np.memmap) and not is_mapped(x)  # megabytes around each row
    return x.reshape(len(x), int(np.prod(x.shape[1:]))).astype(np.float32, copy=is_read_anew)


def encoder_of(dataset: Dataset) -> Encoder:
    """Return the data set's encoder; examples of a reader without one are arrays."""
    return dataset.encoder or ArrayEncoder.of(dataset.x)


class _Described(NamedTuple):
    encoder: dict[str, Any]
    gaps: Gaps | None
    scaling: tuple[np.ndarray, np.ndarray] | None
    is_flat: bool


def encoding_from(described: Mapping[str, Any]) -> RowEncoding:
    """Return the encoding that `RowEncoding.described` describes; errors as of `encoder_from`."""
    parsed = typed(_Described, dict(described), "encoding")
    scaling = None if parsed.scaling is None else Standardization(*parsed.scaling)
    return RowEncoding(encoder_from(parsed.encoder), parsed.gaps, scaling, parsed.is_flat)


def encoding_of_arrays(
    shape: tuple[int, ...], dtype: Any, columns: Sequence[str] = ()
) -> RowEncoding:
    """Return the encoding of arrays, or of rows of numbers with these names, which changes no value."""
    if columns:
        return RowEncoding(TableEncoder(tuple(map(Column, columns))))
    return RowEncoding(ArrayEncoder(shape, np.dtype(dtype) == np.uint8))


_KINDS = {"table": TableEncoder, "arrays": ArrayEncoder, "images": ImageEncoder}


def _as_json(encoder: Any) -> dict[str, Any]:
    kind = next(name for name, kind in _KINDS.items() if kind is type(encoder))
    return {"kind": kind, **asdict(encoder)}


def encoder_from(described: Mapping[str, Any]) -> Encoder:
    """Return the encoder that a `RowEncoding` describes; KeyError, TypeError or ValueError if none."""
    kind: Any = _KINDS[described["kind"]]
    settings = _known(kind, described)
    if kind is TableEncoder:
        settings["columns"] = [_known(Column, column) for column in described["columns"]]
    encoder: Encoder = typed(kind, settings, "encoder")
    return encoder


def _known(kind: Any, described: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that this version has; earlier ones wrote more."""
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in described.items() if name in names}
