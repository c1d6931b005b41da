"""Checkpoints of a server state in WORKDIR/checkpoints, with a small record of the run's progress.

    STEP.npz    state/PATH.npy, a leaf under its path in the tree (`params.dense.kernel`);
                record.npy, JSON: the record of progress, and every leaf's dtype
                of a table (`jaxfed.host.row_table`) the rows that have changed are in state/PATH.npy, their
                indices in state/PATH@places.npy, and the row of all others in state/PATH@first.npy

A state is any pytree of arrays, typed PRNG keys and Python numbers. A checkpoint is readable with
`numpy.load`; the state's structure comes back from a template, the state that `init` makes. A zip
archive has a CRC-32 of every member; all are checked before any is used.

(Orbax takes ten times as long over a small state, and keeps no checksums.)

Schedule
--------
    the run       round k | copy the state | round k + 1 | round k + 2 | ...
    its writer                             | serialize, checksum, fsync, rename

A run saves every N rounds, each save complete when `save` returns, or by elapsed time, with c seconds for
the last copy and t since it:

    save after a round  if  t >= max(10 s / 3, c / 3 %)  and nothing is being written

By elapsed time the run waits only for the copy, NumPy arrays that later rounds cannot change: at most 3 % of
the time (0.3 s for a GB, and host memory for one more state). A thread writes it, one save at a time and
without a queue, on another core if one is free. After a kill at any instant either the previous save or this
one is complete. A killed process loses at most ten seconds of work, or a round and its save that take longer.
"""

from __future__ import annotations

import json
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import reduce
from pathlib import Path
from typing import IO, Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from jaxfed.errors import Unresumable, UsageError
from jaxfed.host import safe_files, storage
from jaxfed.host.row_table import RowTable, rows_at_once

_RECORD, _STATE = "record", "state/"
_INDICES, _FIRST = "@places", "@first"  # of a table
# Parts of leaves' paths in checkpoints of earlier versions -> the same today.
_RENAMED = {"lesson.own": "data.labeled", "lesson.": "data.", "is_there": "is_present"}
_KEPT = 2  # newest checkpoints of a run

LARGEST_SHARE = 0.03  # of the time spent waiting for saves
_MOST_LOST = 10.0  # seconds of work

RunRecord = dict[str, Any]  # progress of the run, passed to each save; JSON
Leaves = Iterable[tuple[str, np.ndarray | RowTable]]  # of a state: paths and values


class Checkpoint:
    """One complete checkpoint; all its checksums are verified."""

    def __init__(self, file: Path) -> None:
        """Read the record of a file; `Damaged` if it is no checkpoint, or has changed since."""
        self.file = file
        with safe_files.archive(file) as members:
            broken = members.testzip()
            if broken is not None:
                raise ValueError(f"{broken} is not as it was written")
            record = safe_files.json_object(_array(members, _RECORD).tobytes(), file)
            self.progress: RunRecord = dict(record["progress"])
            dtypes = {name: np.dtype(jnp.dtype(each)) for name, each in record["dtypes"].items()}
            self._stored = {current_name(name): name for name in dtypes}
            self._dtypes = {name: dtypes[stored] for name, stored in self._stored.items()}

    def state(self, template: Any, *, part: str = "") -> Any:
        """The state, with the structure and leaf types of `template`, shapes as saved.

        The template is a state, or what `jax.eval_shape` makes of one without keys; of the field `part`
        alone, if that is given ("model"). With other leaves it is a `UsageError`.
        """
        paths, structure = jax.tree_util.tree_flatten_with_path(template)
        prefix = f"{part}." if part else ""
        wanted = {prefix + _name(path) for path, _ in paths}
        stored = {name for name in self._dtypes if name.startswith(prefix) and "@" not in name}
        if wanted != stored:
            sides = {"holds": stored - wanted, "lacks": wanted - stored}
            parts = (f"{verb} {sorted(each)[0]}" for verb, each in sides.items() if each)
            raise UsageError(f"{self.file}: is not this method's state: it {' and '.join(parts)}")
        with safe_files.archive(self.file) as archive:
            leaves = [self._leaf(archive, prefix + _name(path), leaf) for path, leaf in paths]
        return jax.tree.unflatten(structure, leaves)

    def _leaf(self, archive: zipfile.ZipFile, name: str, form: Any) -> Any:
        """Return a leaf in the form of the template's, whether a table or an array was saved."""
        if name + _INDICES not in self._dtypes:
            return _like(form, self._value(archive, name))
        indices, first = (self._value(archive, name + part) for part in (_INDICES, _FIRST))
        is_table = isinstance(form, RowTable)
        table = form.anew(first) if is_table else RowTable(form.shape[0], first)
        with archive.open(f"{_STATE}{self._stored[name]}.npy") as member:
            for part, rows in _rows_in(member, indices, first):
                table = table.replaced(part, table.from_words(rows))
        return table if is_table else _like(form, np.asarray(table))

    def _value(self, archive: zipfile.ZipFile, name: str) -> np.ndarray:
        value, dtype = _array(archive, _STATE + self._stored[name]), self._dtypes[name]
        return value if value.dtype == dtype else value.view(dtype)  # bfloat16 is bytes to NumPy


