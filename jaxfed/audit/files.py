"""Files of an audit: observations and instructions of each round, and shadow predictions, all as arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxfed.audit.evidence import Sighting
from jaxfed.audit.shadows import Shadows
from jaxfed.audit.views import Instruction
from jaxfed.host import safe_files, storage

_Place = tuple[str, int, int]  # method, repeat, round
_ARRAYS = ("label", "weight", "soft")


@dataclass(frozen=True)
class AuditFiles:
    """Audit files of one experiment, under a folder."""

    folder: Path

    def save_sightings(self, place: _Place, seen: list[Sighting]) -> None:
        """Save the observations of a round."""
        _save(
            self._of("sightings", place),
            {
                f"{field}_{i}": np.asarray(v)
                for i, one in enumerate(seen)
                for field, v in one._asdict().items()
            },
        )

    def sightings(self, name: str, repeat: int) -> dict[int, list[Sighting]]:
        """Return round -> observations; empty if the method reveals nothing or has diverged."""
        there = {n: _sightings(path) for n, path in self._rounds("sightings", name, repeat).items()}
        return {number: seen for number, seen in there.items() if seen}

    def save_instructions(self, place: _Place, instructions: list[Instruction]) -> None:
        """Save the instructions that a round sent to its clients."""
        arrays: dict[str, np.ndarray] = {}
        for i, one in enumerate(instructions):
            rest = [one.steps, one.on_own, one.network]
            arrays[f"rest_{i}"] = np.asarray(json.dumps(rest))
            for field in _ARRAYS:
                value = getattr(one, field)
                arrays |= {} if value is None else {f"{field}_{i}": np.asarray(value)}
        _save(self._of("taught", place), arrays)

    def instructions(self, name: str, repeat: int) -> list[list[Instruction]]:
        """Return the instructions of each round, beginning with the first.

        Empty for a method that sends no public targets, and if the files of some rounds are missing because
        an earlier version, which did not save them, played those rounds.
        """
        there = self._rounds("taught", name, repeat)
        if list(there) != list(range(1, len(there) + 1)):
            return []
        return [_instructions(path) for path in there.values()]

    def save_shadows(self, name: str, said: Mapping[int, Shadows]) -> None:
        """Save the predictions of shadow models after some rounds."""
        _save(
            self._shadows(name),
            {
                f"{part}_{number}": array
                for number, shadows in said.items()
                for part, array in shadows._asdict().items()
            },
        )

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


def _sightings(path: Path) -> list[Sighting]:
    arrays = safe_files.arrays_of(path)
    with safe_files.guarded(path):
        number = sum(name.startswith("message_") for name in arrays)
        return [
            Sighting(
                str(arrays[f"message_{i}"]),
                str(arrays[f"kind_{i}"]),  # type: ignore[arg-type]
                bool(arrays[f"leaves_{i}"]),
                arrays[f"client_{i}"],
                arrays[f"answers_{i}"],
                arrays[f"norms_{i}"],
                translated=arrays[f"translated_{i}"],
                noisy=arrays[f"noisy_{i}"],
                adversary=str(arrays[f"adversary_{i}"]),
            )
            for i in range(number)
        ]


def _instructions(path: Path) -> list[Instruction]:
    arrays = safe_files.arrays_of(path)
    with safe_files.guarded(path):
        instructions = []
        for i in range(sum(name.startswith("rest_") for name in arrays)):
            steps, on_own, network = json.loads(str(arrays[f"rest_{i}"]))
            there = {field: arrays[f"{field}_{i}"] for field in _ARRAYS if f"{field}_{i}" in arrays}
            instructions.append(
                Instruction(steps, on_own, network=tuple(map(tuple, network)), **there)
            )
        return instructions


def _save(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with storage.whole_file(path, "wb") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]
