"""The directory of one experiment: whose it is, what is in it, and what of it is valid.

    config.json      the config as resolved; written first
    data.json        type, shape and checksum of the data that rounds are computed on, and of weights files
    metrics.jsonl    one JSON object a line, one line a round; of a method that validates, round 0 is
                     the state before the first
    partition.json   who holds what in the first repeat: clients x classes counts, for its plot
    checkpoints/     the newest states (`jaxfed.host.checkpoint`)
    preprocessing/   REPEAT/, the model whose features the methods work on, where it is trained first
    states/          METHOD-REPEAT/, the state that was selected, and METHOD-REPEAT-last/, the last one;
                     without a selection METHOD-REPEAT/ is the last
    predictions/     METHOD-REPEAT.csv.gz, the labels that it gave (`jaxfed.experiment.prediction_table`)
    audit/           what attacks were shown and what they found (`jaxfed.experiment.audit`)
    plots/           pictures made at the end
    summary.json     the final metrics; written last and in one step, so it says "finished"
    .lock            held by the process that is running here
    .deleted.json    config.json while the results of an earlier experiment are being deleted

One process at a time may run in a workdir. Only files of this list are ever deleted: config.json gets
its other name first, and from then on all the others count as deleted, whatever ends the process.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from jaxfed.config.keys import flatten
from jaxfed.errors import BeyondMemory, Unresumable, UsageError
from jaxfed.experiment.records import Run
from jaxfed.host import storage

_CONFIG, _METRICS, _SUMMARY, _LOCK = "config.json", "metrics.jsonl", "summary.json", ".lock"
_PARTITION, _CHECKPOINTS, _STATES, _PLOTS = "partition.json", "checkpoints", "states", "plots"
_MOST_NAMED = 4  # keys that differ
_OF_REPORTS = ("paper_table",)
# What an unfinished run may go on with another of. The memory limit is the one of them that results can
# depend on, by rounding (columns and clients at once): a run that cannot go on is worth less than last bits.
_FREE = tuple(
    f"execution.{key}" for key in ("memory_limit", "workers", "compilation_cache", "plots")
)
_PREPROCESSING, _DATA, _DELETED = "preprocessing", "data.json", ".deleted.json"
_PREDICTIONS, _AUDIT = "predictions", "audit"
_OWN = (
    _SUMMARY,
    _METRICS,
    _PARTITION,
    _CHECKPOINTS,
    _PREPROCESSING,
    _STATES,
    _PREDICTIONS,
    _AUDIT,
    _PLOTS,
    _DATA,
)  # beside config.json
TO_RESUME = (_CONFIG, _DATA, _METRICS, _PARTITION, _CHECKPOINTS, _PREPROCESSING)


class Workdir:
    """Files of one experiment; made by `open_workdir`, which holds the lock."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def plots(self) -> Path:
        """Where pictures go."""
        return self.path / _PLOTS

    @property
    def audit(self) -> Path:
        """Where an audit has its files."""
        return self.path / _AUDIT

    @property
    def checkpoints(self) -> Path:
        """Where the states are."""
        return self.path / _CHECKPOINTS

    def final_state(self, method: str, repeat: int, *, last: bool = False) -> Path:
        """Where a method's selected state of a repeat is, or the one it ended with."""
        return self.path / _STATES / f"{method}-{repeat}{'-last' if last else ''}"

    def predictions(self, method: str, repeat: int) -> Path:
        """What a method predicts in a repeat (`jaxfed.experiment.prediction_table`)."""
        return self.path / _PREDICTIONS / f"{method}-{repeat}.csv.gz"

    def preprocessing(self, repeat: int) -> Path:
        """Where the model is that a repeat's features come from."""
        return self.path / _PREPROCESSING / str(repeat)

    def check_data(self, checksums: Mapping[str, str]) -> None:
        """Write data.json, or compare with what it says of the data.

        Raises:
            Unresumable: the rounds that are there were computed on other data, or data.json is damaged.
        """
        file = self.path / _DATA
        if not file.exists():
            write_json(file, checksums)
            return
        try:
            there = _read_json(file)
        except ValueError:
            there = None
        if not isinstance(there, dict):
            raise Unresumable(
                f"--workdir={self.path}: {_DATA} is damaged, which said what data its rounds were computed on"
            )
        for name in [*checksums, *there]:
            if there.get(name) != checksums.get(name):
                raise Unresumable(
                    f"--workdir={self.path}: its rounds were computed on other data: {name} is "
                    f"{there.get(name)} there, {checksums.get(name)} now; bring the data back"
                )

    def write_partition(self, counts: Mapping[str, Any]) -> None:
        """Write partition.json: clients x classes counts of the first repeat."""
        write_json(self.path / _PARTITION, counts)

    def read_metrics(self) -> list[dict[str, Any]]:
        """All lines of metrics.jsonl, in the order they were written."""
        file = self.path / _METRICS
        if not file.exists():
            return []
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]

    def is_without_rounds(self) -> bool:
        """Whether nothing has been computed yet that took more than a moment."""
        made = (self.checkpoints, self.path / _PREPROCESSING)
        rounds = [record.get("round", 0) for record in self.read_metrics()]
        return not any(rounds) and not any(
            place.exists() and any(place.iterdir()) for place in made
        )

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Add one line to metrics.jsonl."""
        storage.append(self.path / _METRICS, json.dumps(plain(record)) + "\n")

    def metrics_mark(self) -> str:
        """What metrics.jsonl is now, for a checkpoint: size and checksum."""
        return storage.file_checksum(self.path / _METRICS)

    def objection(self, mark: str) -> str:
        """Why metrics.jsonl does not go on from what it was at the mark; empty if it does."""
        file, size = self.path / _METRICS, int(mark.partition("-")[0])
        if file.exists() and storage.file_checksum(file, size) == mark:
            return ""
        return f"{file} is not what it was saved with: lines are missing, or others"

    def restore_metrics(self, mark: str | None) -> None:
        """Drop what metrics.jsonl holds beyond the mark, or all: lines of rounds that were not saved."""
        with (self.path / _METRICS).open("ab") as file:
            file.truncate(int(mark.partition("-")[0]) if mark else 0)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json, when all else is there: where that is, nothing is missing."""
        write_json(self.path / _SUMMARY, summary)

    def finished_run(self, summary: Mapping[str, Any]) -> Run:
        """The experiment as reports will read it, before summary.json says that it has finished."""
        return Run(
            self.path, _read_json(self.path / _CONFIG), json.loads(json.dumps(plain(summary)))
        )


