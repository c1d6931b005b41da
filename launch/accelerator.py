"""Measure an accelerator, in pieces of at most ten minutes each.

    python -m launch.accelerator --workdir=DIR [--pieces=NAME,...] [--limit_s=SECONDS] [--small]

The first pieces check correctness: tests that hold on every device, and labels and neighbors compared with a
CPU's. The others measure:

  * kernels, each as a share of the device's limit;
  * rounds and FedCT's networks, compared with PyTorch if it is installed;
  * the joint graph of as many (synthetic) points as FEMNIST has;
  * cells of XCLP's Table 4 and ProtoFSSL's Table 3 (data in $JAXFED_DATA), one seed each.

Every piece runs in a separate process and writes DIR/NAME.json with device, versions and commit.

The same command resumes after a stop: a piece with a file is not run again. Only one process at a time works
in DIR; a piece that survives `kill -9` of its command counts as one. With --limit_s no piece is started that
would not fit; an experiment stops at the limit and resumes next time. If a piece fails, wholly or in part,
the exit status is 1, and later pieces still run. A piece that failed as a whole is run again next time. On a
CPU there is nothing to measure: there, --small runs all pieces at tiny sizes as a test.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from absl import flags

from jaxfed.errors import UsageError
from jaxfed.host import storage
from jaxfed.host.interruption import Interruption
from jaxfed.host.location import folder_to_write

from . import entry

_WORKDIR = entry.workdir_flag()
_PIECES = flags.DEFINE_list("pieces", [], "Which of them; default all.")
_LIMIT = flags.DEFINE_float("limit_s", None, "Seconds that this call may take.", lower_bound=0)
_SMALL = flags.DEFINE_bool("small", False, "Next to nothing of every piece, on any device.")
_MEASURE = flags.DEFINE_string("measure", None, "The one piece of this process; for its own use.")

_STOPPED = (-15, -2, 130, 143)
_LOCK = ".lock"
_A_CPU = "this is a CPU: --small tries all pieces on next to nothing"


def main(arguments: list[str], overrides: list[str], interruption: Interruption) -> int:
    """Run the pieces without results, one by one."""
    del interruption  # a stopped piece is run again, or resumes
    for argument in (*arguments, *overrides):
        raise UsageError(f"{argument}: no such argument; see --helpshort")

    # Imported late, so that --helpshort and a mistyped flag get a fast answer.
    from benchmarks.on_device import PIECES

    started = time.monotonic()
    if _LIMIT.value is not None and not math.isfinite(_LIMIT.value):
        raise UsageError(f"--limit_s={_LIMIT.value:g}: use numbers from 0 on")
    measured = [name for name, piece in PIECES.items() if piece.measure]
    if _MEASURE.value is not None and _MEASURE.value not in measured:
        raise UsageError(f"--measure={_MEASURE.value}: choose one of {', '.join(measured)}")
    for name in _PIECES.value:
        if name not in PIECES:
            raise UsageError(f"--pieces={name}: choose one of {', '.join(PIECES)}")
    if not _WORKDIR.value:
        raise UsageError("--workdir=DIR is missing")
    workdir = folder_to_write(_WORKDIR.value, "--workdir")
    if _MEASURE.value:
        _measure(PIECES[_MEASURE.value], workdir)
        return 0
    chosen = [name for name in PIECES if name in (*_PIECES.value, "limits") or not _PIECES.value]
    _check(workdir, [PIECES[name] for name in chosen])
    with _alone(workdir) as lock:
        return _do_all(workdir, [PIECES[name] for name in chosen], lock, started)


def _check(workdir: Path, pieces: list[Any]) -> None:
    """Refuse runs that cannot succeed, before anything is written."""
    undone = [piece for piece in pieces if not _recorded(workdir, piece.name)]
    if not undone:
        return
    if _LIMIT.value is not None and _LIMIT.value < undone[0].wants(_SMALL.value):
        raise UsageError(
            f"--limit_s={_LIMIT.value:g}: {undone[0].name} wants "
            f"{undone[0].wants(_SMALL.value):g} seconds"
        )
    if not _SMALL.value:
        # In a separate process, as only one process at a time can use an accelerator: later a piece.
        asked = [sys.executable, "-c", "import jax; print(jax.default_backend())"]
        told = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
        if told.split()[-1:] == ["cpu"]:
            raise UsageError(_A_CPU)


@contextmanager
def _alone(workdir: Path) -> Iterator[int]:
    """Create and lock the folder; pieces inherit the lock, so a surviving one holds it too."""
    workdir.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            lock = stack.enter_context(storage.lock(workdir / _LOCK))
        except BlockingIOError:
            raise UsageError(f"--workdir={workdir}: another process is at work here") from None
        storage.remove_partial_files(workdir)
        yield lock


def _do_all(workdir: Path, pieces: list[Any], lock: int, started: float) -> int:
    """Run all pieces without results, one after another; return the exit status."""
    failed, begun = False, 0
    for number, piece in enumerate(pieces):
        name, recorded = piece.name, _recorded(workdir, piece.name)
        if not recorded:
            left = None if _LIMIT.value is None else started + _LIMIT.value - time.monotonic()
            if begun and left is not None and left < piece.wants(_SMALL.value):
                print(
                    f"{len(pieces) - number} pieces are left; the same command goes on with {name}"
                )
                break
            print(f"{name}: {piece.does(_SMALL.value)}", flush=True)
            begun += 1
            status = _do(piece, workdir, left, lock)
            if name == "limits" and status == 2:  # a line has been printed
                return 2
            if status in _STOPPED:
                print(f"{name} is stopped; the same command goes on with it")
                break
            recorded = _recorded(workdir, name)
            if not recorded:
                print(f"{name}: has failed, exit status {status}")
                failed = True
                continue
        failed |= bool(recorded["errors"])
        print(f"{name}: " + ("has failed in part" if recorded["errors"] else "done"))
    return int(failed)


def _do(piece: Any, workdir: Path, seconds: float | None, lock: int) -> int:
    """Run a piece's process and return its exit status; stop it after `seconds` if it can resume."""
    if piece.command:
        command = piece.command(workdir, _SMALL.value)
    else:
        command = [sys.executable, "-m", "launch.accelerator", f"--measure={piece.name}"]
        command += [f"--workdir={workdir}", f"--small={_SMALL.value}"]
        seconds = None
    started = time.perf_counter()
    process = subprocess.Popen(
        command,
        # Memory on demand, to leave some for other libraries. Tests compile as users do.
        env={
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "0",
            **os.environ,
        },
        pass_fds=(lock,),
        start_new_session=True,  # signals come only from here: a second one ends an experiment
    )
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.terminate()
        status = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if (
        piece.command
        and (status == 0 or piece.name.startswith("tests_"))
        and status not in _STOPPED
    ):
        try:
            result = piece.result(workdir, _SMALL.value)
        except (OSError, SyntaxError):  # unreadable result
            return status or 1
        origin = _recorded(workdir, "limits") or {}
        _record(
            workdir, piece.name, result, origin.get("environment"), time.perf_counter() - started
        )
    return status


