"""Device memory of one labeling, planned before it starts, and block sizes that fit a memory limit.

    codes         Pi and two blocks of vectors                      (lines 2 to 4; `kernels.streaming`)
    neighbors     all codes, or two parts of them                   (lines 5 to 7; `kernels.knn_in_parts`)
    graph         its edges, in all intermediate forms              (lines 8 and 9)
    propagation   the graph, labels and solution, and seven to ten arrays for the columns of a block (line 10)

Stages run one after another, so the largest counts. Blocks of vectors and parts of codes do not change the
result; blocks of columns change its rounding. So columns are split last, if all together take too much.

Codes and neighbors are XLA's own analysis of the programs that then run. The rows that the graph needs beyond
its table are known only once it is built, so the last two stages are bounds, from XLA's analysis of graphs of
many shapes. For protocol steps only the codes are planned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from jaxfed.federation.execution.memory_limit import bytes_text
from jaxfed.federation.execution.settings import Execution
from jaxfed.kernels import knn_in_parts, lsh, streaming
from jaxfed.kernels.devices.padding import padded_length
from jaxfed.kernels.knn import hamming_knn_footprint
from jaxfed.kernels.nn_descent import approximate_hamming_knn_footprint
from jaxfed.xclp.settings.parameters import Parameters

_LANES, _FEW = 16, 8  # as in `jaxfed.kernels.conjugate_gradient`
_GRAPH_FLOATS = 25  # four-byte numbers per edge, while edges are matched and placed
_DEFAULT_COLUMNS = 64
_INFLUENCE_COLUMNS = 256  # as in `jaxfed.xclp.steps.contributions`


class Plan(NamedTuple):
    """Block sizes and memory of one labeling.

    Fields:
        block_rows: vectors projected at a time; None: the default.
        part_points: points in a part of the search; None: all at once.
        block_columns: columns of the system that are solved together; None: the device's default.
        stages: name -> bytes.
    """

    block_rows: int | None
    part_points: int | None
    block_columns: int | None
    stages: Mapping[str, int]

    @property
    def num_bytes(self) -> int:
        """Bytes of the largest stage."""
        return max(self.stages.values())

    def __str__(self) -> str:
        """`codes 12 MB, neighbors 230 MB in parts of 16,384 points, ...`."""
        texts = {name: f"{name} {bytes_text(size)}" for name, size in self.stages.items()}
        if self.part_points:
            texts["neighbors"] += f" in parts of {self.part_points:,} points"
        return ", ".join(texts.values())


UNLIMITED = Plan(None, None, None, {})  # all default block sizes


def plan_labeling(
    what: str, num_points: int, dim: int, p: Parameters, execution: Execution
) -> Plan:
    """The plan of a labeling, reported under the name `what`; `UNLIMITED` if nobody watches the memory.

    Arguments and cost as `planned`.

    Raises:
        UsageError: even the smallest blocks take more than the limit.
    """
    if not execution.watches_memory:
        return UNLIMITED
    plan = planned(num_points, dim, p, execution)
    execution.take(f"{what} ({plan})", plan.num_bytes)
    return plan


def planned(num_points: int, dim: int, p: Parameters, execution: Execution) -> Plan:
    """The plan for a number of points and features, within the limit if blocks can be small enough.

    Args:
        num_points: of all clients.
        dim: d.
        p: the settings; with `select` the largest candidates.
        execution: its memory limit and devices; every device has its part.

    Cost: compiling the projection and the search, which the labeling then reuses.
    """
    limit = execution.limit.num_bytes
    rows, codes = _projection(num_points, dim, p.num_bits, limit)
    if p.has_session:
        return Plan(rows, None, None, {"codes": codes})
    mesh = execution.mesh
    devices = 1 if mesh is None else mesh.size
    n, words = padded_length(num_points), p.num_bits // lsh.WORD_BITS
    n += -n % devices
    part: int | None = None
    if p.neighbors == "approximate":
        neighbors = approximate_hamming_knn_footprint(n, words, p.num_neighbors).total
    else:
        neighbors = hamming_knn_footprint(n, words, p.num_neighbors, mesh=mesh).total
    if neighbors > limit and mesh is None and p.neighbors == "exact":
        part = knn_in_parts.part_within(limit, num_points, words, p.num_neighbors)
        neighbors = knn_in_parts.footprint_of_parts(part, words, p.num_neighbors).total
    columns = max(p.num_classes, 0 if p.influence == "labels" else _INFLUENCE_COLUMNS)
    width, propagation = _system(n // devices, p.num_neighbors, columns, limit)
    stages = {
        "codes": codes,
        "neighbors": neighbors,
        "graph": graph_bytes(n // devices, p.num_neighbors),
        "propagation": propagation,
    }
    return Plan(rows, part, width, stages)


def _projection(num_points: int, dim: int, num_bits: int, limit: int) -> tuple[int, int]:
    """Rows of a block, and bytes of two blocks."""
    rows = min(streaming.block_rows_within(limit, dim, num_bits), padded_length(num_points))
    while True:
        next_block = rows * (4 * dim + num_bits // 8)
        num_bytes = lsh.sign_bits_footprint(rows, dim, num_bits).total + next_block
        if num_bytes <= limit or rows == streaming.SMALLEST_BLOCK:
            return rows, num_bytes
        rows = max(rows // 2 // streaming.SMALLEST_BLOCK, 1) * streaming.SMALLEST_BLOCK


def _system(n: int, k: int, columns: int, limit: int) -> tuple[int | None, int]:
    """Columns of a block, and a bound of the bytes."""
    for width in (None, 32, 16):
        num_bytes = propagation_bytes(n, k, columns, width)
        if num_bytes <= limit:
            break
    return width, num_bytes


def graph_bytes(n: int, k: int) -> int:
    """Bound of the bytes for building a graph of k neighbors."""
    return 4 * _GRAPH_FLOATS * n * k


def propagation_bytes(n: int, k: int, columns: int, block_columns: int | None) -> int:
    """Bound of the bytes for solving `columns` over a graph of k neighbors and n / 6 overflow rows."""
    wide = _FEW if columns <= _FEW else -(-columns // _LANES) * _LANES
    block = min(block_columns or _DEFAULT_COLUMNS, wide)
    graph = 4 * k + 1 + 2 * k // 6
    vectors = 8 if block <= _LANES else 7  # those that share directions keep their products, too
    arrays = vectors * wide if block == wide else 4 * wide + vectors * block
    return 4 * n * (graph + 2 * wide + arrays + 80)
