"""Programs on devices: their operations, lengths to compile for, rows spread over a mesh.

Floating-point operations (`operations`): XLA's `HloCostAnalysis` counts a multiply-add as two and an
elementwise operation as one, in the program as it was lowered. In a program compiled for a CPU, matrix
products and convolutions are library calls, which count as zero. The analysis does not know the number of
turns of a loop and counts every body once. So here

    ops(program) = xla(program) + sum over its loops (turns * ops(body) - xla(body))

with the turns of a `scan` from the program, and those of a `while` from the caller. XLA's convolution omits
the taps that fall on the padding. The same convolution as a matrix product
(`jaxfed.kernels.conv`) includes them, as does the count that papers make by hand.

Host arrays are padded to few lengths (`padded_length`). A program is compiled for fixed shapes, and if the
number of points differs from call to call (groups of clients, several methods, sweeps over the number of
clients), seconds of compilation for every new number would outweigh the work itself.

Rows of an array lie on the devices of a mesh, in one process or several:

    mesh = points_mesh()                        # all devices, of all processes
    bits = spread(bits, mesh)                   # [n, W]: rows 0 ... n/p - 1 on the first device, and so on
    indices, distances = knn.hamming_knn(bits, 10)     # follows its argument: so are its results

Functions of this wing that support it find the mesh of their arguments (`mesh_of`) and run one program on all
of its devices (`by_rows`). In that program, `SpreadRows` knows this device's rows and communicates with the
others. With one device, and under `jax.jit`, nothing is spread, and the program is the one without a mesh.

With several processes every process calls the same functions with the same values in the same order, as
`jax.distributed` requires, and holds only the rows of its own devices. `everywhere` gathers them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxfed.errors import UsageError


def operations(function: Callable[..., Any], *arguments: Any, turns: float = 1) -> float:
    """Operations of `function(*arguments)`.

    Args:
        function: jit-traceable.
        arguments: arrays, or their shapes (`jax.ShapeDtypeStruct`).
        turns: number of turns of each outermost loop of unknown length (`while`); such loops inside others,
            as in a rejection sampler, count with one turn.

    Cost: lowering the program and its loops' bodies; nothing is compiled.
    """
    return _operations(jax.make_jaxpr(function)(*arguments), turns)


def _operations(program: core.ClosedJaxpr, turns: float) -> float:
    total = _once(program)
    for name, body, length in _loops(program.jaxpr):
        is_scan = name == "scan"
        inside = _operations(body, turns if is_scan else 1)
        total += (length if is_scan else turns) * inside - _once(body)
    return total


def _once(program: core.ClosedJaxpr) -> float:
    """XLA's count, with the bodies of loops counted once."""
    arguments = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in program.jaxpr.invars]
    lowered = jax.jit(core.jaxpr_as_fun(program)).lower(*arguments)
    return float((lowered.cost_analysis() or {}).get("flops", 0.0))


def _loops(jaxpr: Any) -> Iterator[tuple[str, core.ClosedJaxpr, int]]:
    """The outermost loops of a program: kind, body, and the turns of a `scan`."""
    for equation in jaxpr.eqns:
        name, values = equation.primitive.name, equation.params
        if name == "while":
            yield name, values["body_jaxpr"], 0
        elif name == "scan":
            yield name, values["jaxpr"], values["length"]
        else:
            for value in jax.tree.leaves(list(values.values()), is_leaf=_is_program):
                if _is_program(value):
                    yield from _loops(getattr(value, "jaxpr", value))


def _is_program(value: Any) -> bool:
    return isinstance(value, core.ClosedJaxpr | core.Jaxpr)


_SMALLEST_STEP = 256
_ON_CPU, _ELSEWHERE = 100, 500


