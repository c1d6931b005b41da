"""An experiment of several processes: the workdir belongs to the first one, and all stop together.

The other processes work in temporary folders. They receive the state to resume from the first process, so
hosts need no common file system. After every round all processes compare their lines of metrics.jsonl, except
for times: without the comparison, processes with different numbers would go unnoticed.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from jaxfed.errors import UsageError
from jaxfed.experiment.store.workdir import TO_RESUME, Workdir, open_workdir, plain
from jaxfed.host.interruption import Interruption
from jaxfed.host.parallel import processes

_TIMES = "seconds"


@contextmanager
def own_place(path: Path) -> Iterator[Path]:
    """Yield the path in the first or only process, and a temporary folder in the others."""
    if processes.is_first():
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="jaxfed-") as folder:
        yield Path(folder)


@contextmanager
def open_for_all(
    path: str | os.PathLike[str], config: Mapping[str, Any], *, overwrite: bool = False
) -> Iterator[Workdir]:
    """Open the workdir in the first or only process, and a copy to resume from in the others' `own_place`.

    Arguments and errors as for `open_workdir`. An error in the first process ends all.
    """
    if not processes.are_several():
        with open_workdir(path, config, overwrite=overwrite) as directory:
            yield directory
        return
    with ExitStack() as stack:
        sent = b""
        with processes.together():
            if processes.is_first():
                directory = stack.enter_context(open_workdir(path, config, overwrite=overwrite))
                sent = _packed(directory.path)
        sent = processes.from_first(sent)
        if not processes.is_first():
            with tarfile.open(fileobj=io.BytesIO(sent)) as archive:
                archive.extraction_filter = getattr(tarfile, "data_filter", None)  # since 3.11.4
                archive.extractall(path)
            directory = stack.enter_context(open_workdir(path, config))
        yield directory


def agree(interruption: Interruption, record: Mapping[str, Any]) -> None:
    """Compare a round's record across processes and share pending signals.

    Raises:
        UsageError: another process has computed other numbers.
    """
    if not processes.are_several():
        return
    numbers = {name: value for name, value in record.items() if name != _TIMES}
    own = {"signal": interruption.pending or 0, "record": plain(numbers)}
    first, *others = (json.loads(text) for text in processes.gather_texts(json.dumps(own)))
    for number, other in enumerate(others, 1):
        for name, value in first["record"].items():
            if other["record"].get(name) != value:
                raise UsageError(
                    f"process {number} computed {name}={other['record'].get(name)} in round "
                    f"{record['round']}, process 0 {value}: all must compute the same numbers; use one kind "
                    "of device and no randomness of the system"
                )
    interruption.settle(max(said["signal"] for said in (first, *others)))


def _packed(path: Path) -> bytes:
    """Return a tar archive of the files that an experiment resumes from."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name in TO_RESUME:
            if (path / name).exists():
                archive.add(path / name, name)
    return stream.getvalue()
