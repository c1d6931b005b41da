"""Encoding of rows as they are outside jaxfed, exactly as at training.

    encoding = RowEncoding(encoder_of(dataset), gaps, scaling)
    x = encoding(rows)                 # as clients held their examples

An encoder belongs to a reader (`Dataset.encoder`); gaps and scaling to the training rows of a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from jaxfed.data.dataset import ArrayEncoder, Dataset, Encoder, Gaps
from jaxfed.data.mapped_rows import is_mapped
from jaxfed.data.readers.images import ImageEncoder
from jaxfed.data.readers.table_encoder import Column, TableEncoder
from jaxfed.data.transforms import Standardization
from jaxfed.host.safe_files import typed


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
        numbers = tuple(map(Column, columns))
        return RowEncoding(TableEncoder(numbers, tuple(columns)))
    return RowEncoding(ArrayEncoder(shape, np.dtype(dtype) == np.uint8))


_KINDS = {"table": TableEncoder, "arrays": ArrayEncoder, "images": ImageEncoder}


def _as_json(encoder: Any) -> dict[str, Any]:
    kind = next(name for name, kind in _KINDS.items() if kind is type(encoder))
    return {"kind": kind, **asdict(encoder)}


def encoder_from(described: Mapping[str, Any]) -> Encoder:
    """Return the encoder that a `RowEncoding` describes; KeyError, TypeError or ValueError if none."""
    kind: Any = _KINDS[described["kind"]]
    given = _known(kind, described)
    if kind is TableEncoder:
        given["columns"] = [_known(Column, column) for column in described["columns"]]
    encoder: Encoder = typed(kind, given, "encoder")
    return encoder


def _known(kind: Any, described: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that this version has; earlier ones wrote more."""
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in described.items() if name in names}
