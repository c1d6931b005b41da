"""Where the real data sets are: in $JAXFED_DATA or in a folder beside it."""

import os
from pathlib import Path

import pytest


def root_of(name):
    """The folder that has the set's folder; None where none has."""
    given = os.environ.get("JAXFED_DATA")
    if not given:
        return None
    roots = [Path(given), *sorted(Path(given).resolve().parent.iterdir())]
    return next((root for root in roots if (root / name).is_dir()), None)


def needs_data(*names):
    """Skip where one of these sets is not there."""
    missing = [name for name in names if root_of(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"JAXFED_DATA has no {', '.join(missing)}")
