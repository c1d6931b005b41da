"""Cost of XCLP and of per-client label propagation on the same clients: Section 3.3 as a measured table.

All clients and the server run in one process, one after another, so seconds are the total of all parties.
The paper counts operations of p clients with n points in d dimensions, m of them labeled, C classes and
codes of L bits, here summed over the clients:

                        per-client LP              XCLP
    codes               -                          p d n L
    similarities        p d n^2 / 2                L p^2 n^2 / 2     (of bits, not of floats)
    inverse             p n^3                      p^3 n^3           (the server's)
    times labels        p C m n                    p^2 C m n

and concludes that a client's part, if similarities dominate, is L p / d times as much. Two lines differ here:
no matrix is inverted, as conjugate gradients need a few dozen products with a graph of at most 2 k p n edges;
and one instruction compares many bits. The peer of the whole labeling is per-client LP on exact cosines with
the same k, alpha and solver; rows of stages have none. "XCLP, masked" is the whole labeling with secure
Hamming distances and row sums, including all parties' cryptography. Bytes are those of XCLP's messages, in
plaintext or encrypted; per-client LP has none.

    python -m launch.bench --kernel=labeling_cost --out=results/bench_labeling_cost.json
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import inputs
from benchmarks.timing.contest import Contest
from jaxfed.algorithms.per_client_lp import per_client_lp
from jaxfed.data import Partition
from jaxfed.federation.clients import Federation
from jaxfed.kernels import conjugate_gradient, knn, lsh
from jaxfed.kernels.devices import padded_rows
from jaxfed.kernels.graph import Graph, cosine_from_hamming, normalized_graph
from jaxfed.xclp import Parameters, Result, cross_client_label_propagation, setup
from jaxfed.xclp.one_shot.transduction import client_arrays

NUM_CLASSES = 10
LABELED_FRACTION = 0.1
# (p, n): a round of Section 4.2 has 5 clients with some 500 points each.
CASES = ((5, 100), (10, 100), (50, 100), (100, 100), (5, 500), (10, 500), (50, 500), (100, 500))
MOST_MASKED = 10_000  # points; the protocol's messages take 10 to 30 bytes a pair
PARAMETERS = Parameters(num_classes=NUM_CLASSES, tolerance=1e-4)
MASKED = replace(PARAMETERS, hamming="masked", row_sums="masked", influence="columns")
PER_CLIENT = "per-client LP"


class Operations(NamedTuple):
    """The paper's counts, all clients together; the module's table, line by line."""

    codes: float
    similarities: float
    inverse: float
    times_labels: float


def xclp_operations(p: int, n: int, d: int) -> Operations:
    """Section 3.3 for XCLP."""
    m, num_bits = LABELED_FRACTION * n, PARAMETERS.num_bits
    return Operations(
        p * d * n * num_bits, num_bits * (p * n) ** 2 / 2, (p * n) ** 3, p**2 * NUM_CLASSES * m * n
    )


def per_client_operations(p: int, n: int, d: int) -> Operations:
    """Section 3.3 for label propagation inside each client."""
    m = LABELED_FRACTION * n
    return Operations(0, p * d * n**2 / 2, p * n**3, p * NUM_CLASSES * m * n)


def labeling_cost(with_peers: bool) -> Iterator[Contest]:
    """The whole labeling against per-client LP, its stages, and the whole by the masked protocols."""
    del with_peers  # per-client LP is always available as the peer
    for p, n in CASES:
        clients = _clients(p, n)
        case = {"clients": p, "points": n, "n": p * n, "d": clients.x.shape[-1]}
        yield Contest(
            task="XCLP, plaintext",
            case=case,
            ours=partial(_labeling, clients, PARAMETERS),
            peers={PER_CLIENT: _per_client(clients)},
            figures=partial(_whole, case),
        )
        yield from _stages(clients, case)
        if p * n <= MOST_MASKED:
            yield Contest(
                task="XCLP, masked",
                case=case,
                ours=partial(_labeling, clients, MASKED),
                peers={PER_CLIENT: _per_client(clients)},
                figures=partial(_whole, case),
            )


def _stages(clients: Federation, case: dict[str, int]) -> Iterator[Contest]:
    """The stages of the plaintext labeling, each on the previous one's result."""
    paper = xclp_operations(case["clients"], case["points"], case["d"])
    p, x = PARAMETERS, jnp.asarray(padded_rows(clients.x))
    y = jnp.asarray(padded_rows(inputs.one_hot(len(clients.x), NUM_CLASSES, LABELED_FRACTION)))

    def contest(name: str, stage: Callable[[], Any], operations: float = 0) -> Contest:
        return Contest(
            task=f"XCLP, {name}",
            case=case,
            ours=stage,
            figures=lambda result, seconds: {"operations by the paper": operations},
        )

    codes = partial(lsh.project_bits, x, setup(0), p.num_bits)
    yield contest("codes (clients)", codes, paper.codes)
    is_point = jnp.asarray(np.arange(len(x)) < len(clients.x))
    neighbors = partial(knn.hamming_knn, codes(), p.num_neighbors, valid=is_point)
    yield contest("Hamming kNN", neighbors, paper.similarities)
    indices, distances = neighbors()

    def graph() -> Graph:
        similarity = cosine_from_hamming(distances, p.num_bits)
        return normalized_graph(indices, jnp.maximum(similarity, 0))

    yield contest("graph (server)", graph)
    solve = partial(conjugate_gradient.propagate, graph(), y, p.alpha, tolerance=p.tolerance)
    operations = paper.inverse + paper.times_labels
    yield contest("conjugate gradient (server)", solve, operations)


def _whole(case: dict[str, int], result: Result, seconds: float) -> dict[str, float]:
    """Measured seconds, messages and steps, and the paper's expectation."""
    p, n, d = case["clients"], case["points"], case["d"]
    paper, alone = xclp_operations(p, n, d), per_client_operations(p, n, d)
    up, down = (
        sum(m.values()) for m in (result.communication.upload, result.communication.download)
    )
    return {
        "ms a client": 1e3 * seconds / p,
        "MB up": up / 1e6,
        "MB down": down / 1e6,
        "steps": result.steps,
        "operations by the paper": sum(paper),
        f"operations of {PER_CLIENT} by the paper": sum(alone),
        "L p / d": PARAMETERS.num_bits * p / d,
    }


def _clients(p: int, n: int) -> Federation:
    """p clients with n points of `inputs.features` each, a tenth of all labeled."""
    vectors, y = inputs.features(p * n, NUM_CLASSES)
    is_labeled = inputs.one_hot(p * n, NUM_CLASSES, LABELED_FRACTION).sum(axis=1) > 0
    own = np.split(np.arange(p * n), p)
    partition = Partition(
        labeled=tuple(points[is_labeled[points]] for points in own),
        unlabeled=tuple(points[~is_labeled[points]] for points in own),
        new=tuple(points[:0] for points in own),
    )
    return Federation(vectors, y, partition, NUM_CLASSES)


def _labeling(clients: Federation, parameters: Parameters) -> Result:
    return cross_client_label_propagation(*client_arrays(clients.cohort()), parameters)


def _per_client(clients: Federation) -> Callable[[], Any]:
    """Label propagation inside each client; nothing is sent."""
    p = PARAMETERS
    method = per_client_lp(
        num_classes=NUM_CLASSES, num_neighbors=p.num_neighbors, alpha=p.alpha, tolerance=p.tolerance
    )

    def label() -> Any:
        key = jax.random.key(0)
        return method.round(method.init(key, clients), clients.cohort(), key)[0].label

    return label
