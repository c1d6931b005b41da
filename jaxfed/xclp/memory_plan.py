"""Device memory of one labeling, planned before it starts, and parts of the codes that fit a memory limit.

    codes         Pi and two blocks of vectors                      (lines 2 to 4; `kernels.streaming`)
    neighbors     all codes, or two parts of them                   (lines 5 to 7; `kernels.knn_in_parts`)
    graph         its edges, in all intermediate forms              (lines 8 and 9)
    propagation   the graph, labels, solution, and seven or eight arrays of a block of columns (line 10)

Stages run one after another, so the largest counts. Under a limit the search takes the codes in parts, which
give the same result, bit for bit. Nothing else can be cut by much.

The memory for neighbors is XLA's own analysis of the program that then runs. The rows that the graph needs
beyond its table are known only once it is built, so the last two stages are bounds, from XLA's analysis of
graphs of many shapes. For protocol steps only the codes are planned.
"""

from __future__ import annotations

from typing import NamedTuple

from jaxfed.federation.execution.memory_limit import bytes_text
from jaxfed.federation.execution.settings import Execution
from jaxfed.kernels import knn_in_parts, lsh, streaming
from jaxfed.kernels.conjugate_gradient import FEW, LANES
from jaxfed.kernels.devices.padding import padded_length
from jaxfed.kernels.knn import hamming_knn_footprint
from jaxfed.kernels.knn_extended import footprint_of_extension
from jaxfed.kernels.nn_descent import approximate_hamming_knn_footprint
from jaxfed.xclp.settings.parameters import Parameters
from jaxfed.xclp.steps.contributions import COLUMN_BLOCK

_TILE_BYTES = 64 << 20  # of distances or minima at most (`jaxfed.kernels.knn.hamming_knn`)
_GRAPH_FLOATS = 25  # four-byte numbers per edge, while edges are matched and placed
_BLOCK_COLUMNS = 64


class Plan(NamedTuple):
    """Memory of one labeling: points in a part of the search (None: all at once), and bytes of each stage."""

    part_points: int | None
    stages: dict[str, int]

    def __str__(self) -> str:
        """`codes 12 MB, neighbors 230 MB in parts of 16,384 points, ...`."""
        texts = {name: f"{name} {bytes_text(size)}" for name, size in self.stages.items()}
        if self.part_points:
            texts["neighbors"] += f" in parts of {self.part_points:,} points"
        return ", ".join(texts.values())


def planned_part(
    what: str, num_points: int, dim: int, p: Parameters, execution: Execution
) -> int | None:
    """Number of codes on the device at a time; None: all of them.

    Reports the plan under the name `what`; without anybody who watches the memory there is none. Other
    arguments and cost as `planned`.

    Raises:
        UsageError: even the smallest parts take more than the limit.
    """
    if not execution.watches_memory:
        return None
    plan = planned(num_points, dim, p, execution)
    execution.take(f"{what} ({plan})", max(plan.stages.values()))
    return plan.part_points


def planned(num_points: int, dim: int, p: Parameters, execution: Execution) -> Plan:
    """The plan for a number of points and features, within the limit if parts can be small enough.

    Args:
        num_points: of all clients.
        dim: d.
        p: the settings; with `select` the largest candidates.
        execution: its memory limit and devices; every device has its part.

    Cost: compiling the search, which the labeling then reuses.
    """
    stages = {"codes": streaming.codes_bytes(num_points, dim, p.num_bits)}
    if p.has_session:
        return Plan(None, stages)
    limit, mesh = execution.limit.num_bytes, execution.mesh
    devices = 1 if mesh is None else mesh.size
    n, words, k = padded_length(num_points), p.num_bits // lsh.WORD_BITS, p.num_neighbors
    n += -n % devices
    part: int | None = None
    if p.compared_clients:  # one client's points and others', which are all of them at most
        stages["neighbors"] = 3 * 4 * words * n + _TILE_BYTES
    elif p.neighbors == "approximate":
        stages["neighbors"] = approximate_hamming_knn_footprint(n, words, k).total
    else:
        stages["neighbors"] = hamming_knn_footprint(n, words, k, mesh=mesh).total
        if stages["neighbors"] > limit and mesh is None:
            part = knn_in_parts.part_within(limit, num_points, words, k)
            stages["neighbors"] = knn_in_parts.footprint_of_parts(part, words, k).total
    columns = max(p.num_classes, 0 if p.influence == "labels" else COLUMN_BLOCK)
    return Plan(part, stages | _of_graph(n // devices, k, columns))


def take_extension(
    num_points: int, num_later: int, dim: int, p: Parameters, execution: Execution
) -> None:
    """Report the device memory for extending a labeling by `num_later` points to `num_points`.

    Raises:
        UsageError: it is more than the limit.
    """
    if not execution.watches_memory:
        return
    k, devices = p.num_neighbors, 1 if execution.mesh is None else execution.mesh.size
    words, n = p.num_bits // lsh.WORD_BITS, padded_length(num_points)
    stages = {
        "codes": streaming.codes_bytes(num_later, dim, p.num_bits),
        "neighbors": footprint_of_extension(num_later, words, k).total,
        **_of_graph(-(-n // devices), k, p.num_classes),
    }
    what = f"{num_later:,} more points of a labeling ({Plan(None, stages)})"
    execution.take(what, max(stages.values()))


def _of_graph(n: int, k: int, columns: int) -> dict[str, int]:
    """Bytes of the stages that follow the search, for the n points of a device."""
    return {
        "graph": 4 * _GRAPH_FLOATS * n * k,
        "propagation": propagation_bytes(n, k, columns),
    }


def propagation_bytes(n: int, k: int, columns: int) -> int:
    """Bound of the bytes for solving `columns` over a graph of k neighbors and n / 6 overflow rows."""
    wide = FEW if columns <= FEW else -(-columns // LANES) * LANES
    block = min(_BLOCK_COLUMNS, wide)
    graph = 4 * k + 1 + 2 * k // 6
    vectors = 8 if block <= LANES else 7  # those that share directions keep their products, too
    arrays = vectors * wide if block == wide else 4 * wide + vectors * block
    return 4 * n * (graph + 2 * wide + arrays + 80)
