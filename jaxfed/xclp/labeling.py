"""`propagate_labels`: XCLP on arrays. Its result can label later points as well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxfed.federation.execution import HERE, Execution
from jaxfed.xclp.algorithm import cross_client_label_propagation
from jaxfed.xclp.heads import Head
from jaxfed.xclp.later_points import label_later
from jaxfed.xclp.result import Result
from jaxfed.xclp.settings.parameters import Parameters
from jaxfed.xclp.steps.prediction import Prediction

if TYPE_CHECKING:
    from jaxfed.secure.session.channel import Presence


class Labeling(list[Prediction]):
    """One `Prediction` a client, in the clients' order.

    `label` gives later points labels and leaves all else as it is.
    """

    def __init__(self, result: Result, p: Parameters) -> None:
        super().__init__(result.predictions)
        self._result, self._p = result, p

    @property
    def head(self) -> Head | None:
        """The linear head of `head="ridge"`: `head(vectors)` are probabilities [n, C]; None without one."""
        return self._result.head

    def label(self, vectors: Sequence[np.ndarray]) -> list[Prediction]:
        """Label points that come after the labeling, by their nearest points in its graph.

        Arguments, result, errors and cost as `jaxfed.xclp.later_points.label_later`.
        """
        return label_later(self._result, vectors, self._p)


def propagate_labels(
    vectors: Sequence[np.ndarray],
    labels: Sequence[np.ndarray],
    *,
    execution: Execution = HERE,
    presence: Presence | Sequence[str] = (),
    **parameters: Any,
) -> Labeling:
    """Label every client's points with XCLP; the keywords are the fields of `Parameters`.

        propagate_labels(vectors, labels, *, num_classes, num_bits=4096, num_neighbors=10,
                         alpha=0.99, seed=0, hamming="plaintext", row_sums="plaintext", ...)

    Args:
        vectors: one float [n_j, d] array a client; n_j may be 0.
        labels: one int [n_j] array a client, -1 = unlabeled.
        execution: worker processes, progress and memory; it changes the result by rounding at most.
        presence: which clients leave, where steps are protocols: by stages, as in `Parameters`, or at any
            message, as a `jaxfed.secure.session.channel.Presence`.
        **parameters: see `Parameters`.

    Returns:
        A list with one (labels int32 [n_j], confidences f32 [n_j], scores f32 [n_j, C]) a client. Labeled
        points are predicted too, as in the paper. Label -1, confidence 0: no label reaches the point, or the
        client has left. A client that leaves before line 6 counts as absent; one that leaves before its part
        of line 14 is complete counts as unlabeled (Section 3.3). `Labeling.label` labels later points.

    Raises:
        UsageError: a parameter out of range, lists of different length, vectors that are not finite or of
            different d, a label outside -1 .. C - 1.
        TypeError: a keyword that is no parameter, or no `num_classes`.

    Cost: n d L + n^2 L / 64 + (steps) n k C operations, O(n (L / 8 + k + C)) bytes; no n x n array.
    """
    if isinstance(presence, Sequence):
        p, planned = Parameters(presence=presence, **parameters), None
    else:
        p, planned = Parameters(**parameters), presence
    result = cross_client_label_propagation(vectors, labels, p, execution, planned)
    return Labeling(result, p)
