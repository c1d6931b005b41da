"""Client kNN: k nearest neighbors among the client's own labels, the simplest baseline.

    label_i = majority of y over the k labeled points of the same client with the largest cosine to v_i.

The classifier is scikit-learn's (brute force, cosine); ties go to the smaller class. This baseline is
jaxfed's addition; the XCLP paper does not have it.
"""

from __future__ import annotations

import jax
import numpy as np

from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics
from jaxfed.federation.clients import UNLABELED
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.method import method
from jaxfed.settings import Count
from jaxfed.xclp.one_shot.transduction import client_arrays, padded, transductive


@method(title="Client kNN", leaves="nothing", one_shot=True, takes=("num_classes",))
def client_knn(*, num_classes: int, num_neighbors: Count = 5) -> FederatedAlgorithm:
    """Each client classifies its points by its own labeled ones; confidence is the share of votes.

    A client with fewer than `num_neighbors` labels uses all it has; one without labels gets -1. A labeled
    point is its own neighbor, so accuracy has a meaning on unlabeled and new points only.

    Args:
        num_classes: C.
        num_neighbors: k, number of neighbors that vote.

    Cost: sum_j n_j l_j d operations.
    """
    del num_classes  # a client predicts classes of its labels only

    def label_client(vectors: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        labeled = labels >= 0
        if not labeled.any():
            return np.full(len(labels), UNLABELED, np.int32), np.zeros(len(labels), np.float32)
        # Imported here, because scikit-learn takes a second that other methods need not wait for.
        from sklearn.neighbors import KNeighborsClassifier

        classifier = KNeighborsClassifier(
            min(num_neighbors, int(labeled.sum())), metric="cosine", algorithm="brute"
        )
        votes = classifier.fit(vectors[labeled], labels[labeled]).predict_proba(vectors)
        label = classifier.classes_[votes.argmax(axis=1)].astype(np.int32)
        return label, votes.max(axis=1).astype(np.float32)

    def label_points(cohort: Cohort, key: jax.Array) -> tuple[np.ndarray, np.ndarray, Metrics]:
        del key
        outputs = [label_client(v, y) for v, y in zip(*client_arrays(cohort), strict=True)]
        return (
            padded([label for label, _ in outputs], cohort, UNLABELED),
            padded([confidence for _, confidence in outputs], cohort, 0),
            {},
        )

    return transductive(label_points)