def _measure(piece: Any, workdir: Path) -> None:
    """Measure a piece, in its own process, and write its file."""
    import jax

    from benchmarks.timing.record import environment

    if jax.default_backend() == "cpu" and not _SMALL.value:
        raise UsageError(_A_CPU)
    origin = _recorded(workdir, "limits") or {}
    there = (origin.get("environment") or {}).get("device")
    if there not in (None, environment()["device"]):
        raise UsageError(f"--workdir={workdir}: has {there}; this is {environment()['device']}")
    workdir.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    result = piece.measure(_SMALL.value, origin.get("limits", {}))
    _record(workdir, piece.name, result, environment(), time.perf_counter() - started)


def _record(workdir: Path, name: str, result: dict[str, Any], origin: Any, seconds: float) -> None:
    whole = {"errors": 0, "piece": name, "small": _SMALL.value, "seconds": seconds}
    with storage.whole_file(workdir / f"{name}.json") as file:
        file.write(json.dumps({**whole, **result, "environment": origin}, indent=1) + "\n")


def _recorded(workdir: Path, name: str) -> dict[str, Any] | None:
    """Results of a piece; None if it has not run, or its file is damaged or of another piece."""
    file = workdir / f"{name}.json"
    if not file.exists():
        return None
    try:
        recorded = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        return None
    if not _is_whole(recorded, name):
        return None
    if recorded["small"] != _SMALL.value:
        has = "a small one" if recorded["small"] else "not a small one"
        raise UsageError(f"--small={_SMALL.value}: {file} is {has}; choose another --workdir")
    return dict(recorded)


def _is_whole(recorded: Any, name: str) -> bool:
    """True if the results are complete and of this piece, as `_record` writes them."""
    return (
        isinstance(recorded, dict)
        and recorded.get("piece") == name
        and isinstance(recorded.get("small"), bool)
        and isinstance(recorded.get("errors"), int)
        and isinstance(recorded.get("limits", {}), dict)
        and isinstance(recorded.get("environment", 0), dict | None)
    )


if __name__ == "__main__":
    entry.start(main)
