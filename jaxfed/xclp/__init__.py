"""Cross-client label propagation (XCLP): `propagate_labels` and its parts.

`algorithm` follows the paper line by line. `parameters` defines a run. `cross_steps` and `influence` hold the
steps in the clear and as protocols; `departures` simulates clients that leave. Methods import from here.
"""

from typing import TYPE_CHECKING

from jaxfed.registry import imported_on_use

if TYPE_CHECKING:
    from jaxfed.xclp.algorithm import cross_client_label_propagation
    from jaxfed.xclp.candidates import LABEL_MATRICES
    from jaxfed.xclp.exchangeable_steps import HAMMING, INFLUENCE, PROJECTIONS, ROW_SUMS
    from jaxfed.xclp.hamming import plaintext_hamming
    from jaxfed.xclp.knn_graph import (
        edge_weights,
        one_hot_labels,
        server_graph,
        with_self_edges,
    )
    from jaxfed.xclp.labeling import Labeling, propagate_labels
    from jaxfed.xclp.messages import count_messages
    from jaxfed.xclp.out_of_sample import label_later
    from jaxfed.xclp.parameters import Parameters, Propagation
    from jaxfed.xclp.prediction import Prediction, predict, relative
    from jaxfed.xclp.projection import drawn_seed, setup
    from jaxfed.xclp.result import Result

__all__ = [
    "HAMMING",
    "INFLUENCE",
    "LABEL_MATRICES",
    "PROJECTIONS",
    "ROW_SUMS",
    "Labeling",
    "Parameters",
    "Prediction",
    "Propagation",
    "Result",
    "count_messages",
    "cross_client_label_propagation",
    "drawn_seed",
    "edge_weights",
    "label_later",
    "one_hot_labels",
    "plaintext_hamming",
    "predict",
    "propagate_labels",
    "relative",
    "server_graph",
    "setup",
    "with_self_edges",
]
# Name -> the file that has it, imported when the name is asked for.
_FILES = {
    "HAMMING": "exchangeable_steps",
    "INFLUENCE": "exchangeable_steps",
    "LABEL_MATRICES": "candidates",
    "Labeling": "labeling",
    "PROJECTIONS": "exchangeable_steps",
    "Parameters": "parameters",
    "Prediction": "prediction",
    "Propagation": "parameters",
    "ROW_SUMS": "exchangeable_steps",
    "Result": "result",
    "count_messages": "messages",
    "cross_client_label_propagation": "algorithm",
    "drawn_seed": "projection",
    "edge_weights": "knn_graph",
    "label_later": "out_of_sample",
    "one_hot_labels": "knn_graph",
    "plaintext_hamming": "hamming",
    "predict": "prediction",
    "propagate_labels": "labeling",
    "relative": "prediction",
    "server_graph": "knn_graph",
    "setup": "projection",
    "with_self_edges": "knn_graph",
}
__getattr__ = imported_on_use(__name__, _FILES)
