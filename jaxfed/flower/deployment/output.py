"""Lines for the user of a federation: of the server's output, of stages as they end, and of the whole run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from jaxfed.experiment.store.records import read_metrics
from jaxfed.flower.messages.timings import PARTS, TRANSPORT
from jaxfed.flower.server.stages import ENDED, STAGES

_COLORS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_RAISED = "ServerApp raised an exception"
_FOR_USERS = re.compile(
    r"jaxfed\.(?:\w+\.)+(?:UsageError|Unresumable|BeyondMemory|TooFewClients|UnusableModel): "
)
_OF_FLOWER = re.compile(r"(INFO|DEBUG) *:|Successfully installed jaxfed-app ")


def uncolored(text: str) -> str:
    """Return a program's output without codes of colors."""
    return _COLORS.sub("", text)


def readable(line: str) -> str:
    """Return a line without codes of colors and names of loggers; "" for one of Flower's own reports."""
    plain = uncolored(line).rstrip()
    return (
        "" if _OF_FLOWER.match(plain.lstrip()) else plain.replace("WARNING:absl:", "WARNING: ", 1)
    )


class Traceback:
    """Lines of a run without the traceback of an error that is one line, which the run's status repeats."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._held = say, list[str]()

    def say(self, line: str) -> None:
        """Say a line, or hold it from the first line of a traceback on."""
        if self._held or _RAISED in line:
            self._held.append(line)
        else:
            self._say(line)

    def end(self) -> None:
        """Say what was held, unless one of these lines is of an error for users."""
        if not any(map(_FOR_USERS.match, self._held)):
            for line in self._held:
                self._say(line)


class NewLines:
    """Complete lines that another process appends to a file, from byte `begin` on."""

    def __init__(self, file: Path, begin: int = 0) -> None:
        self._file, self._read = file, begin

    def read(self) -> list[str]:
        """Return the lines since the last call."""
        if not self._file.is_file():
            return []
        with self._file.open("rb") as file:
            file.seek(self._read)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode(errors="replace").splitlines()


class StageLines:
    """A line for each stage of a run that has ended, from its stages.jsonl."""

    def __init__(self, workdir: Path, say: Callable[[str], None]) -> None:
        file, self._say = workdir / STAGES, say
        of_earlier_part = file.stat().st_size if file.is_file() else 0
        self._lines = NewLines(file, of_earlier_part)

    def look(self) -> None:
        """Print the lines of stages that ended since the last call."""
        for line in self._lines.read():
            if text := stage_text(json.loads(line)):
                self._say(text)


def stage_text(line: dict[str, Any]) -> str:
    """Return the text of a line of stages.jsonl; "" if no stage ends with it."""
    name = str(line.get("stage", ""))
    if not name.endswith(ENDED):
        return ""
    lost = f", {line['lost']} lost" * bool(line["lost"])
    parts = [
        f"{part} {line[f'{part}_max']:.1f}" for part in (*PARTS, TRANSPORT) if f"{part}_max" in line
    ]
    longest = f" (at most: {', '.join(parts)})" * bool(parts)
    return (
        f"round {line['round']}, {name.removesuffix(ENDED)}: {line['replies']} replies{lost} in "
        f"{line['seconds']:.1f} s{longest}"
    )


class Traffic(NamedTuple):
    """Bytes of a run for one of its clients, on average.

    Fields:
        predicted: (up, down) of what the method sends, as a simulation counts.
        real: (up, down) of the content of messages, without names, shapes, Flower's heads, HTTP and TLS.
    """

    predicted: tuple[float, float]
    real: tuple[float, float]

    def __str__(self) -> str:
        """One line."""
        words = [
            f"{real:,.0f} {way}, the method's {predicted:,.0f} and {real - predicted:,.0f} of terms and times"
            for way, predicted, real in zip(("up", "down"), *self, strict=True)
        ]
        return f"bytes a client: {'; '.join(words)}"


def traffic(workdir: Path, num_clients: int) -> Traffic:
    """Add up the bytes of a run over a network."""
    rounds = list(_rounds(workdir))
    ways = ("upload_bytes", "download_bytes")

    def total(part: str) -> tuple[float, float]:
        up, down = (sum(each.get(part, {}).get(way, 0) for each in rounds) for way in ways)
        return up / num_clients, down / num_clients

    return Traffic(total("communication"), total("network"))


def seconds_text(workdir: Path) -> str:
    """Return a line with the mean seconds of a run's rounds and of the slowest clients' parts, or ""."""
    rounds = [each["network"] for each in _rounds(workdir) if each.get("network")]
    if not rounds:
        return ""
    keys = {part: f"{part}_max" for part in (*PARTS, TRANSPORT)}
    parts = ", ".join(f"{part} {_mean(rounds, key):.1f}" for part, key in keys.items())
    first, later = rounds[0]["seconds"], [each["seconds"] for each in rounds[1:]]
    then = f", {sum(later) / len(later):.1f} s in each later one" if later else ""
    return f"seconds of clients: {first:.1f} s in round 1{then} (at most: {parts})"


def _mean(rounds: Iterable[dict[str, Any]], key: str) -> float:
    values = [each.get(key, 0.0) for each in rounds]
    return sum(values) / len(values)


def _rounds(workdir: Path) -> Iterable[dict[str, Any]]:
    return read_metrics(workdir)
