"""Trained network: its own predictions, the baseline for XCLP on its features.

    label_i = argmax_c f(x_i)_c,    f the model whose features x are

These are the columns "FedAvg" of XCLP's Tables 1, 2, 3 and 6 (Scott, Yeo, Lampert, TMLR 2023). With the
preprocessing 'federated_features' every client already has the model.
"""

from __future__ import annotations

import jax
import numpy as np

from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics
from jaxfed.federation.clients import UNLABELED, Federation
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.method import method
from jaxfed.xclp.one_shot.transduction import Transduction, one_shot_method


@method(title="Trained network", leaves="nothing", one_shot=True, takes=("num_classes",))
def network(*, num_classes: int) -> FederatedAlgorithm:
    """Labels by `Federation.predicted`, all there from the beginning; a round changes nothing.

    Raises (`init`):
        UsageError: the federation's examples are not the features of a trained model.
    """
    del num_classes

    def init(key: jax.Array, federation: Federation) -> Transduction:
        del key
        if federation.predicted is None:
            raise UsageError(
                "algorithm 'network' needs preprocessing.kind='federated_features': without it there "
                "is no network"
            )
        label = np.full((federation.num_clients, federation.capacity), UNLABELED, np.int32)
        for client in range(federation.num_clients):
            points = federation.points(client)
            label[client, : len(points)] = federation.predicted[points]
        return Transduction(label, (label >= 0).astype(np.float32))

    def round(state: Transduction, cohort: Cohort, key: jax.Array) -> tuple[Transduction, Metrics]:
        del cohort, key
        return state, {}

    return one_shot_method(init, round)