class Checkpoints:
    """The newest checkpoints of one run, numbered by step; a new one counts only once it is complete."""

    def __init__(self, path: Path) -> None:
        """The directory `path`, made by the first save; it has the newest two checkpoints."""
        self.path = path

    def save(self, step: int, state: Any, progress: RunRecord) -> None:
        """Save a state and a JSON-able record of progress; after an `OSError` earlier ones are unchanged.

        Cost: a copy of the state on the host, a leaf at a time; 1 GB/s and the disk's own time.
        """
        self.write(step, _leaves(state), progress)

    def write(self, step: int, leaves: Leaves, progress: RunRecord) -> None:
        """Save a state's leaves, as `save`; calls nothing in JAX, so any thread may use it."""
        dtypes: dict[str, str] = {}
        self.path.mkdir(parents=True, exist_ok=True)
        storage.remove_partial_files(self.path)
        with (
            storage.whole_file(self._file(step), "wb") as stream,
            zipfile.ZipFile(stream, "w") as archive,
        ):
            for name, value in leaves:
                if isinstance(value, RowTable):
                    dtypes |= _write_table(archive, name, value)
                else:
                    dtypes[name] = value.dtype.name
                    _write(archive, _STATE + name, value)
            record = json.dumps({"progress": progress, "dtypes": dtypes}).encode()
            _write(archive, _RECORD, np.frombuffer(record, np.uint8))
        for old in self.steps()[:-_KEPT]:
            self._file(old).unlink()

    def latest(
        self, objection: Callable[[RunRecord], str] = lambda progress: ""
    ) -> Checkpoint | None:
        """The newest complete checkpoint whose record meets no objection.

        Skipped checkpoints are logged. None if nothing has been saved.

        Raises:
            Unresumable: there are checkpoints, but none is usable.
        """
        reason = ""
        for step in reversed(self.steps()):
            if reason:
                logging.warning("%s; going on from %s", reason, self._file(step).name)
            try:
                checkpoint = Checkpoint(self._file(step))
                with safe_files.guarded(checkpoint.file):
                    problem = objection(checkpoint.progress)
                if not problem:
                    return checkpoint
                reason = f"{checkpoint.file}: {problem}"
            except safe_files.Damaged as error:
                reason = f"damaged checkpoint: {error}"
        if reason:
            raise Unresumable(f"{reason}; there is no older one")
        return None

    def steps(self) -> list[int]:
        """The steps of the checkpoints that are kept, ascending."""
        return sorted(int(file.stem) for file in self.path.glob("*.npz") if file.stem.isdecimal())

    def _file(self, step: int) -> Path:
        return self.path / f"{step}.npz"


class CheckpointWriter:
    """Saves a run's states on a schedule; exit waits for a save in progress.

        with CheckpointWriter(checkpoints, every) as saves:
            for number in rounds:
                state = advance(state)
                if saves.are_due(number, is_last=number == rounds[-1]):
                    saves.save(number, state, {"round": number})

    A failed save raises its error at the next call of `are_due`, `save` or `join`, or at exit, where an
    exception of the run's own takes precedence.
    """

    def __init__(
        self, checkpoints: Checkpoints, every: int, timer: Callable[[], float] = time.monotonic
    ) -> None:
        """Write into `checkpoints`, as the only writer, every `every` rounds; 0 is by elapsed time."""
        self._checkpoints, self._every, self._timer = checkpoints, every, timer
        self._copied_at, self._copying = timer(), 0.0  # the end of the last copy, its seconds
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._in_flight: Future[None] | None = None

    def are_due(self, round_number: int, *, is_last: bool) -> bool:
        """True if a save is due after this round, and none is being written; raises a failed save's error.

        `is_last`: the last round of its stage, always saved with N.
        """
        if self._in_flight is not None:
            if not self._in_flight.done():
                return False
            self.join()
        if self._every:
            return is_last or round_number % self._every == 0
        since = self._timer() - self._copied_at
        return since >= max(_MOST_LOST / 3, self._copying / LARGEST_SHARE)

    def save(self, step: int, state: Any, progress: RunRecord, *, at_once: bool = False) -> None:
        """Save a state and a record of progress as they are now (`Checkpoints.save`).

        Waits for the previous save if it is still being written. The state may be changed or donated as
        soon as this returns. With `at_once` the save is complete then, also by elapsed time.

        Raises:
            OSError: this save or the previous one has failed; earlier ones are unchanged.
        """
        self.join()
        if at_once or self._every:
            self._checkpoints.save(step, state, progress)
            return
        started = self._timer()
        leaves = copied_leaves(state)
        self._copied_at = self._timer()
        self._copying = self._copied_at - started
        self._in_flight = self._thread.submit(self._checkpoints.write, step, leaves, progress)

    def join(self) -> None:
        """Wait until nothing is being written; raises a failed save's error."""
        if self._in_flight is not None:
            wait([self._in_flight])  # still in flight if a signal ends this
            written, self._in_flight = self._in_flight, None
            written.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, exception: BaseException | None, trace: object) -> None:
        try:
            self.join()
        except Exception as failure:
            if exception is None:
                raise
            if not isinstance(exception, OSError):
                logging.warning("the last save has failed: %s", failure)
        finally:
            self._thread.shutdown()


