"""XCLP for prediction (Scott, Yeo, Lampert, TMLR 2023, Section 4.1): one graph over all clients' points.

    H = Hamming distances of sign(Pi V),  W = normalized kNN graph of cos(pi H / L),
    Z = (I - alpha W)^-1 Y,  label_i = argmax_c Z_ic.

Leaves a client: its points' part in H (to the server), its masked contribution to Z. The method itself is
`jaxfed.xclp`; this file gives it a cohort.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics
from jaxfed.federation.clients import UNLABELED
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.evaluate import cosine_rmse
from jaxfed.federation.execution import HERE, Execution
from jaxfed.federation.exposure import View
from jaxfed.rules import fields_as_keywords
from jaxfed.xclp import Parameters, cross_client_label_propagation, drawn_seed, setup
from jaxfed.xclp.transduction import as_vectors, client_arrays, padded, transductive


@fields_as_keywords(Parameters, but=("seed",))
def xclp(*, execution: Execution = HERE, **parameters: Any) -> FederatedAlgorithm:
    """XCLP as a one-round algorithm; keywords are the fields of `jaxfed.xclp.Parameters` but `seed`.

    The seed of Pi, where Pi has one, comes from the round's key. `execution` may bring worker
    processes, and is told of progress. Beside the labels a round reports how well codes by the seed's Pi
    estimate cosines (`cosine_rmse`, and what theory expects): a diagnostic of the simulation, which sees
    all vectors. With `select` it reports what was chosen, and how many labels came back.

    `views`: one more client takes part, with the examples that it is curious about as its unlabeled points,
    and looks at its own rows of Z.
    """
    Parameters(**parameters)  # reject bad values when the method is made, not in round 1

    def label_points(cohort: Cohort, key: jax.Array) -> tuple[np.ndarray, np.ndarray, Metrics]:
        seed = drawn_seed(key)
        p = Parameters(**parameters, seed=seed)
        vectors, labels = client_arrays(cohort)
        result = cross_client_label_propagation(
            vectors, labels, p, execution, client_ids=np.asarray(cohort.client_id).tolist()
        )
        measured, theory = cosine_rmse(np.concatenate(vectors), setup(seed), p.num_bits)
        return (
            padded([prediction.labels for prediction in result.predictions], cohort, UNLABELED),
            padded([prediction.confidences for prediction in result.predictions], cohort, 0),
            {
                "steps": result.steps,
                "residual": result.residual,
                "cosine_rmse": measured,
                "cosine_rmse_theory": theory,
                "communication": result.communication.metrics(),
                **(result.choice.metrics() if result.choice else {}),
            },
        )

    def views(before: Any, after: Any, cohort: Cohort, key: jax.Array) -> list[View]:
        del before, after
        p = Parameters(**parameters, seed=drawn_seed(key))
        ids = np.asarray(cohort.client_id).tolist()

        def answers(x: np.ndarray) -> np.ndarray:
            vectors, labels = client_arrays(cohort)
            asked = cross_client_label_propagation(
                [*vectors, as_vectors(x)],
                [*labels, np.full(len(x), UNLABELED, np.int32)],
                p,
                execution,
                client_ids=[*ids, max(ids, default=-1) + 1],
            )
            scores = np.maximum(asked.predictions[-1].scores, 0)
            total = scores.sum(axis=1, keepdims=True)
            return (scores / np.where(total > 0, total, 1))[None]

        return [View("scores", "probabilities", np.asarray([-1], np.int32), answers)]

    return transductive(label_points)._replace(views=views)
