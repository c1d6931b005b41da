"""An experiment of several processes: the workdir belongs to the first one, and all stop together.

The other processes work in temporary copies of it, without the results. After every round all processes
compare their lines of metrics.jsonl, except for times: without the comparison, processes with different
numbers would go unnoticed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from jaxfed.experiment.store.workdir import TO_RESUME, Workdir, open_workdir, plain
from jaxfed.host.checkpoint import Checkpoints
from jaxfed.host.interruption import Interruption
from jaxfed.host.parallel import processes


@contextmanager
def open_for_all(
    path: str | os.PathLike[str], config: Mapping[str, Any], *, overwrite: bool = False
) -> Iterator[Workdir]:
    """Open the workdir in the first or only process, and a copy to resume from in the others.

    Arguments and errors as for `open_workdir`. An error in one process ends all.

    Raises:
        UsageError: a process does not see the checkpoints of the first one.
    """
    with ExitStack() as stack:
        with processes.together():
            if processes.is_first():
                directory = stack.enter_context(open_workdir(path, config, overwrite=overwrite))
        with processes.together():  # the first one writes no round before all have a copy
            if not processes.is_first():
                own = Path(stack.enter_context(TemporaryDirectory(prefix="jaxfed-")))
                for name in TO_RESUME:
                    if (place := Path(path, name)).is_dir():
                        shutil.copytree(place, own / name)
                    elif place.exists():
                        shutil.copyfile(place, own / name)
                directory = stack.enter_context(open_workdir(own, config))
        step = max(Checkpoints(directory.checkpoints).steps(), default=None)
        processes.check_same({"the newest checkpoint in --workdir": str(step)})
        yield directory


def agree(interruption: Interruption, record: Mapping[str, Any]) -> None:
    """Check that all processes have computed the numbers of a round, and share pending signals."""
    if processes.are_several():
        round_number = f"round {record['round']}: "
        processes.check_same(
            {
                f"{round_number}{name}": json.dumps(plain(value))
                for name, value in record.items()
                if name != "seconds"
            }
        )
        signals = processes.gather_texts(str(interruption.pending or 0))
        interruption.settle(max(map(int, signals)))
