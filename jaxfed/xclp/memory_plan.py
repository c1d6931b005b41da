"""Device memory of one labeling, planned before it starts, and parts of the codes that fit a memory limit.

    codes         Pi and two blocks of vectors                      (lines 2 to 4; `kernels.lsh`)
    neighbors     all codes, or two parts of them                   (lines 5 to 7; `kernels.knn_in_parts`)
    graph         its edges, in all intermediate forms              (lines 8 and 9; `kernels.graph`)
    propagation   the graph, labels, solution, and seven or eight arrays of a block of columns (line 10)

Stages run one after another, so the largest counts. Under a limit the search takes the codes in parts, which
give the same result, bit for bit. Nothing else can be cut by much. For protocol steps only the codes are
planned.
"""

from __future__ import annotations

from jaxfed.federation.execution.settings import Execution
from jaxfed.kernels import knn_in_parts, lsh
from jaxfed.kernels.conjugate_gradient import propagation_bytes
from jaxfed.kernels.devices import padded_length
from jaxfed.kernels.graph import graph_bytes
from jaxfed.kernels.knn import hamming_knn_footprint
from jaxfed.kernels.knn_extended import footprint_of_extension
from jaxfed.kernels.nn_descent import approximate_hamming_knn_footprint
from jaxfed.xclp.settings.parameters import Parameters
from jaxfed.xclp.steps.contributions import COLUMN_BLOCK

_TILE_BYTES = 64 << 20  # of distances or minima at most (`jaxfed.kernels.knn.hamming_knn`)


def planned_part(
    what: str, num_points: int, dim: int, p: Parameters, execution: Execution, num_later: int = 0
) -> int | None:
    """Return the number of codes on the device at a time; None: all of them.

    Reports the plan under the name `what`; without a limit and a receiver of reports nothing is planned.

    Args:
        num_points: number of all clients' points, later ones included.
        p: the settings; with `select` the largest candidates.
        execution: its memory limit and devices; every device has its part.
        num_later: number of points that extend a labeling of the others; 0: all are labeled at once.

    Raises:
        BeyondMemory: even the smallest parts take more than the limit.

    Cost: compiling the search, which the labeling then reuses.
    """
    if not execution.is_watched:
        return None
    mesh, part = execution.mesh, None
    devices = 1 if mesh is None else mesh.size
    n, words, k = padded_length(num_points), p.num_bits // lsh.WORD_BITS, p.num_neighbors
    n += -n % devices
    stages = {"codes": lsh.codes_bytes(num_later or num_points, dim, p.num_bits)}
    if p.has_session:
        execution.take_stages(what, stages)
        return None
    columns = max(p.num_classes, 0 if num_later or p.influence == "labels" else COLUMN_BLOCK)
    if num_later:
        neighbors = footprint_of_extension(num_later, words, k).total
    elif p.compared_clients:  # one client's points and others', which are all of them at most
        neighbors = 3 * 4 * words * n + _TILE_BYTES
    elif p.neighbors == "approximate":
        neighbors = approximate_hamming_knn_footprint(n, words, k).total
    else:
        neighbors = hamming_knn_footprint(n, words, k, mesh=mesh).total
        if neighbors > execution.device_bytes and mesh is None:
            part = knn_in_parts.part_within(execution.device_bytes, num_points, words, k)
            neighbors = knn_in_parts.footprint_of_parts(part, words, k).total
    stages |= {
        f"neighbors in parts of {part:,} points" if part else "neighbors": neighbors,
        "graph": graph_bytes(n // devices, k),
        "propagation": propagation_bytes(n // devices, k, columns),
    }
    execution.take_stages(what, stages)
    return part
