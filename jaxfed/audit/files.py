"""Files of an audit: observations and instructions of each round, and shadow predictions, all as arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from jaxfed.audit.evidence import Sighting
from jaxfed.audit.shadows import Shadows
from jaxfed.audit.views import Instruction
from jaxfed.host import safe_files, storage

_Place = tuple[str, int, int]  # method, repeat, round
_One = TypeVar("_One", Sighting, Instruction)


@dataclass(frozen=True)
class AuditFiles:
    """Audit files of one experiment, under a folder."""

    folder: Path

    def save_sightings(self, place: _Place, seen: Sequence[Sighting]) -> None:
        """Save the observations of a round."""
        _save(self._of("sightings", place), dict(enumerate(seen)))

    def sightings(self, name: str, repeat: int) -> dict[int, list[Sighting]]:
        """Return round -> observations; empty if the method reveals nothing or has diverged."""
        paths = self._rounds("sightings", name, repeat)
        there = {number: _listed(path, Sighting) for number, path in paths.items()}
        return {number: seen for number, seen in there.items() if seen}

    def save_instructions(self, place: _Place, instructions: Sequence[Instruction]) -> None:
        """Save the instructions that a round sent to its clients."""
        texts = (one._replace(network=json.dumps(one.network)) for one in instructions)  # type: ignore[arg-type]
        _save(self._of("taught", place), dict(enumerate(texts)))

    def instructions(self, name: str, repeat: int) -> list[list[Instruction]]:
        """Return the instructions of each round, beginning with the first.

        Empty for a method that sends no public targets, and if the files of some rounds are missing.
        """
        there = self._rounds("taught", name, repeat)
        if list(there) != list(range(1, len(there) + 1)):
            return []
        return [
            [
                one._replace(network=tuple(map(tuple, json.loads(str(one.network)))))
                for one in _listed(path, Instruction)
            ]
            for path in there.values()
        ]

    def save_shadows(self, name: str, said: Mapping[int, Shadows]) -> None:
        """Save the predictions of shadow models after some rounds."""
        _save(self._shadows(name), said)

    def shadows(self, name: str) -> dict[int, Shadows] | None:
        """Return round -> predictions of the shadow models; None if they have not been computed."""
        path = self._shadows(name)
        if not path.exists():
            return None
        arrays = safe_files.arrays_of(path)
        with safe_files.guarded(path):
            numbers = [
                int(one.removeprefix("is_in_")) for one in arrays if one.startswith("is_in_")
            ]
            return {n: Shadows(arrays[f"is_in_{n}"], arrays[f"answers_{n}"]) for n in numbers}

    def _of(self, kind: str, place: _Place) -> Path:
        name, repeat, number = place
        return self.folder / kind / f"{name}-{repeat}-{number}.npz"

    def _shadows(self, name: str) -> Path:
        return self.folder / "shadows" / f"{name}.npz"

    def _rounds(self, kind: str, name: str, repeat: int) -> dict[int, Path]:
        files = (self.folder / kind).glob(f"{name}-{repeat}-*.npz")
        numbers = sorted(int(file.stem.rpartition("-")[2]) for file in files)
        return {number: self._of(kind, (name, repeat, number)) for number in numbers}


def _save(path: Path, each: Mapping[int, NamedTuple]) -> None:
    """Write named tuples by their numbers, FIELD_NUMBER; fields that are None are left out."""
    arrays = {
        f"{field}_{number}": np.asarray(value)
        for number, one in each.items()
        for field, value in one._asdict().items()
        if value is not None
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with storage.whole_file(path, "wb") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]


def _listed(path: Path, kind: type[_One]) -> list[_One]:
    arrays = safe_files.arrays_of(path)
    with safe_files.guarded(path):
        first, *_ = kind._fields
        number = sum(name.startswith(f"{first}_") for name in arrays)
        return [
            kind(**{f: _value(arrays[f"{f}_{i}"]) for f in kind._fields if f"{f}_{i}" in arrays})
            for i in range(number)
        ]


def _value(array: np.ndarray) -> Any:
    return array if array.ndim else array.item()
