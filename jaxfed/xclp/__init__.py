"""Cross-client label propagation (XCLP): `propagate_labels` and its parts.

`algorithm` is the paper's Algorithm 1, which `labeling` calls for arrays. It composes `steps`, one to three
lines of the paper a file, with `settings` that `selection` may choose. `later_points` labels points that come
after a labeling; `one_shot` makes federated methods of labelings. Methods import from here.
"""

from typing import TYPE_CHECKING

from jaxfed.registry import imported_on_use

if TYPE_CHECKING:
    from jaxfed.xclp.algorithm import cross_client_label_propagation
    from jaxfed.xclp.labeling import Labeling, propagate_labels
    from jaxfed.xclp.later_points import label_later
    from jaxfed.xclp.result import Result, count_messages
    from jaxfed.xclp.settings.parameters import Parameters, Propagation
    from jaxfed.xclp.steps.codes import drawn_seed, setup
    from jaxfed.xclp.steps.knn_graph import one_hot_labels, server_graph
    from jaxfed.xclp.steps.prediction import Prediction, predict, relative

__all__ = [
    "Labeling",
    "Parameters",
    "Prediction",
    "Propagation",
    "Result",
    "count_messages",
    "cross_client_label_propagation",
    "drawn_seed",
    "label_later",
    "one_hot_labels",
    "predict",
    "propagate_labels",
    "relative",
    "server_graph",
    "setup",
]
# Name -> the file that has it, imported when the name is asked for.
_FILES = {
    "Labeling": "labeling",
    "Parameters": "settings.parameters",
    "Prediction": "steps.prediction",
    "Propagation": "settings.parameters",
    "Result": "result",
    "count_messages": "result",
    "cross_client_label_propagation": "algorithm",
    "drawn_seed": "steps.codes",
    "label_later": "later_points",
    "one_hot_labels": "steps.knn_graph",
    "predict": "steps.prediction",
    "propagate_labels": "labeling",
    "relative": "steps.prediction",
    "server_graph": "steps.knn_graph",
    "setup": "steps.codes",
}
__getattr__ = imported_on_use(__name__, _FILES)
