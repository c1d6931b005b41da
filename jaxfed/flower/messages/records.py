"""Flat records of arrays, bytes and plain values: the content of a message, and of a client's files.

A record maps names to values. Its encoding is canonical, so equal records have equal bytes and one hash:

    head      JSON object, sorted by name: an array is [dtype, shape], bytes are ["bytes", [size]], any other
              value stands for itself
    payload   arrays (little-endian, in C order) and bytes, one after another in the order of the head

Nothing is ever unpickled, and sizes are checked before memory is allocated. This file needs neither Flower
nor JAX; `pytrees` turns trees into records, `packed` named tuples.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, TypeVar, get_type_hints

import ml_dtypes
import numpy as np

from jaxfed.host import safe_files

Value = np.ndarray | bytes | str | bool | int | float
Record = dict[str, Value]
Form = TypeVar("Form", bound=Any)

_DTYPES = {
    np.dtype(kind).name: np.dtype(kind)
    for kind in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", ml_dtypes.bfloat16),
    )
}
PLAIN = (str, bool, int, float)
_LONGEST = 300  # characters of a text from elsewhere
_DIGEST, _HEAD_SIZE = 32, 8  # bytes of a file's checksum, and of the length of its head


class BadMessage(ValueError):
    """Content that does not have the expected form; the text is one line."""

    def __init__(self, reason: str) -> None:
        super().__init__(one_line(reason))


def one_line(text: str) -> str:
    """Make a text from elsewhere safe to print: one line, no control characters, not too long."""
    shown = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(shown.split())[:_LONGEST]


def num_bytes(record: Mapping[str, Value]) -> int:
    """Bytes of the values without names, shapes and types; a number has 8, a truth value 1."""

    def of(value: Value) -> int:
        if isinstance(value, str):
            value = value.encode(errors="surrogatepass")
        if isinstance(value, np.ndarray | bytes):
            return value.nbytes if isinstance(value, np.ndarray) else len(value)
        return 1 if isinstance(value, bool) else 8

    return sum(map(of, record.values()))


def encode(record: Mapping[str, Value]) -> tuple[bytes, bytes]:
    """Encode a record as (head, payload)."""
    ordered = sorted(record.items())
    payload = (
        value
        if isinstance(value, bytes)
        else value.astype(value.dtype.newbyteorder("<"), copy=False).tobytes()
        for _, value in ordered
        if isinstance(value, np.ndarray | bytes)
    )
    return _head(dict(ordered)), b"".join(payload)


def _head(record: Mapping[str, Value]) -> bytes:
    """Return the head of a record, in the order of the record."""
    head: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, np.ndarray) and value.dtype.name in _DTYPES:
            head[name] = [value.dtype.name, list(value.shape)]
        elif isinstance(value, bytes):
            head[name] = ["bytes", [len(value)]]
        elif type(value) in PLAIN:
            head[name] = value
        else:
            raise TypeError(
                f"{name}: {getattr(value, 'dtype', type(value).__name__)} cannot be sent"
            )
    return json.dumps(head, separators=(",", ":")).encode()


def decode(head: bytes, payload: bytes) -> Record:
    """Decode a record; arrays are writable copies."""
    record: Record = {}
    data, start = memoryview(payload), 0
    try:
        for name, value in json.loads(head).items():
            record[name] = value
            if isinstance(value, list):
                kind, shape = value
                dtype = _DTYPES["uint8" if kind == "bytes" else kind]
                end = start + dtype.itemsize * math.prod(shape)
                array = np.frombuffer(data[start:end], dtype.newbyteorder("<")).reshape(shape)
                record[name] = array.tobytes() if kind == "bytes" else array.astype(dtype)
                start = end
        is_whole = start == len(payload) and head == _head(dict(sorted(record.items())))
    except Exception as error:  # whatever a malformed head leads to
        raise BadMessage("a record is malformed") from error
    if not is_whole:
        raise BadMessage("a record is not encoded as its values are")
    return record


def to_bytes(record: Mapping[str, Value]) -> bytes:
    """Encode a record as the content of one file, with a checksum."""
    head, payload = encode(record)
    content = len(head).to_bytes(_HEAD_SIZE, "little") + head + payload
    return hashlib.sha256(content).digest() + content


def from_bytes(content: bytes) -> Record:
    """Decode the content of a file."""
    digest, content = content[:_DIGEST], content[_DIGEST:]
    if len(content) < _HEAD_SIZE or hashlib.sha256(content).digest() != digest:
        raise BadMessage("a stored record is damaged")
    end = _HEAD_SIZE + int.from_bytes(content[:_HEAD_SIZE], "little")
    return decode(content[_HEAD_SIZE:end], content[end:])


def fingerprint(record: Mapping[str, Value]) -> str:
    """SHA-256 of a record's encoding, in hexadecimal."""
    return to_bytes(record)[:_DIGEST].hex()


def part(record: Mapping[str, Value], name: str) -> Record:
    """Entries whose names begin with `name.`, without this prefix."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): v for key, v in record.items() if key.startswith(prefix)}


def prefixed(record: Mapping[str, Value], name: str) -> Record:
    """Return a record's entries with `name.` in front of their names."""
    return {f"{name}.{key}": value for key, value in record.items()}


def packed(fields: Any) -> Record:
    """Return a named tuple as a record; fields that are no plain values become JSON."""
    return {
        name: value if type(value) in PLAIN else json.dumps(_plain(value))
        for name, value in fields._asdict().items()
    }


def unpacked(form: type[Form], record: Mapping[str, Value]) -> Form:
    """Rebuild a named tuple; its fields' types are the schema, as `safe_files.typed` reads it."""
    try:
        hints = get_type_hints(form)
        values = {
            name: value if hints.get(name) in PLAIN else json.loads(value)  # type: ignore[arg-type]
            for name, value in record.items()
        }
        if missing := set(form._fields) - record.keys() - form._field_defaults.keys():
            raise ValueError(f"{', '.join(sorted(missing))} missing")
        message: Form = safe_files.typed(form, values, form.__name__.lower())
        return message
    except (ValueError, TypeError, RecursionError) as error:
        raise BadMessage(f"{form.__name__.lower()} is malformed: {error}") from error


def _plain(value: Any) -> Any:
    """Return nested named tuples, tuples and arrays as JSON has them."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return list(map(_plain, value))
    return value.tolist() if isinstance(value, np.ndarray) else value
