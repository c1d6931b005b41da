"""Flat records of arrays, bytes and plain values: the content of a message, and of a client's files.

A record maps names to values. Its encoding is canonical, so equal records have equal bytes and one hash:

    head      JSON: [[name, "array", dtype, shape] | [name, "bytes", size] | [name, "value", value], ...],
              sorted by name
    payload   arrays (little-endian, in C order) and bytes, one after another in the order of the head

Nothing is ever unpickled, and sizes are checked before memory is allocated. This file needs neither Flower
nor JAX; `pytrees` turns trees into records.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise
from typing import Any

import ml_dtypes
import numpy as np

Value = np.ndarray | bytes | str | bool | int | float
Record = dict[str, Value]

_DTYPES = {
    np.dtype(dtype).name: np.dtype(dtype)
    for dtype in (
        *(bool, np.complex64, np.complex128),
        *(np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64),
        *(np.float16, np.float32, np.float64, ml_dtypes.bfloat16),
        *(ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
    )
}
_HEAD_SIZE = 8  # bytes of the length of the head in a file


class BadMessage(ValueError):
    """Content that does not have the expected form; the text is one line."""

    def __init__(self, reason: str) -> None:
        super().__init__(" ".join(reason.split()))


def num_bytes(record: Mapping[str, Value]) -> int:
    """Bytes of the values without names, shapes and types; a number has 8, a truth value 1."""
    return sum(map(_value_bytes, record.values()))


def encode(record: Mapping[str, Value]) -> tuple[bytes, bytes]:
    """Encode a record as (head, payload)."""
    head: list[list[Any]] = []
    payload: list[bytes] = []
    for name, value in sorted(record.items()):
        if isinstance(value, np.ndarray):
            if value.dtype.name not in _DTYPES:
                raise TypeError(f"{name}: an array of {value.dtype} cannot be sent")
            head.append([name, "array", value.dtype.name, list(value.shape)])
            payload.append(_little_endian(value).tobytes())
        elif isinstance(value, bytes):
            head.append([name, "bytes", len(value)])
            payload.append(value)
        elif type(value) in (str, bool, int, float):
            head.append([name, "value", value])
        else:
            raise TypeError(f"{name}: {type(value).__name__} cannot be sent")
    return json.dumps(head, separators=(",", ":")).encode(), b"".join(payload)


def decode(head: bytes, payload: bytes) -> Record:
    """Decode a record; arrays are writable copies."""
    try:
        entries = json.loads(head)
        names = [entry[0] for entry in entries]
        sizes = [_entry_size(*entry) for entry in entries]
        if not all(a < b for a, b in pairwise(names)):
            raise BadMessage("the names of a record are not sorted, or one occurs twice")
        if sum(sizes) != len(payload):
            raise BadMessage(f"a record's payload has {len(payload)} bytes, not {sum(sizes)}")
        starts, data = accumulate(sizes, initial=0), memoryview(payload)
        return {
            name: _value(kind, form[0], form[-1], data[start : start + size])
            for (name, kind, *form), size, start in zip(entries, sizes, starts, strict=False)
        }
    except BadMessage:
        raise
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError) as error:
        raise BadMessage("the head of a record is malformed") from error


def to_bytes(record: Mapping[str, Value]) -> bytes:
    """Encode a record as the content of one file, with a checksum."""
    head, payload = encode(record)
    content = len(head).to_bytes(_HEAD_SIZE, "little") + head + payload
    return hashlib.sha256(content).digest() + content


def from_bytes(content: bytes) -> Record:
    """Decode the content of a file."""
    digest, content = content[:32], content[32:]
    if len(content) < _HEAD_SIZE or hashlib.sha256(content).digest() != digest:
        raise BadMessage("a stored record is damaged")
    end = _HEAD_SIZE + int.from_bytes(content[:_HEAD_SIZE], "little")
    return decode(content[_HEAD_SIZE:end], content[end:])


def fingerprint(record: Mapping[str, Value]) -> str:
    """SHA-256 of a record's encoding, in hexadecimal."""
    head, payload = encode(record)
    digest = hashlib.sha256(len(head).to_bytes(_HEAD_SIZE, "little") + head)
    digest.update(payload)
    return digest.hexdigest()


def part(record: Mapping[str, Value], name: str) -> Record:
    """Entries whose names begin with `name.`, without this prefix."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): v for key, v in record.items() if key.startswith(prefix)}


def prefixed(record: Mapping[str, Value], name: str) -> Record:
    """Return a record's entries with `name.` in front of their names."""
    return {f"{name}.{key}": value for key, value in record.items()}


def text(record: Mapping[str, Value], name: str, *, longest: int = 1000) -> str:
    """Return a text of a record."""
    value = _of_type(record, name, str)
    if len(value) > longest:
        raise BadMessage(f"{name} has {len(value)} characters; at most {longest} are allowed")
    return value


def whole_number(
    record: Mapping[str, Value], name: str, *, least: int = 0, most: int = sys.maxsize
) -> int:
    """Return a whole number of a record."""
    value = _of_type(record, name, int)
    if not least <= value <= most:
        end = "2^63 - 1" if most == sys.maxsize else str(most)
        raise BadMessage(f"{name} is not a whole number from {least} to {end}")
    return value


def number(record: Mapping[str, Value], name: str) -> float:
    """Return a finite number from 0 on."""
    value: float = _of_type(record, name, float)
    if not 0 <= value < math.inf:
        raise BadMessage(f"{name} is not a number from 0 on")
    return value


def _of_type(record: Mapping[str, Value], name: str, kind: type[Any]) -> Any:
    if name not in record:
        raise BadMessage(f"{name} is missing")
    value = record[name]
    if type(value) is not kind:
        raise BadMessage(f"{name} is {type(value).__name__}, not {kind.__name__}")
    return value


def _value_bytes(value: Value) -> int:
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, str):
        return len(value.encode(errors="surrogatepass"))
    return 1 if isinstance(value, bool) else 8


def _entry_size(name: str, kind: str, *form: Any) -> int:
    """Bytes in the payload of an entry of the head; a malformed entry raises."""
    if not isinstance(name, str):
        raise TypeError
    if kind == "array":
        dtype, shape = form
        return _DTYPES[dtype].itemsize * math.prod(_sizes(shape))
    (only,) = form
    if kind == "bytes":
        return math.prod(_sizes([only]))
    if kind != "value" or type(only) not in (str, bool, int, float):
        raise TypeError
    return 0


def _value(kind: str, first: Any, shape: Any, data: memoryview) -> Value:
    """Value of an entry of the head: `first` is its dtype, its size or the value itself."""
    if kind == "array":
        return _little_endian(np.frombuffer(data, _DTYPES[first]).reshape(shape)).copy()
    return bytes(data) if kind == "bytes" else first


def _sizes(shape: Any) -> Iterator[int]:
    for size in shape:
        if type(size) is not int or size < 0:
            raise TypeError
        yield size


def _little_endian(array: np.ndarray) -> np.ndarray:
    """Swap bytes where the machine or the array is big-endian; bytes on the wire are little-endian."""
    is_big = array.dtype.byteorder == ">" or (
        array.dtype.byteorder == "=" and sys.byteorder == "big"
    )
    return array.byteswap() if is_big else array
