"""Check every point of a sweep against its data before the first one runs.

`jaxfed.experiment.sweep.sweep_plan` has already checked keys and values. The checks here need the data: more
clients than examples, or a missing data set, for example. A separate process reads the data and ends
afterwards, because the experiments need all of the device's memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from absl import logging

from jaxfed.config import file as config_file
from jaxfed.config.data.simulation import Simulation, clients_set
from jaxfed.config.methods import check_tested_alike
from jaxfed.data import Dataset
from jaxfed.errors import UsageError
from jaxfed.experiment.run.loop import first_repeat
from jaxfed.experiment.sweep.sweep_plan import Point, SweepPlan
from jaxfed.host.parallel.devices import check_platform
from jaxfed.host.parallel.workers import worker_processes

_read: list[tuple[str, Dataset]] = []  # in the checking process: the last point's data set


class _Asked(NamedTuple):
    config: str
    overrides: tuple[str, ...]


def check_points(sweep: SweepPlan, points: Iterable[Point]) -> None:
    """Check points one after another with the checks of their own runs.

    Raises:
        UsageError: a point cannot run; names the first one and the reason.

    Cost: one process. Consecutive points on the same data set read it once.
    """
    with worker_processes(1) as mapped:
        for point in points:
            asked = _Asked(sweep.config, (*sweep.overrides, *point.texts))
            (objection,) = mapped(_objection, [asked])
            if objection:
                raise UsageError(f"sweep point {point.title}: {objection}")


def _objection(asked: _Asked) -> str:
    """Return the reason why an experiment cannot run; "" if its checks pass."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    logging.set_verbosity(logging.ERROR)  # warnings are in the points' own logs
    config = config_file.load(asked.config, asked.overrides)
    source = repr(config.dataset.to_dict())
    try:
        check_platform()
        check_tested_alike(config)
        if not _read or _read[0][0] != source:
            _read[:] = [(source, clients_set(config))]
        first_repeat(config, Simulation(config, _read[0][1]))
    except UsageError as error:
        return str(error)
    return ""
