"""The directory of one experiment: its owner, its files, and their validity.

    config.json      the config as resolved; written first
    data.json        type, shape and checksum of the data that rounds are computed on, and of weights files
    metrics.jsonl    one JSON object a line, one line a round; if a method validates, round 0 is
                     its initial state
    partition.json   clients x classes counts of the first repeat, and names, for its plot
    checkpoints/     the newest states (`jaxfed.host.checkpoint`)
    preprocessing/   REPEAT/, the model that computes the methods' features, if it is trained first
    states/          METHOD-REPEAT/, the selected state, and METHOD-REPEAT-last/, the last one;
                     without a selection METHOD-REPEAT/ is the last
    predictions/     METHOD-REPEAT.csv.gz, the method's predictions (`jaxfed.experiment.run.save_outputs`)
    audit/           observations of the attacks and their results (`jaxfed.audit`)
    plots/           pictures made at the end
    tracking.jsonl   the experiment's id at trackers (`jaxfed.experiment.tracking`)
    tensorboard/     METHOD-REPEAT/, event files (`jaxfed.experiment.tracking`)
    manifest.json    length and SHA-256 of each other file that is read after the end, except pictures
    network.json     of a run over a network: what its server knew of the clients' data (`data_form`)
    summary.json     the final metrics; written last and atomically: it marks a finished experiment
    .lock            held by the process that is running here

One process at a time may run in a workdir. Only the files of this list are ever deleted: summary.json and the
checkpoints first, so that a process that is killed then leaves an experiment that begins anew.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from jaxfed.config.keys import flatten
from jaxfed.config.stored import ADDED, without_gone
from jaxfed.errors import BeyondMemory, Unresumable, UsageError
from jaxfed.experiment.store.records import (
    MANIFEST,
    STATES,
    Run,
    check_manifest,
    manifest_of,
    read_json,
    read_metrics,
)
from jaxfed.host import storage
from jaxfed.host.checkpoint import Checkpoints
from jaxfed.host.parallel import processes
from jaxfed.host.safe_files import Damaged, content_of, guarded, json_object

_CONFIG, _METRICS, _SUMMARY = "config.json", "metrics.jsonl", "summary.json"
PARTITION, _CHECKPOINTS, _STATES, _PLOTS = "partition.json", "checkpoints", "states", "plots"
# Keys that may change when an unfinished run resumes; no result depends on them.
_FREE = tuple(f"execution.{key}" for key in ("workers", "compilation_cache", "plots"))
# Paths of data and weights may lie elsewhere on the machine that resumes: data.json has their checksums.
_PATHS = ("dataset.root", "dataset.name")
_OF_A_NETWORK = "deployment."  # limits of waiting; no result depends on them
_PREPROCESSING, _DATA = "preprocessing", "data.json"
_RENAMED = {"preprocessing.weights": "preprocessing.network"}  # in data.json of earlier versions
_PREDICTIONS = "predictions"
AUDIT = "audit"  # folder, with audit.json
TRACKING, TENSORBOARD, NETWORK = "tracking.jsonl", "tensorboard", "network.json"
_RESULTS = (
    *(_SUMMARY, _CHECKPOINTS, _METRICS, PARTITION, _PREPROCESSING, _STATES, _PREDICTIONS),
    *(AUDIT, _PLOTS, TRACKING, TENSORBOARD, NETWORK, _DATA, MANIFEST),
)  # beside config.json, in the order of their deletion
_IN_MANIFEST = (
    *(_CONFIG, _DATA, _METRICS, PARTITION, _PREDICTIONS, *STATES, NETWORK),
    f"{AUDIT}/{AUDIT}.json",
)
_TO_RESUME = (_CONFIG, _DATA, _METRICS, PARTITION, _CHECKPOINTS, _PREPROCESSING)

IN_A_SWEEP = "JAXFED_IN_A_SWEEP"  # set for the processes of a sweep


class Workdir:
    """Files of one experiment; made by `open_workdir`, which holds the lock."""

    def __init__(self, path: Path) -> None:
        self.path, self.plots, self.checkpoints = path, path / _PLOTS, path / _CHECKPOINTS

    def final_state(self, method: str, repeat: int, *, last: bool = False) -> Path:
        """Return the folder of a method's selected state in a repeat, or of its last state."""
        return self.path / _STATES / f"{method}-{repeat}{'-last' if last else ''}"

    def predictions(self, method: str, repeat: int) -> Path:
        """Return the path of a method's predictions in a repeat (`run.save_outputs`)."""
        return self.path / _PREDICTIONS / f"{method}-{repeat}.csv.gz"

    def preprocessing(self, repeat: int) -> Path:
        """Return the folder of the model that computes a repeat's features."""
        return self.path / _PREPROCESSING / str(repeat)

    def check_data(self, checksums: Mapping[str, str]) -> None:
        """Write data.json, or compare the checksums with the existing file.

        Raises:
            Unresumable: the existing rounds were computed on other data, or data.json is damaged.
        """
        file = self.path / _DATA
        if not file.exists():
            write_json(file, checksums)
            return
        try:
            stored = read_json(self.path, _DATA)
        except Damaged:
            raise Unresumable(
                f"--workdir={self.path}: {_DATA} is damaged; it identifies the data of the finished rounds"
            ) from None
        stored = {_RENAMED.get(name, name): checksum for name, checksum in stored.items()}
        for name in [*checksums, *stored]:
            if stored.get(name) != checksums.get(name):
                raise Unresumable(
                    f"--workdir={self.path}: its rounds were computed on other data: {name} is "
                    f"{stored.get(name)} there, {checksums.get(name)} now; bring the data back"
                )

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return all lines of metrics.jsonl, in the order they were written."""
        return read_metrics(self.path)

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Add one line to metrics.jsonl."""
        storage.append(self.path / _METRICS, json.dumps(plain(record)) + "\n")

    def metrics_mark(self) -> str:
        """Return size and checksum of metrics.jsonl, for a checkpoint."""
        return storage.file_checksum(self.path / _METRICS)

    def objection(self, mark: str) -> str:
        """Return the reason why metrics.jsonl does not continue its content at the mark; "" if it does."""
        file, size = self.path / _METRICS, int(mark.partition("-")[0])
        if file.exists() and storage.file_checksum(file, size) == mark:
            return ""
        return f"{file} is not what it was saved with: lines are missing, or others"

    def restore_metrics(self, mark: str | None) -> None:
        """Truncate metrics.jsonl to the mark, or to nothing: later rounds were not saved."""
        (self.path / _METRICS).touch()
        os.truncate(self.path / _METRICS, int(mark.partition("-")[0]) if mark else 0)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write manifest.json, then summary.json: its presence means that the results are complete."""
        partial = self.path / f".{_SUMMARY}.whole.partial"  # its checksum is in the manifest
        write_json(partial, summary)
        files = manifest_of(self.path, (*_IN_MANIFEST, partial.name))
        files[_SUMMARY] = files.pop(partial.name)
        write_json(self.path / MANIFEST, {"files": files})
        partial.replace(self.path / _SUMMARY)

    def check(self, folder: Path) -> None:
        """Compare the files of a folder of states with the manifest (`check_manifest`)."""
        check_manifest(self.path, f"{folder.relative_to(self.path)}/")

    def finished_run(self, summary: Mapping[str, Any]) -> Run:
        """Return the run as reports will read it, before summary.json is written."""
        return Run(self.path, read_json(self.path, _CONFIG), json.loads(json.dumps(plain(summary))))


def is_finished(path: str | os.PathLike[str], config: Mapping[str, Any]) -> bool:
    """True if the experiment of this config has finished in the directory; changes no file.

    Raises:
        Unresumable: another config's directory, or a changed file of results.
    """
    path = Path(path)
    _check_owner(path, config)
    if not _has_summary(path):
        return False
    try:
        check_manifest(path)
    except Damaged as error:
        raise Unresumable(str(error)) from error
    return True


def finished_config(path: Path) -> dict[str, Any]:
    """Return the config of the experiment that has finished in a directory, without keys that are gone.

    Raises:
        UsageError: no finished experiment there. The text continues the name of the directory.
    """
    if not (path / _CONFIG).is_file():
        raise UsageError(f"no workdir of jaxfed.run or launch.run ({path.absolute()})")
    config = without_gone(read_json(path, _CONFIG))
    if not _has_summary(path):
        raise UsageError(
            "the run in it has not finished; the call or command that began it continues it"
        )
    check_manifest(path)
    return config


@contextmanager
def open_workdir(
    path: str | os.PathLike[str], config: Mapping[str, Any], *, overwrite: bool = False
) -> Iterator[Workdir]:
    """Create or re-open the directory of this config's experiment and hold its lock.

    A directory made by another config is refused. Keys that may change in an unfinished run
    (`execution.workers`, ...) are updated in its config.json. With `overwrite` the results of an earlier
    experiment are deleted first. A directory created here is removed if the first round exceeds the memory
    (`BeyondMemory`), unless it has the model that features are computed with.

    Raises:
        Unresumable: the directory belongs to another config.
        UsageError: it is in use by another process, is no workdir, or cannot be written.
    """
    path = Path(path)
    is_new = not path.exists()
    if overwrite:
        _check_contents(path)
    else:
        _check_owner(path, config)
    with storage.claimed(path, "another process is running here"):
        if overwrite:
            _delete_results(path)
        if overwrite or not (path / _CONFIG).exists():
            write_json(path / _CONFIG, config)
        _check_owner(path, config)
        if not _has_summary(path):
            (path / MANIFEST).unlink(missing_ok=True)  # of a process that was killed at its end
            if _flat(without_gone(read_json(path, _CONFIG))) != _flat(config):
                write_json(path / _CONFIG, config)
        try:
            yield Workdir(path)
        except BeyondMemory:
            is_begun = any(line["round"] for line in read_metrics(path))
            if is_new and not is_begun and not (path / _PREPROCESSING).exists():
                shutil.rmtree(path)
            raise


@contextmanager
def open_for_all(
    path: str | os.PathLike[str], config: Mapping[str, Any], *, overwrite: bool = False
) -> Iterator[Workdir]:
    """Open the workdir in the first or only process, and a temporary copy to resume from in the others.

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
                copies = Path(stack.enter_context(TemporaryDirectory(prefix="jaxfed-")))
                for entry in filter(Path.exists, (Path(path, name) for name in _TO_RESUME)):
                    copy = shutil.copytree if entry.is_dir() else shutil.copyfile
                    copy(entry, copies / entry.name)
                directory = stack.enter_context(open_workdir(copies, config))
        step = max(Checkpoints(directory.checkpoints).steps(), default=None)
        processes.check_same({"the newest checkpoint in --workdir": str(step)})
        yield directory


