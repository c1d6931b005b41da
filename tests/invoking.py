"""`python -m launch.run` in the test's own process."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from absl.testing import flagsaver

from launch import entry, run

ROOT = Path(__file__).parent.parent
DIGITS = "ml_collections_configs/xclp_digits.py"


def invoke(
    arguments: Sequence[str], monkeypatch, capsys, main: entry.Main = run.main
) -> tuple[int, str]:
    """Exit status and standard error of `python -m launch.run ARGUMENTS`, in this process."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["run", *arguments])
    with flagsaver.flagsaver(), pytest.raises(SystemExit) as caught:
        entry.start(main)
    return caught.value.code, capsys.readouterr().err
