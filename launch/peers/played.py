"""Record of a run of the experiment: times of its rounds, and its accuracy."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import NamedTuple

_PLAYED = "played.json"


class Played(NamedTuple):
    """A run of the experiment.

    Fields:
        round_seconds: from the end of a round to the end of the next, all work included.
        accuracy: on the test set, after the last round.
    """

    round_seconds: list[float]
    accuracy: float


class Diary:
    """Collects the end times of rounds and the accuracy."""

    def __init__(self) -> None:
        self._ends: list[float] = []
        self._accuracies: list[float] = []

    def round_ended(self) -> None:
        """Record the time."""
        self._ends.append(time.perf_counter())

    def measured(self, accuracy: float) -> None:
        """Record the accuracy on the test set."""
        self._accuracies.append(float(accuracy))

    def save(self, folder: Path) -> None:
        """Save the record for `load`."""
        seconds = [
            after - before for before, after in zip(self._ends, self._ends[1:], strict=False)
        ]
        (folder / _PLAYED).write_text(json.dumps(Played(seconds, self._accuracies[-1])))


def load(folder: Path) -> Played:
    """Load a saved record."""
    return Played(*json.loads((folder / _PLAYED).read_text()))
