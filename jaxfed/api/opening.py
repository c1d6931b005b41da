"""`jaxfed.open`: the result of a finished run, from its workdir alone.

result = jaxfed.open("runs/xclp_digits")
result.results
result.model("fedavg")(x)
"""

from __future__ import annotations

import os

from jaxfed.api.result import Result
from jaxfed.config.stored import restored
from jaxfed.errors import UsageError
from jaxfed.experiment.store.manifest import read_json
from jaxfed.experiment.store.workdir import finished_config
from jaxfed.host.location import location


def open(workdir: str | os.PathLike[str]) -> Result:
    """Open a finished run, without its config file and overrides.

    Nothing is computed and no data are read before the result is asked for a model or its clients. A run of a
    method, network or reader of your own needs the import that registers it before that.

    Args:
        workdir: of `jaxfed.run` or `launch.run`, or of a point of a sweep.

    Returns:
        The same as `jaxfed.run` with this workdir.

    Raises:
        UsageError: one line: no such folder, no workdir, a run that has not finished, a damaged file.
    """
    place = location(workdir, "workdir")
    try:
        config = finished_config(place)
    except UsageError as error:
        raise UsageError(f"jaxfed.open({os.fspath(workdir)!r}): {error}") from error
    return Result(place, restored(config), read_json(place, "summary.json"))