def is_finished(path: str | os.PathLike[str], config: Mapping[str, Any]) -> bool:
    """Whether the experiment of this config has run to its end there; touches nothing.

    Raises:
        Unresumable: the directory belongs to another config.
        UsageError: it is something else altogether.
    """
    path = Path(path)
    _check_owner(path, config)
    return not (path / _DELETED).exists() and _has_summary(path)


@contextmanager
def open_workdir(
    path: str | os.PathLike[str], config: Mapping[str, Any], *, overwrite: bool = False
) -> Iterator[Workdir]:
    """Make or re-open the directory of this config's experiment and hold its lock.

    Args:
        path: the directory; parents are made.
        config: the resolved config. A directory made by another config is refused; what an unfinished run
            may have another of (`execution.memory_limit`, ...) is written into its config.json.
        overwrite: delete what an earlier experiment left there first.

    Raises:
        Unresumable: the directory belongs to another config.
        UsageError: it belongs to another process or something else altogether, or cannot be written.

    An experiment that takes more memory than it may (`BeyondMemory`), and is told so before its first round,
    leaves nothing behind.
    """
    path = Path(path)
    is_new = not path.exists()
    if overwrite:
        _check_contents(path)
    else:
        _check_owner(path, config)
    with ExitStack() as stack:
        try:
            path.mkdir(parents=True, exist_ok=True)
            stack.enter_context(storage.lock(path / _LOCK))
        except BlockingIOError:
            raise UsageError(f"--workdir={path}: another process is running here") from None
        except OSError as error:
            raise UsageError(f"--workdir={path}: {error.filename}: {error.strerror}") from error
        storage.remove_partial_files(path)
        if overwrite and (path / _CONFIG).exists():
            (path / _CONFIG).replace(path / _DELETED)
        if (path / _DELETED).exists():  # by now, or by a process that was killed
            _delete_results(path)
            write_json(path / _CONFIG, config)
            (path / _DELETED).unlink()
        if not (path / _CONFIG).exists():
            write_json(path / _CONFIG, config)
        _check_owner(path, config)
        if _flat(_read_json(path / _CONFIG)) != _flat(config):
            write_json(path / _CONFIG, config)
        directory = Workdir(path)
        try:
            yield directory
        except BeyondMemory:
            if is_new and directory.is_without_rounds():
                shutil.rmtree(path)
            raise


