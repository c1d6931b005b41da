"""LP on pooled data: label propagation over the exact-cosine graph of all clients' vectors together.

    A_ij = cos(v_i, v_j),  B = k largest of each row (not its own),  W = D^-1/2 (B + B^T) D^-1/2,
    Z = (I - alpha W)^-1 Y.

A baseline of Section 4.1 of XCLP (Scott, Yeo, Lampert, TMLR 2023): lines 7 to 10, 15 and 16 of Algorithm 1,
with the exact cosine in place of the estimate. All data leave their clients, so it is not a federated method
but the bound that XCLP estimates.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics
from jaxfed.federation.clients import UNLABELED
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.execution import HERE, Execution
from jaxfed.federation.method import method
from jaxfed.kernels.devices import padded_rows
from jaxfed.xclp import Propagation, one_hot_labels
from jaxfed.xclp.one_shot.cosine_propagation import label_over_cosines
from jaxfed.xclp.one_shot.transduction import client_arrays, padded, transductive


@method(
    title="LP on pooled data",
    leaves="everything",
    pooled=True,
    one_shot=True,
    fields={"p": Propagation},
    takes=("execution", "num_classes"),
)
def pooled_lp(*, execution: Execution = HERE, p: Propagation) -> FederatedAlgorithm:
    """Label propagation over one graph.

    Keywords are the fields of `jaxfed.xclp.Propagation`. `execution` may cache neighbors. The metrics have
    the settings that `select` chose.

    Cost: n^2 d operations; memory O(n (d + k + C)).
    """

    def label_points(cohort: Cohort, key: jax.Array) -> tuple[np.ndarray, np.ndarray, Metrics]:
        del key
        vectors, labels = map(np.concatenate, client_arrays(cohort))
        points = padded_rows(vectors.astype(np.float32))
        y = padded_rows(one_hot_labels(labels, p.num_classes))
        sizes = np.asarray(cohort.mask).sum(axis=1)
        owner = padded_rows(np.repeat(np.arange(len(sizes)), sizes))
        *outputs, choice = label_over_cosines(jnp.asarray(points), y, owner, p, execution)
        label, confidence = (np.asarray(values)[: len(vectors)] for values in outputs)
        ends = np.cumsum(sizes)[:-1]
        return (
            padded(np.split(label, ends), cohort, UNLABELED),
            padded(np.split(confidence, ends), cohort, 0),
            choice.metrics() if choice else {},
        )

    return transductive(label_points)
