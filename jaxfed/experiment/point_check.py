"""Every point of a sweep against its data before the first one runs: what cannot work shows now.

`jaxfed.experiment.sweep_plan` has checked keys and values. What is left to know without running, more clients
than examples, say, or a data set that is missing, takes the data, which a process of its own reads: one that
runs in this one's place later needs all of the device's memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from absl import logging

from jaxfed.config import file as config_file
from jaxfed.config.simulation import Simulation
from jaxfed.config.sources import clients_set
from jaxfed.data import Dataset
from jaxfed.errors import UsageError
from jaxfed.experiment.sweep_plan import Plan, Point
from jaxfed.host.devices import check_platform
from jaxfed.host.workers import worker_processes

_read: list[tuple[str, Dataset]] = []  # in the process that checks: the set of the point before


class _Asked(NamedTuple):
    config: str
    overrides: tuple[str, ...]


def check_points(sweep: Plan, points: Iterable[Point]) -> None:
    """Check points one after another, as each will check itself.

    Raises:
        UsageError: the first that cannot run, and why.

    Cost: a process, and each data set once where points of one are next to each other.
    """
    with worker_processes(1) as mapped:
        for point in points:
            asked = _Asked(sweep.config, (*sweep.overrides, *point.texts))
            (objection,) = mapped(_objection, [asked])
            if objection:
                raise UsageError(f"sweep point {point.title}: {objection}")


def _objection(asked: _Asked) -> str:
    """Why an experiment cannot run; "" where nothing is known against it."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    logging.set_verbosity(logging.ERROR)  # warnings are in the points' own logs
    config = config_file.load(asked.config, asked.overrides)
    source = repr(config.dataset.to_dict())
    try:
        check_platform()
        if not _read or _read[0][0] != source:
            _read[:] = [(source, clients_set(config))]
        Simulation(config, _read[0][1]).check()
    except UsageError as error:
        return str(error)
    return ""
