"""The methods, one a file. A new one is a file, a line here and a config; tests follow by themselves.

A factory takes its ingredients by keyword: `ALGORITHMS[name](num_classes=C, **config[name])`.
"""

from collections.abc import Callable

from jaxfed.algorithms.client_knn import client_knn
from jaxfed.algorithms.label_propagation import per_client_lp, pooled_lp
from jaxfed.algorithms.xclp import xclp
from jaxfed.federated_algorithm import FederatedAlgorithm

ALGORITHMS: dict[str, Callable[..., FederatedAlgorithm]] = {
    "xclp": xclp,
    "per_client_lp": per_client_lp,
    "pooled_lp": pooled_lp,
    "client_knn": client_knn,
}