def copied_leaves(state: Any) -> Leaves:
    """Copy the leaves for `Checkpoints.write`, independent of later changes of the state.

    On a CPU, NumPy shares a JAX array's buffer, which a computation that it is donated to may overwrite. A
    version of a table is never overwritten.
    """
    return [
        (name, value if isinstance(value, RowTable) else np.array(value, copy=True))
        for name, value in _leaves(state)
    ]


def current_name(path: str) -> str:
    """Return today's path of a leaf that an earlier version may have stored."""
    return reduce(lambda name, old: name.replace(old, _RENAMED[old]), _RENAMED, path)


def named_arrays(state: Any) -> dict[str, np.ndarray]:
    """Return the leaves of a state by their paths; of keys and tables of keys, their words."""
    return {name: np.asarray(value) for name, value in _leaves(state)}


def with_arrays(template: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Return the state of the template's structure whose `named_arrays` these are."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: _like(leaf, arrays[_name(path)]), template
    )


def _leaves(state: Any) -> Iterator[tuple[str, np.ndarray | RowTable]]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if isinstance(leaf, RowTable):
            yield _name(path), leaf
        else:
            yield _name(path), np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _write_table(archive: zipfile.ZipFile, name: str, table: RowTable) -> dict[str, str]:
    """Write the rows that have changed, some MB at a time; return the members' dtypes."""
    indices, first = table.changed(), table.first
    header = {
        "descr": np.lib.format.dtype_to_descr(first.dtype),
        "fortran_order": False,
        "shape": (len(indices), *first.shape),
    }
    with archive.open(f"{_STATE}{name}.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array_header_2_0(member, header)
        for _, rows in table.blocks(indices):
            member.write(np.ascontiguousarray(rows).tobytes())
    _write(archive, _STATE + name + _INDICES, indices)
    _write(archive, _STATE + name + _FIRST, first)
    of_rows = first.dtype.name
    return {name: of_rows, name + _INDICES: indices.dtype.name, name + _FIRST: of_rows}


def _rows_in(
    member: IO[bytes], indices: np.ndarray, first: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Read the rows that `_write_table` wrote: indices and rows, some MB at a time."""
    np.lib.format.read_magic(member)
    np.lib.format.read_array_header_2_0(member)
    size = rows_at_once(first)
    for start in range(0, len(indices), size):
        part = indices[start : start + size]
        rows = np.frombuffer(member.read(len(part) * first.nbytes), first.dtype)
        yield part, rows.reshape(len(part), *first.shape)


def _write(archive: zipfile.ZipFile, name: str, value: np.ndarray) -> None:
    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array(member, value, allow_pickle=False)


def _array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    return safe_files.array(archive.read(f"{name}.npy"))


def _name(path: jax.tree_util.KeyPath) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".") or "state"


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _like(leaf: Any, value: np.ndarray) -> Any:
    """Convert `value` to the type of `leaf`: a table, a key, a JAX array, a NumPy array or a number."""
    if isinstance(leaf, RowTable):
        return leaf.anew(leaf.first).replaced(np.arange(len(value)), leaf.from_words(value))
    if _is_key(leaf):
        return jax.random.wrap_key_data(jnp.asarray(value), impl=jax.random.key_impl(leaf))
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return jnp.asarray(value)
    if isinstance(leaf, np.ndarray | np.generic):
        return value
    return type(leaf)(value.item())