def padded_length(n: int) -> int:
    """The next multiple of 256 or, from 8192 on, of 1/32 of the next power of two.

    Small lengths share programs freely, since their work is negligible next to a compilation. Large ones
    grow by a sixteenth at most, and work quadratic in n by an eighth. There are 16 between powers of two.
    """
    step = max(_SMALLEST_STEP, (1 << n.bit_length()) // 32)
    return max(step, -(-n // step) * step)


def padded_rows(array: np.ndarray, fill: float = 0) -> np.ndarray:
    """The array [n, ...] with rows of `fill` added up to `padded_length(n)`, on the host."""
    return padded_to(array, padded_length(len(array)), fill)


def padded_to(array: np.ndarray, length: int, fill: float = 0) -> np.ndarray:
    """The array [n, ...] with rows of `fill` added up to `length`, on the host."""
    array = np.asarray(array)
    missing = length - len(array)
    if not missing:
        return array
    return np.concatenate([array, np.full((missing, *array.shape[1:]), fill, array.dtype)])


def rows_at_once() -> int:
    """Batch size for inference with a network.

    On a CPU activations of small networks should stay in its caches: 10,000 images of 28 x 28 through
    convolutions of 32 and 64 channels take 0.66, 0.72 and 1.31 s in batches of 50, 100 and 500, through
    784-512-512-10 0.09 s with any of them. Accelerators need larger batches.
    """
    return _ON_CPU if jax.default_backend() == "cpu" else _ELSEWHERE


def in_batches(function: Callable[[Any], Any], x: jax.Array | np.ndarray, size: int) -> Any:
    """function(x), which works row by row, in batches of `size` rows of x [n, ...], all of one shape.

    Returns the function's results, arrays [n, ...] or trees of them, on the host.
    """
    examples = x if len(x) else np.zeros((1, *x.shape[1:]), x.dtype)
    parts = []
    for start in range(0, len(examples), size):
        # The last batch repeats examples.
        rows = np.resize(np.arange(start, min(start + size, len(examples))), size)
        parts.append(jax.device_get(function(examples[rows])))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[: len(x)], *parts)


AXIS = "points"
ROWS, SAME = PartitionSpec(AXIS), PartitionSpec()

_T = TypeVar("_T")


def points_mesh(num_devices: int = 0) -> Mesh:
    """A mesh of `num_devices` devices along "points"; 0: all devices of all processes.

    Raises:
      UsageError: there are fewer devices, or with several processes some device would not take part.
    """
    devices = jax.devices()
    count = num_devices or len(devices)
    allowed = range(1, len(devices) + 1) if jax.process_count() == 1 else [len(devices)]
    if count not in allowed:
        raise UsageError(
            f"num_devices={num_devices}: use 0 (all) and {allowed[0]} to {allowed[-1]}"
        )
    return Mesh(devices[:count], (AXIS,))


def spread(array: jax.Array | np.ndarray, mesh: Mesh, *, fill: float = 0) -> jax.Array:
    """The array [n, ...] with its rows over the mesh, padded with `fill` to a multiple of its devices.

    Args:
      array: on the host, or on one device; with several processes the same in all.
      mesh: of `points_mesh`.
      fill: value of the padding.
    """
    if mesh_of(array) == mesh:
        return jnp.asarray(array)
    missing = -len(array) % mesh.size
    sharding = NamedSharding(mesh, ROWS)
    if jax.process_count() == 1 and not missing:
        return jax.device_put(array, sharding)
    local_index = np.asarray(array)
    if missing:
        local_index = np.concatenate(
            [local_index, np.full((missing, *local_index.shape[1:]), fill, local_index.dtype)]
        )
    return jax.make_array_from_callback(local_index.shape, sharding, lambda rows: local_index[rows])


def mesh_of(array: Any) -> Mesh | None:
    """The mesh that an array's rows are spread over; None for a traced array, or if all is on one device."""
    if isinstance(array, jax.core.Tracer) or not isinstance(array, jax.Array):
        return None
    sharding = array.sharding
    if not isinstance(sharding, NamedSharding) or sharding.mesh.axis_names != (AXIS,):
        return None
    is_spread = sharding.mesh.size > 1 and bool(sharding.spec) and sharding.spec[0] == AXIS
    return sharding.mesh if is_spread and isinstance(sharding.mesh, Mesh) else None


def everywhere(tree: _T) -> _T:
    """The same arrays, gathered on this process's first device; those that are not spread are unchanged.

    Cost: every device gets all rows.
    """
    return jax.tree.map(_whole, tree)


def _whole(array: Any) -> Any:
    mesh = mesh_of(array)
    if mesh is None:
        return array
    return _copied(array, mesh).addressable_data(0)


@partial(jax.jit, static_argnames="mesh")
def _copied(array: jax.Array, mesh: Mesh) -> jax.Array:
    return lax.with_sharding_constraint(array, NamedSharding(mesh, SAME))


@dataclass(frozen=True)
class SpreadRows:
    """The rows that a program has: all, or those of one of `num_parts` devices, for which it is traced."""

    num_parts: int = 1

    def first(self, num_rows: int, *, back: jax.Array | int = 0) -> jax.Array:
        """Number of this device's first row, int32, of `num_rows`; or of the device `back` steps before."""
        if self.num_parts == 1:
            return jnp.int32(0)
        device = (lax.axis_index(AXIS) - back) % self.num_parts
        return (device * num_rows).astype(jnp.int32)

    def local_index(self, ids: jax.Array, num_rows: int) -> jax.Array:
        """Indices of these row numbers among this device's `num_rows`; those of others are out of range."""
        return ids if self.num_parts == 1 else ids - self.first(num_rows)

    def local(self, x: jax.Array) -> jax.Array:
        """This device's rows of all, [n, ...] -> [n / p, ...]."""
        if self.num_parts == 1:
            return x
        num_rows = x.shape[0] // self.num_parts
        return lax.dynamic_slice_in_dim(x, self.first(num_rows), num_rows)

    def handed_on(self, arrays: _T, steps: int = 1) -> _T:
        """The arrays of the device `steps` before this one in the ring."""
        ring = [(device, (device + steps) % self.num_parts) for device in range(self.num_parts)]
        return jax.tree.map(lambda x: lax.ppermute(x, AXIS, ring), arrays)

    def of_all(self, x: jax.Array) -> jax.Array:
        """The rows of all devices, [n / p, ...] -> [n, ...]."""
        return x if self.num_parts == 1 else lax.all_gather(x, AXIS, tiled=True)

    def total(self, x: jax.Array) -> jax.Array:
        """The sum over all devices."""
        return x if self.num_parts == 1 else lax.psum(x, AXIS)

    def largest(self, x: jax.Array) -> jax.Array:
        """The maximum over all devices, element by element."""
        return x if self.num_parts == 1 else lax.pmax(x, AXIS)

    def any(self, x: jax.Array) -> jax.Array:
        """True if any element is true on any device."""
        if self.num_parts == 1:
            return x.any()
        return self.total(x.any().astype(jnp.int32)) > 0

    def all(self, x: jax.Array) -> jax.Array:
        """True if all elements are true on all devices."""
        return x.all() if self.num_parts == 1 else ~self.any(~x)


ALL = SpreadRows()


def by_rows(
    function_of: Callable[[SpreadRows], Callable[..., _T]],
    mesh: Mesh | None,
    *,
    takes: Any = ROWS,
    gives: Any = ROWS,
) -> Callable[..., _T]:
    """The function `function_of(rows)` on the rows of every device of a mesh; on all rows without one.

    Args:
        function_of: makes the function for one device's rows.
        mesh: of `points_mesh`.
        takes: for each argument, a tree or a prefix of it: `ROWS` if axis 0 is that of points, else `SAME`.
        gives: the same for the result; parts marked `SAME` must be equal on all devices.
    """
    if mesh is None:
        return function_of(ALL)
    return jax.shard_map(
        function_of(SpreadRows(mesh.size)),
        mesh=mesh,
        in_specs=takes,
        out_specs=gives,
        # Loops start from values that are equal on all devices.
        check_vma=False,
    )
