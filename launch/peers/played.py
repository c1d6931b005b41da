"""What a run of the experiment leaves: when its rounds ended, and its accuracy."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import NamedTuple

_PLAYED = "played.json"


class Played(NamedTuple):
    """A run of the experiment.

    Fields:
        round_seconds: from the end of a round to that of the next, all that a round does counted.
        accuracy: on the test set, after the last round.
    """

    round_seconds: list[float]
    accuracy: float


class Diary:
    """Is told of every round as it ends."""

    def __init__(self) -> None:
        self._ends: list[float] = []
        self._accuracies: list[float] = []

    def round_ended(self) -> None:
        """Take the time."""
        self._ends.append(time.perf_counter())

    def measured(self, accuracy: float) -> None:
        """The test set has been looked at."""
        self._accuracies.append(float(accuracy))

    def save(self, folder: Path) -> None:
        """Write it where `load` finds it."""
        seconds = [
            after - before for before, after in zip(self._ends, self._ends[1:], strict=False)
        ]
        (folder / _PLAYED).write_text(json.dumps(Played(seconds, self._accuracies[-1])))


def load(folder: Path) -> Played:
    """What was saved there."""
    return Played(*json.loads((folder / _PLAYED).read_text()))
