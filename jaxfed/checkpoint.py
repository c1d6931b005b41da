"""Checkpoints of a server state, with a small record of where the run stood (Orbax on disk).

A state is any pytree of arrays, typed PRNG keys and Python numbers. Its leaves are saved under
their paths in the tree (`params.dense.kernel`), so a checkpoint is readable without jaxfed; its
structure comes back from a template, the state that `init` makes. Orbax refuses arrays without
elements and empty trees; both are ordinary here (a client without points, a method without state)
and are kept apart.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp


class Checkpoints:
    """The newest checkpoints of one run, numbered by step; a context manager.

    Writes are synchronous. A process that is killed while saving leaves the checkpoints before it
    intact: a new one counts only once it is complete.
    """

    def __init__(self, path: Path, *, keep: int = 2) -> None:
        """Open the directory `path` (made at need) and keep the newest `keep` checkpoints in it."""
        self._manager = ocp.CheckpointManager(
            path.absolute(),
            options=ocp.CheckpointManagerOptions(
                max_to_keep=keep, enable_async_checkpointing=False
            ),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._manager.close()

    def save(self, step: int, state: Any, progress: dict[str, Any]) -> None:
        """Save a state and a JSON-able record of progress as step `step`."""
        arrays, empty = {}, {}
        for path, leaf in jax.tree_util.tree_leaves_with_path(state):
            value = _to_numpy(leaf)
            if value.size:
                arrays[_name(path)] = value
            else:
                empty[_name(path)] = {"shape": value.shape, "dtype": value.dtype.name}
        items = {"record": ocp.args.JsonSave({"progress": progress, "empty": empty})}
        if arrays:
            items["state"] = ocp.args.PyTreeSave(arrays)
        self._manager.save(step, args=ocp.args.Composite(**items))

    def latest_progress(self) -> dict[str, Any] | None:
        """The record of progress in the newest checkpoint; None where there is none."""
        record = self._record()
        return None if record is None else record["progress"]

    def latest_state(self, template: Any, *, part: str = "") -> Any:
        """The newest state, with the structure and leaf types of `template`, shapes as saved.

        `part`: the template is only of this field of the saved state ("model").

        Raises:
            ValueError: there is no checkpoint, or its leaves are not those of the template.
        """
        record = self._record()
        if record is None:
            raise ValueError(f"no checkpoint in {self._manager.directory}")
        step = self._manager.latest_step()
        values = {
            name: np.zeros(array["shape"], array["dtype"])
            for name, array in record["empty"].items()
        }
        paths, structure = jax.tree_util.tree_flatten_with_path(template)
        if part or len(paths) > len(values):
            args = ocp.args.Composite(state=ocp.args.PyTreeRestore())
            values |= self._manager.restore(step, args=args).state
        if part:
            values = {
                name.removeprefix(f"{part}."): value
                for name, value in values.items()
                if name.startswith(f"{part}.")
            }
        if values.keys() != {_name(path) for path, _ in paths}:
            raise ValueError(
                f"checkpoint {step} in {self._manager.directory} holds {sorted(values)}, "
                f"the algorithm's state {sorted(_name(path) for path, _ in paths)}"
            )
        return jax.tree.unflatten(
            structure, [_like(leaf, values[_name(path)]) for path, leaf in paths]
        )

    def _record(self) -> dict[str, Any] | None:
        step = self._manager.latest_step()
        if step is None:
            return None
        args = ocp.args.Composite(record=ocp.args.JsonRestore())
        return self._manager.restore(step, args=args).record


def _name(path: jax.tree_util.KeyPath) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".") or "state"


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _to_numpy(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _like(leaf: Any, value: np.ndarray) -> Any:
    """`value` as what `leaf` is: a typed key, a JAX array, a NumPy array or a Python number."""
    if _is_key(leaf):
        return jax.random.wrap_key_data(jnp.asarray(value), impl=jax.random.key_impl(leaf))
    if isinstance(leaf, jax.Array):
        return jnp.asarray(value)
    if isinstance(leaf, np.ndarray | np.generic):
        return value
    return type(leaf)(value.item())
