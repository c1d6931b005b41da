"""stages.jsonl: the record of a run's stages, beside metrics.jsonl.

    {"round": 0, "stage": "hello", "run": "..."}                                the run's first start
    {"round": 3, "stage": "update", "clients": [0, 1, 2], "step": 3}             a stage begins
    {"round": 3, "stage": "update ended", ..., "why": {"1": "no reply within 300 s"}}
    {"round": 3, "stage": "end", "states": {"0": 3, "2": 3}}                     the round ends

A line is appended before what it announces happens. A server that was killed and starts again reads here
which steps it has used and which states of clients belong to its checkpoint. Of a round that was played
again, the last lines count.
"""

from __future__ import annotations

import json
import secrets
import time
from pathlib import Path
from typing import Any

from jaxfed.errors import Unresumable
from jaxfed.host import safe_files, storage

STAGES = "stages.jsonl"
END = "end"
ENDED = " ended"  # behind the name of a stage in its last line


class Stages:
    """The file of one run, which the server alone writes."""

    def __init__(self, place: Path) -> None:
        """Open the file in a workdir; half a line at its end, of a server that was killed, is removed."""
        self._file = place / STAGES
        if self._file.exists():
            content = self._file.read_bytes()
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                with self._file.open("r+b") as stream:
                    stream.truncate(whole)

    def write(self, **line: Any) -> None:
        """Append a line, with the time in seconds since 1970."""
        storage.append(self._file, json.dumps({**line, "time": round(time.time(), 3)}) + "\n")

    def run(self, config: str) -> str:
        """Return the run's name, which begins with its config's hash; a new one at the first start."""
        named = (line["run"] for line in self._lines() if "run" in line)
        return next(named, f"{config}-{secrets.token_hex(8)}")

    def _lines(self) -> list[dict[str, Any]]:
        file = self._file
        return safe_files.json_lines(safe_files.content_of(file), file) if file.exists() else []

    def last_step(self) -> int:
        """Return the largest number of a step that was announced; 0: none."""
        return max((line.get("step", 0) for line in self._lines()), default=0)

    def states(self) -> dict[int, dict[int, int]]:
        """Return the states after each round: {round: {client: number of the step that made it}}."""
        return {
            line["round"]: {int(client): number for client, number in line["states"].items()}
            for line in self._lines()
            if "states" in line
        }

    def states_after(self, number: int) -> dict[int, int]:
        """Return the states after a round, from which the next one continues."""
        if number == 0:
            return {}
        found = self.states().get(number)
        if found is None:
            raise Unresumable(
                f"{self._file}: nothing about the end of round {number}, from which the clients' states "
                "would continue; bring the file back"
            )
        return found
