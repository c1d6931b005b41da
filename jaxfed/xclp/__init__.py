"""Cross-client label propagation (XCLP): `propagate_labels` and its parts.

`algorithm` follows the paper line by line. `parameters` defines a run. `cross_steps` and `influence` hold the
steps in the clear and as protocols; `departures` simulates clients that leave. Methods import from here.
"""

from typing import TYPE_CHECKING

from jaxfed.registry import imported_on_use

if TYPE_CHECKING:
    from jaxfed.xclp.algorithm import (
        Result,
        cross_client_label_propagation,
    )
    from jaxfed.xclp.cross_steps import (
        HAMMING,
        PROJECTIONS,
        ROW_SUMS,
        drawn_seed,
        plaintext_hamming,
        setup,
    )
    from jaxfed.xclp.influence import INFLUENCE
    from jaxfed.xclp.label_matrix import LABEL_MATRICES
    from jaxfed.xclp.labeling import Labeling, propagate_labels
    from jaxfed.xclp.messages import count_messages
    from jaxfed.xclp.neighborhoods import (
        edge_weights,
        one_hot_labels,
        server_graph,
        with_self_edges,
    )
    from jaxfed.xclp.out_of_sample import label_later
    from jaxfed.xclp.parameters import Parameters, Propagation
    from jaxfed.xclp.prediction import Prediction, predict, relative

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
    "HAMMING": "cross_steps",
    "INFLUENCE": "influence",
    "LABEL_MATRICES": "label_matrix",
    "Labeling": "labeling",
    "PROJECTIONS": "cross_steps",
    "Parameters": "parameters",
    "Prediction": "prediction",
    "Propagation": "parameters",
    "ROW_SUMS": "cross_steps",
    "Result": "algorithm",
    "count_messages": "messages",
    "cross_client_label_propagation": "algorithm",
    "drawn_seed": "cross_steps",
    "edge_weights": "neighborhoods",
    "label_later": "out_of_sample",
    "one_hot_labels": "neighborhoods",
    "plaintext_hamming": "cross_steps",
    "predict": "prediction",
    "propagate_labels": "labeling",
    "relative": "prediction",
    "server_graph": "neighborhoods",
    "setup": "cross_steps",
    "with_self_edges": "neighborhoods",
}
__getattr__ = imported_on_use(__name__, _FILES)
