"""Search of bytes for a client's data: rows, sorted values, labels, counts of classes, codes, secrets.

    private = Private(x, y, num_classes, texts={"secret": b"..."})
    hits = leaks(content, private)                 # [] or the names of what was found

Data are looked for in windows of a few values, in every number format and scale that a message may have. A
window counts only if its values differ enough that no other content has it by chance.
"""

import json
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

FORMATS = ("float32", "float64", "float16", "uint8", "int16", "int32", "int64")
LABELS = ("int8", "int16", "int32", "int64", "float32", "float64")
_ROW, _LABELS, _ONE_HOTS = 12, 24, 5  # values or examples of a window
_LEAST = 5  # different values of a window of a row
_CODE, _FEWEST = 128, 24  # bits of a window of a code, and ones and zeros in it at least


class Private(NamedTuple):
    """What may not leave a client: examples [n, ...], labels int [n], -1 unlabeled, texts, codes [n, w]."""

    x: np.ndarray
    y: np.ndarray
    num_classes: int
    texts: Mapping[str, bytes] = {}
    codes: np.ndarray = np.zeros((0, 0), np.uint32)


def leaks(content, private):
    """Names of what of a client's data is in these bytes."""
    return [name for name, found in needles(private).items() if has_one(content, found)]


def needles(private):
    """{name: byte strings}; one of them in a message is a leak."""
    rows = private.x.reshape(len(private.x), -1)
    values = rows.astype(np.float64)
    scales = {
        "": values,
        " of one": values / 255,
        " normalized": (values - values.mean()) / max(values.std(), 1e-9),
        " normalized by feature": (values - values.mean(0)) / np.where(s := values.std(0), s, 1),
    }
    found = {}
    for scale, scaled in scales.items():
        orders = {"rows": scaled, "sorted rows": np.sort(scaled), "features": scaled.T}
        orders["sorted features"] = np.sort(scaled.T)
        for order, matrix in orders.items():
            for name in FORMATS if not scale else FORMATS[:3]:
                found[f"{order}{scale}, {name}"] = _windows(matrix.astype(name))
    found["rows as text"] = {
        json.dumps(row[at : at + 6].tolist())[1:-1].encode()
        for row in (rows if rows.dtype.kind in "iu" else values)
        for at in range(0, len(row) - 6, 3)
        if len({*row[at : at + 6]}) >= _LEAST
    }
    found |= _of_labels(private.y, private.num_classes, "labels")
    labeled = private.y[private.y >= 0]
    found |= _of_labels(labeled, private.num_classes, "given labels")
    found |= {name: {text} | {text.hex().encode()} for name, text in private.texts.items()}
    found |= _of_codes(private.codes)
    return {name: found for name, found in found.items() if found}


def _windows(matrix):
    """Windows of a row's values as bytes, at each position."""
    size = min(_ROW, matrix.shape[1])
    cut = np.lib.stride_tricks.sliding_window_view(matrix, size, axis=1).reshape(-1, size)
    kinds = (np.diff(np.sort(cut), axis=1) != 0).sum(1) + 1
    return {window.tobytes() for window in cut[kinds >= min(_LEAST, size)]}


def _of_codes(codes):
    """Bits of a code, packed and unpacked, in windows that no other content has by chance."""
    little = np.ascontiguousarray(codes, "<u4").view(np.uint8)
    bits = np.unpackbits(little, axis=1, bitorder="little").reshape(-1, _CODE)
    ones = bits.sum(axis=1)
    bits = bits[(ones >= _FEWEST) & (ones <= _CODE - _FEWEST)]
    signs = bits.astype(np.int8) * 2 - 1
    found = {
        "codes, words": np.packbits(bits, axis=1, bitorder="little"),
        "codes, packed from the left": np.packbits(bits, axis=1),
        **{f"bits of codes, {name}": bits.astype(name) for name in ("uint8", *FORMATS[:3])},
        **{f"signs of codes, {name}": signs.astype(name) for name in ("int8", *FORMATS[:3])},
    }
    return {name: {row.tobytes() for row in rows} for name, rows in found.items()}


def _of_labels(y, num_classes, name):
    """Runs of labels, one-hot rows, and the number of labels of each class."""
    found = {}
    for kind in LABELS:
        runs = [y[at : at + _LABELS] for at in range(max(len(y) - _LABELS + 1, 0))]
        found[f"{name}, {kind}"] = {
            run.astype(kind).tobytes() for run in runs if len({*run.tolist()}) >= 3
        }
        one_hot = (y[:, None] == np.arange(num_classes)).astype(kind)
        groups = [one_hot[at : at + _ONE_HOTS] for at in range(max(len(y) - _ONE_HOTS + 1, 0))]
        found[f"one-hot {name}, {kind}"] = {
            group.tobytes() for group in groups if len(np.unique(group, axis=0)) >= 3
        }
        counts = np.bincount(y[y >= 0], minlength=num_classes)
        if len({*counts.tolist()}) >= 3:
            shares = {counts.astype(kind).tobytes()}
            if kind.startswith("float"):
                shares.add((counts / counts.sum()).astype(kind).tobytes())
            found[f"counts of {name}, {kind}"] = shares
    found[f"counts of {name} as text"] = {
        json.dumps(counts.tolist(), separators=by).encode() for by in ((",", ":"), (", ", ": "))
    }
    return found


def has_one(content, found):
    """True if one of some byte strings is in the content."""
    by_length = {}
    for each in found:
        by_length.setdefault(len(each), set()).add(each)
    for length, some in by_length.items():
        if len(some) <= 64:
            if any(each in content for each in some):
                return True
        elif _has_window(content, length, some):
            return True
    return False


def _has_window(content, length, some):
    """True if a byte string of many, all of one length, is there: by their first eight bytes first."""
    if len(content) < length:
        return False
    heads = np.unique(np.array([np.frombuffer(each[:8], "<u8")[0] for each in some]))
    data = np.frombuffer(content, np.uint8)
    for shift in range(8):
        words = data[shift : shift + (len(data) - shift) // 8 * 8].view("<u8")
        for place in np.flatnonzero(np.isin(words, heads)) * 8 + shift:
            if content[place : place + length] in some:
                return True
    return False


class Listener:
    """A client function that records all bytes of its requests and replies, as they are sent."""

    def __init__(self, serve):
        self._serve = serve
        self.sent, self.received = [], []

    def __call__(self, request):
        from jaxfed.flower.messages import records

        self.received += records.encode(request)
        reply = self._serve(request)
        self.sent += records.encode(reply)
        return reply