def plain(value: Any) -> Any:
    """Valid JSON: arrays and tuples as lists, their numbers as Python's, None for not finite."""
    if isinstance(value, Mapping):
        return {str(name): plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _is_empty(path: Path) -> bool:
    """Whether a directory holds nothing, or only what a start that was cut short left."""
    return all(
        entry.name == _LOCK
        or (entry.name.startswith(f".{_CONFIG}.") and entry.name.endswith(".partial"))
        for entry in path.iterdir()
    )


def _has_summary(path: Path) -> bool:
    """Whether there is a summary that is whole."""
    try:
        summary = _read_json(path / _SUMMARY)
    except (OSError, ValueError):
        return False
    return isinstance(summary, dict) and "algorithms" in summary


def _check_contents(path: Path) -> dict[str, Any] | None:
    """The config of the experiment in `path`; None where nothing is, or nothing that counts."""
    if not path.exists() or (path.is_dir() and _is_empty(path)) or (path / _DELETED).exists():
        return None
    try:
        config = _read_json(path / _CONFIG)
    except (OSError, ValueError):
        config = None
    if not isinstance(config, dict) or not {"algorithm", "dataset", "num_repeats"} <= config.keys():
        raise UsageError(
            f"--workdir={path}: is no workdir of launch.run; give a new or empty directory"
        )
    return config


def _check_owner(path: Path, config: Mapping[str, Any]) -> None:
    """Refuse a directory made by another config, naming the keys that differ.

    One that was changed may have others that follow it. Of keys that differ alike, from the same value to the
    same, the first is named, and what reports alone read only where it is all; the rest are counted. Before
    the end some may differ (`_FREE`); a finished experiment is what its config.json says.
    """
    owner = _check_contents(path)
    if owner is None:
        return
    there, given = _flat(owner), _flat(config)
    free = () if _has_summary(path) else _FREE
    differing = [
        key for key in {**given, **there} if there.get(key) != given.get(key) and key not in free
    ]
    if differing:
        told: dict[str, str] = {}
        for key in sorted(differing, key=lambda key: key in _OF_REPORTS):
            told.setdefault(f"{_shown(there, key)} there, {_shown(given, key)} now", key)
        telling = [
            f"config.{key} is {values}" for values, key in told.items() if key not in _OF_REPORTS
        ]
        shown = telling[:_MOST_NAMED] or [f"config.{key} is {v}" for v, key in told.items()]
        more = len(differing) - len(shown)
        raise Unresumable(
            f"--workdir={path}: made by another config: {'; '.join(shown)}"
            f"{f'; and {more} more' * bool(more)}"
        )


def _delete_results(path: Path) -> None:
    for name in _OWN:
        if (path / name).is_dir():
            shutil.rmtree(path / name)
        else:
            (path / name).unlink(missing_ok=True)


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    return dict(flatten(plain(config)))


def _shown(flat: Mapping[str, Any], key: str) -> str:
    return json.dumps(flat[key]) if key in flat else "absent"


def _read_json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def write_json(file: Path, value: Mapping[str, Any]) -> None:
    """Write a file that is there whole or not at all."""
    with storage.whole_file(file) as stream:
        stream.write(json.dumps(plain(value), indent=2) + "\n")
