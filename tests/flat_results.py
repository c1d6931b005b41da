"""Results of a run as a flat dictionary of texts, and the comparison of two of them.

    metrics.jsonl    metrics/ALGORITHM/REPEAT/ROUND/KEY...     the number as written, so to the last bit
    *.json           FILE/KEY...                               the same
    *.npz            state/FOLDER/STEP/LEAF                    dtype, shape and SHA-256 of an array
    *.csv, *.csv.gz  FILE                                      SHA-256 of the text

Of the numbered checkpoints of a folder the newest counts: the clock decides which others there are. Times are
left out by name, and so are plots, the config and descriptions of the machine.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

Flat = dict[str, str]

STATE = "state/"
TIMES = re.compile(r"(^|_)(seconds|time|duration)(_|$)")
LEFT_OUT = ("environment", "config.json", "manifest.json")  # which has digests of files with times


def flat_workdir(workdir: Path) -> Flat:
    """Everything of a finished workdir that is a result."""
    found: Flat = {}
    for file in sorted(path for path in workdir.rglob("*") if path.is_file()):
        name = file.relative_to(workdir).as_posix()
        if file.name in LEFT_OUT:
            continue
        if file.name == "metrics.jsonl":
            for line in file.read_text().splitlines():
                metrics = json.loads(line)
                place = [str(metrics.pop(key, "")) for key in ("algorithm", "repeat", "round")]
                found |= flat_json(metrics, "/".join((name.removesuffix(".jsonl"), *place)))
        elif file.suffix == ".json":
            found |= flat_json(json.loads(file.read_text()), name.removesuffix(".json"))
        elif file.suffix == ".npz" and is_newest(file):
            found |= flat_arrays(file, STATE + name.removesuffix(".npz"))
        elif file.suffix == ".csv":
            found[name] = hashlib.sha256(file.read_bytes()).hexdigest()
        elif file.name.endswith(".csv.gz"):
            found[name] = hashlib.sha256(gzip.decompress(file.read_bytes())).hexdigest()
    return found


def is_newest(file: Path) -> bool:
    """True unless the folder has a checkpoint with a larger number."""
    if not file.stem.isdecimal():
        return True
    steps = [int(path.stem) for path in file.parent.glob("*.npz") if path.stem.isdecimal()]
    return int(file.stem) == max(steps)


def flat_json(value: Any, place: str = "") -> Flat:
    """Leaves of a JSON value under their paths, without times."""
    return dict(_leaves(value, place))


def _leaves(value: Any, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            if not TIMES.search(key) and key not in LEFT_OUT:
                yield from _leaves(inner, f"{place}/{key}" if place else key)
    elif isinstance(value, list) and any(isinstance(inner, dict | list) for inner in value):
        for number, inner in enumerate(value):
            yield from _leaves(inner, f"{place}/{number}")
    else:
        yield place, json.dumps(value)


def flat_arrays(file: Path, place: str) -> Flat:
    """Dtype, shape and digest of every array of an .npz but the record of progress."""
    with np.load(file, allow_pickle=False) as arrays:
        return {
            f"{place}/{name.removeprefix('state/')}": digest(arrays[name])
            for name in arrays.files
            if name != "record"
        }


def digest(array: np.ndarray) -> str:
    """Text that two arrays share only if dtype, shape and every bit are equal."""
    content = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    return f"{array.dtype} {list(array.shape)} {content}"


def compared(old: Flat, new: Flat, *, state_only: bool = False) -> dict[str, list[str]]:
    """Entries that are "changed", "missing" in `new`, "new" in it, or "renamed": leaves of equal content."""
    if state_only:
        old, new = (
            {key: value for key, value in each.items() if key.startswith(STATE)}
            for each in (old, new)
        )
    changed = [
        f"{key}: {old[key]} -> {new[key]}" for key in old if new.get(key, old[key]) != old[key]
    ]
    missing = [key for key in old if key not in new]
    added = [key for key in new if key not in old]
    renamed = []
    for key, other in renamings(missing, added, old, new):
        missing.remove(key)
        added.remove(other)
        renamed.append(f"{key} -> {other}")
    return {
        "changed": changed,
        "missing": [f"{key}: {old[key]}" for key in missing],
        "new": [f"{key}: {new[key]}" for key in added],
        "renamed": renamed,
    }


def renamings(missing: list[str], added: list[str], old: Flat, new: Flat) -> list[tuple[str, str]]:
    """Pairs of a missing and a new leaf of one file's state that have the same content, in order."""
    there = defaultdict(list)
    for key in added:
        if key.startswith(STATE):
            there[key.rpartition("/")[0], new[key]].append(key)
    equal = [(key, there.get((key.rpartition("/")[0], old[key]))) for key in missing]
    return [(key, others.pop(0)) for key, others in equal if others]
