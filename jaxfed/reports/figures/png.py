"""Figures as PNG files: a picture that cannot be drawn is a warning, not the end of a report."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

from absl import logging
from matplotlib.figure import Figure

from jaxfed.errors import UsageError


def try_to_write(draw: Callable[[], Figure], path: Path) -> None:
    """Draw and save a picture; if drawing fails, log a warning and remove an earlier file.

    Raises:
        OSError: the file cannot be written.
        UsageError: an input file is invalid.
    """
    try:
        write(draw(), path)
    except (OSError, UsageError):
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        logging.warning("%s: cannot be drawn (%s: %s)", path, type(error).__name__, text)
        path.unlink(missing_ok=True)


def write(figure: Figure, path: Path) -> Path:
    """Save a figure as PNG; create the folder if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # shown as boxes
        figure.savefig(path)
    return path
