"""Run pieces on a device, each in a separate process, and keep their results in a folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.on_device.piece import Piece
from jaxfed.errors import UsageError
from jaxfed.host import storage

_STOPPED = (-15, -2, 130, 143)
_A_CPU = "this is a CPU: --small tries all pieces on next to nothing"


@dataclass(frozen=True)
class Results:
    """Results of pieces on one device: a JSON file for each in a folder; `small` ones or whole ones."""

    folder: Path
    small: bool

    def read(self, name: str) -> dict[str, Any] | None:
        """Return a piece's results; None if it has not run, or its file is damaged or of another piece."""
        file = self.folder / f"{name}.json"
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        if not isinstance(found, dict) or found.get("piece") != name:
            return None
        if found["small"] != self.small:
            has = "a small one" if found["small"] else "not a small one"
            raise UsageError(f"--small={self.small}: {file} is {has}; choose another --workdir")
        return found

    def write(self, name: str, found: dict[str, Any], environment: Any, seconds: float) -> None:
        """Write a piece's results, with the device that it ran on and its duration."""
        whole = {"errors": 0, "piece": name, "small": self.small, "seconds": seconds}
        with storage.whole_file(self.folder / f"{name}.json") as file:
            json.dump({**whole, **found, "environment": environment}, file, indent=1)
            file.write("\n")


def run_pieces(pieces: Sequence[Piece], results: Results, limit_s: float | None) -> int:
    """Run all pieces without results, one after another; return the exit status.

    Raises:
        UsageError: the first piece does not fit into the limit, there is no accelerator, or another process
            works in the folder. Nothing is written then.
    """
    end = None if limit_s is None else time.monotonic() + limit_s
    undone = [piece for piece in pieces if not results.read(piece.name)]
    if undone and limit_s is not None and limit_s < undone[0].wants(results.small):
        wanted = f"{undone[0].name} wants {undone[0].wants(results.small):g} seconds"
        raise UsageError(f"--limit_s={limit_s:g}: {wanted}")
    if undone and not results.small:
        # In a separate process, as only one process at a time can use an accelerator: later a piece.
        asked = [sys.executable, "-c", "import jax; print(jax.default_backend())"]
        told = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
        if told.split()[-1:] == ["cpu"]:
            raise UsageError(_A_CPU)
    failed, begun = False, False
    with storage.claimed(results.folder, "another process is at work here") as lock:
        for number, piece in enumerate(pieces):
            name, found = piece.name, results.read(piece.name)
            if not found:
                left = None if end is None else end - time.monotonic()
                if begun and left is not None and left < piece.wants(results.small):
                    left_out = len(pieces) - number
                    print(f"{left_out} pieces are left; the same command goes on with {name}")
                    break
                print(f"{name}: {piece.does(results.small)}", flush=True)
                begun = True
                status = _run(piece, results, left, lock)
                if name == "limits" and status == 2:  # a line has been printed
                    return 2
                if status in _STOPPED:
                    print(f"{name} is stopped; the same command goes on with it")
                    break
                found = results.read(name)
                if not found:
                    print(f"{name}: has failed, exit status {status}")
                    failed = True
                    continue
            failed |= bool(found["errors"])
            print(f"{name}: " + ("has failed in part" if found["errors"] else "done"))
    return int(failed)


def _run(piece: Piece, results: Results, seconds: float | None, lock: int) -> int:
    """Run a piece's process and return its exit status; stop it after `seconds` if it can resume."""
    if piece.command:
        command = piece.command(results.folder, results.small)
    else:
        command = [sys.executable, "-m", "launch.accelerator", f"--measure={piece.name}"]
        command += [f"--workdir={results.folder}", f"--small={results.small}"]
        seconds = None
    # Memory on demand, to leave some for other libraries. Tests compile as users do.
    own = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}
    started = time.perf_counter()
    process = subprocess.Popen(
        command,
        env={**own, **os.environ},
        pass_fds=(lock,),
        start_new_session=True,  # signals come only from here: a second one ends an experiment
    )
    try:
        status = process.wait(seconds)
    except BaseException as error:
        process.terminate()
        status = process.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
    has_ended = status == 0 or (piece.name.startswith("tests_") and status not in _STOPPED)
    if piece.result and has_ended:
        try:
            found = piece.result(results.folder, results.small)
        except (OSError, SyntaxError):  # unreadable result
            return status or 1
        environment = (results.read("limits") or {}).get("environment")
        results.write(piece.name, found, environment, time.perf_counter() - started)
    return status


def measure(piece: Piece, results: Results) -> None:
    """Measure a piece in this process, and write its results.

    Raises:
        UsageError: this is a CPU and the piece is not small, or the folder is of another device.
    """
    import jax

    from benchmarks.timing.record import environment

    assert piece.measure is not None
    if jax.default_backend() == "cpu" and not results.small:
        raise UsageError(_A_CPU)
    limits = results.read("limits") or {}
    there = (limits.get("environment") or {}).get("device")
    if there not in (None, environment()["device"]):
        raise UsageError(
            f"--workdir={results.folder}: has {there}; this is {environment()['device']}"
        )
    results.folder.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    found = piece.measure(results.small, limits.get("limits", {}))
    results.write(piece.name, found, environment(), time.perf_counter() - started)
