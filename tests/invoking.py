"""`python -m launch.NAME` in the test's own process, which has imported what a new one takes seconds for."""

import io
import sys
from collections.abc import Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from absl.testing import flagsaver

from launch import entry, run

ROOT = Path(__file__).parent.parent
DIGITS = "ml_collections_configs/xclp_digits.py"


def invoke(arguments: Sequence[str], main: entry.Main = run.main) -> tuple[int, str]:
    """A launcher's exit status and standard error."""
    done = called(main, *arguments)
    return done.returncode, done.stderr


class Done(NamedTuple):
    """Fields of `subprocess.CompletedProcess`."""

    returncode: int
    stdout: str
    stderr: str


def called(main: entry.Main, *arguments: object) -> Done:
    """A launcher's exit status and output."""
    out, err = io.StringIO(), io.StringIO()
    argv = mock.patch.object(sys, "argv", ["launch", *map(str, arguments)])
    with flagsaver.flagsaver(), chdir(ROOT), argv, redirect_stdout(out), redirect_stderr(err):
        try:
            entry.start(main)
        except SystemExit as end:
            return Done(end.code or 0, out.getvalue(), err.getvalue())
