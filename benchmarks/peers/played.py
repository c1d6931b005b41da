"""Play the experiment with one peer, and record times of its rounds and its accuracy.

python -m benchmarks.peers.played NAME FOLDER
"""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from benchmarks.peers import task

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


def main(name: str, folder: Path) -> None:
    """Play the task in the folder with the peer of this name, and save the record there."""
    peer, diary = import_module(f"benchmarks.peers.{name}"), Diary()
    peer.play(task.load(folder), diary, folder)
    diary.save(folder)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
