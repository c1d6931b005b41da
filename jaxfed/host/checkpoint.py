"""Checkpoints of a server state, with a small record of the run's progress.

    STEP.npz    state/PATH.npy, a leaf under its path in the tree (`params.dense.kernel`);
                record.npy, JSON: the record of progress, and every leaf's dtype
                of a table (`jaxfed.host.row_table`) the rows that have changed are in state/PATH.npy, their
                places in state/PATH@places.npy, and the row of all others in state/PATH@first.npy

A state is any pytree of arrays, typed PRNG keys and Python numbers. A checkpoint is readable with
`numpy.load`; the state's structure comes back from a template, the state that `init` makes. A zip
archive has a CRC-32 of every member; all are checked before any is used.

(Orbax takes ten times as long over a small state, keeps no checksums, and reads `[1]` in a path as a
pattern; its arrays sharded over hosts are not needed, as a server state is on one.)
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from jaxfed.errors import Unresumable, UsageError
from jaxfed.host import safe_files, storage
from jaxfed.host.row_table import RowTable, rows_at_once

_RECORD, _STATE = "record", "state/"
_PLACES, _FIRST = "@places", "@first"  # of a table
_KEPT = 2  # newest checkpoints of a run

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
            self._dtypes = {
                str(name): np.dtype(jnp.dtype(each)) for name, each in record["dtypes"].items()
            }

    def state(self, template: Any, *, part: str = "") -> Any:
        """The state, with the structure and leaf types of `template`, shapes as saved.

        Args:
            template: a state, or what `jax.eval_shape` makes of one without keys.
            part: the template describes only this field of the saved state ("model").

        Raises:
            UsageError: the leaves are not those of the template.
            Damaged: the leaves are not as the record of the file says.
        """
        paths, structure = jax.tree_util.tree_flatten_with_path(template)
        prefix = f"{part}." if part else ""
        wanted = {prefix + _name(path) for path, _ in paths}
        there = {name for name in self._dtypes if name.startswith(prefix) and "@" not in name}
        if wanted != there:
            sides = {"holds": there - wanted, "lacks": wanted - there}
            parts = (
                f"{verb} {', '.join(sorted(each)[:3])}" for verb, each in sides.items() if each
            )
            raise UsageError(f"{self.file}: is not this method's state: it {' and '.join(parts)}")
        with safe_files.archive(self.file) as archive:
            leaves = [self._leaf(archive, prefix + _name(path), leaf) for path, leaf in paths]
        return jax.tree.unflatten(structure, leaves)

    def _leaf(self, archive: zipfile.ZipFile, name: str, form: Any) -> Any:
        """Return a leaf in the form of the template's, whether a table or an array was saved."""
        if name + _PLACES not in self._dtypes:
            return _like(form, self._value(archive, name))
        places, first = (self._value(archive, name + part) for part in (_PLACES, _FIRST))
        is_table = isinstance(form, RowTable)
        table = form.anew(first) if is_table else RowTable(form.shape[0], first)
        with archive.open(f"{_STATE}{name}.npy") as member:
            for part, rows in _rows_in(member, places, first):
                table = table.replaced(part, table.from_words(rows))
        return table if is_table else _like(form, np.asarray(table))

    def _value(self, archive: zipfile.ZipFile, name: str) -> np.ndarray:
        value, dtype = _array(archive, _STATE + name), self._dtypes[name]
        return value if value.dtype == dtype else value.view(dtype)  # bfloat16 is bytes to NumPy


class Checkpoints:
    """The newest checkpoints of one run, numbered by step.

    A process that is killed while saving leaves the checkpoints before it intact: a new one counts
    only once it is complete.
    """

    def __init__(self, path: Path) -> None:
        """The directory `path`, made by the first save; it has the newest two checkpoints."""
        self.path = path

    def save(self, step: int, state: Any, progress: RunRecord) -> None:
        """Save a state and a JSON-able record of progress as step `step`.

        Raises:
            OSError: for example, the disk is full; earlier checkpoints are unchanged.

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
        for old in self._steps()[:-_KEPT]:
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
        for step in reversed(self._steps()):
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

    def newest(self) -> int | None:
        """The step of the newest checkpoint; None if nothing has been saved."""
        return max(self._steps(), default=None)

    def oldest(self) -> int | None:
        """The step of the oldest checkpoint that is kept; None if nothing has been saved."""
        return min(self._steps(), default=None)

    def _steps(self) -> list[int]:
        return sorted(int(file.stem) for file in self.path.glob("*.npz") if file.stem.isdecimal())

    def _file(self, step: int) -> Path:
        return self.path / f"{step}.npz"


def copied_leaves(state: Any) -> Leaves:
    """Copy the leaves for `Checkpoints.write`, independent of later changes of the state.

    On a CPU, NumPy shares a JAX array's buffer, which a computation that it is donated to may overwrite. A
    version of a table is never overwritten.
    """
    return [
        (name, value if isinstance(value, RowTable) else np.array(value, copy=True))
        for name, value in _leaves(state)
    ]


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
    places, first = table.changed(), table.first
    header = {
        "descr": np.lib.format.dtype_to_descr(first.dtype),
        "fortran_order": False,
        "shape": (len(places), *first.shape),
    }
    with archive.open(f"{_STATE}{name}.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array_header_2_0(member, header)
        for _, rows in table.blocks(places):
            member.write(np.ascontiguousarray(rows).tobytes())
    _write(archive, _STATE + name + _PLACES, places)
    _write(archive, _STATE + name + _FIRST, first)
    of_rows = first.dtype.name
    return {name: of_rows, name + _PLACES: places.dtype.name, name + _FIRST: of_rows}


def _rows_in(
    member: IO[bytes], places: np.ndarray, first: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Read the rows that `_write_table` wrote: places and rows, some MB at a time."""
    np.lib.format.read_magic(member)
    np.lib.format.read_array_header_2_0(member)
    size = rows_at_once(first)
    for start in range(0, len(places), size):
        part = places[start : start + size]
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