def experiment_name(workdir: Path) -> str:
    """Return the unique name of a workdir's experiment for trackers; a new one after `overwrite`."""
    file = workdir / TRACKING
    if not file.exists():
        file.write_text(json.dumps({"id": secrets.token_hex(4)}) + "\n")
    with guarded(file):
        return f"{workdir.resolve().name}-{json_object(content_of(file), file)['id']}"


def plain(value: Any) -> Any:
    """Convert to valid JSON: arrays and tuples to lists, NumPy to Python numbers, non-finite ones to None."""
    if isinstance(value, Mapping):
        return {str(name): plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _has_summary(path: Path) -> bool:
    """True if a complete summary exists."""
    try:
        return "algorithms" in json_object(content_of(path / _SUMMARY), path / _SUMMARY)
    except Damaged:
        return False


def _check_contents(path: Path) -> dict[str, Any] | None:
    """Return the config of the experiment in `path`; None if it is absent or has hidden files alone."""
    if not path.exists() or (path.is_dir() and all(e.name[0] == "." for e in path.iterdir())):
        return None
    try:
        config = without_gone(json_object(content_of(path / _CONFIG), path / _CONFIG))
    except Damaged:
        config = {}
    if not {"algorithm", "dataset", "num_repeats"} <= config.keys():
        raise UsageError(
            f"--workdir={path}: is no workdir of launch.run; give a new or empty directory"
        )
    return config


def _check_owner(path: Path, config: Mapping[str, Any]) -> None:
    """Refuse a directory made by another config, naming the keys that differ.

    In an unfinished experiment some keys may differ (`_FREE`), and folders of files (`_PATHS`); in a finished
    one none.
    """
    owner = _check_contents(path)
    if owner is None:
        return
    old, new = _flat(owner), _flat(config)
    free: tuple[str, ...] = (_OF_A_NETWORK,)
    if not _has_summary(path):
        moved = (key for key in _PATHS if _is_moved(key, old.get(key), new.get(key)))
        free = (_OF_A_NETWORK, *_FREE, *moved)
    differing = [
        f"config.{key} is {json.dumps(old.get(key))} there, {json.dumps(new.get(key))} now"
        for key in {**new, **old}
        if old.get(key) != new.get(key) and not key.startswith(free)
    ]
    if differing:
        named = "; ".join(differing[:4])
        raise Unresumable(f"--workdir={path}: made by another config: {named}")


def _is_moved(key: str, old: object, new: object) -> bool:
    """True if a path differs in its folder alone; any root of data may replace another."""
    return key == "dataset.root" or Path(str(old)).name == Path(str(new)).name


def _delete_results(path: Path) -> None:
    for entry in (path / name for name in _RESULTS):
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    return plain(ADDED) | dict(flatten(plain(config)))


def write_json(file: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file atomically."""
    with storage.whole_file(file) as stream:
        stream.write(json.dumps(plain(value), indent=2) + "\n")
