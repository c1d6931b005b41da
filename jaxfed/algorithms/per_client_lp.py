"""Per-client LP: label propagation inside each client, on exact cosines.

Each client has the graph of `jaxfed.algorithms.pooled_lp` over its own points. A client without labels
predicts nothing. A baseline of Section 4.1 of XCLP (Scott, Yeo, Lampert, TMLR 2023).
"""

from __future__ import annotations

import jax
import numpy as np

from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.execution import HERE, Execution
from jaxfed.federation.method import method
from jaxfed.xclp import Propagation
from jaxfed.xclp.one_shot.cosine_propagation import label_each
from jaxfed.xclp.one_shot.transduction import client_arrays, transductive
from jaxfed.xclp.selection.choice import mean_metrics


@method(
    title="Per-client LP",
    leaves="nothing",
    one_shot=True,
    fields={"p": Propagation},
    takes=("execution", "num_classes"),
)
def per_client_lp(*, execution: Execution = HERE, p: Propagation) -> FederatedAlgorithm:
    """Label propagation, one client after another.

    Clients of similar size are padded to one shape. Keywords are the fields of `jaxfed.xclp.Propagation`. A
    client knows only its own labels and confidences, so `label_matrix`, `relative_confidence` and `select`
    use these, and the client prior changes nothing. With `select` a round reports the clients' mean hit
    rates. `execution` may cache neighbors.

    Cost: sum_j n_j^2 d operations; memory O(n_j k) a client.
    """

    def label_points(cohort: Cohort, key: jax.Array) -> tuple[np.ndarray, np.ndarray, Metrics]:
        del key
        vectors, _ = client_arrays(cohort)
        label, confidence, choices = label_each(vectors, cohort.y, cohort.mask, p, execution)
        return label, confidence, mean_metrics(choices) if p.asks_labels else {}

    return transductive(label_points)
