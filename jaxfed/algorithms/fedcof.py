"""FedCOF: ridge regression on frozen features, with covariances from the clients' class means alone.

    S_c = sum_k n_kc (mu_kc - mu_c)(mu_kc - mu_c)^T / (K_c - 1)      over the K_c clients that have class c
    G   = sum_c (n_c - 1) S_c,    B = (n_1 mu_1 ... n_C mu_C)
    W   = (G + lambda I)^-1 B,    w_c <- w_c / |w_c|

(Goswami, Magistri, Wang, Twardowski, van de Weijer, "Covariances for Free: Exploiting Mean Distributions for
Training-free Federated Learning", NeurIPS 2025, arXiv 2412.14326.) The mean of n_kc points of a class has
the covariance of the class over n_kc, so S_c estimates it without second moments. A client sends the means
mu_kc and its numbers of labels, C d + C numbers, and receives W, or, where lambda is chosen, G, B and n.

The server needs each client's means: there are no masked sums of them. A mean of one label is that example's
features. The estimate needs many clients a class; a class of one client adds nothing to G. If every
class has one label in all, G is 0 and the head is FedNCM's.

Differences from the paper: one lambda I, which leave-one-out may choose, replaces its shrinkage gamma I of
every class. Leave-one-out takes the part of point i in G to be that of a client without other labels of its
class, r_i = z_i - mu_c. With more labels the part is smaller: hits of a small lambda are then underestimated.
"""

from __future__ import annotations

import numpy as np

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.method import method
from jaxfed.xclp.heads import ClientSums, Moments
from jaxfed.xclp.one_shot.linear_heads import Fit, HeadSettings, Points, fitted, head_method


@method(
    title="FedCOF",
    cites="Goswami, Magistri, Wang, Twardowski, van de Weijer, NeurIPS 2025, arXiv 2412.14326",
    leaves="the mean features of each class, and C counts",
    one_shot=True,
    fields={"p": HeadSettings},
    without=("sums",),
    takes=("num_classes",),
)
def fedcof(*, num_classes: int, p: HeadSettings) -> FederatedAlgorithm:
    """Ridge regression by class means; keywords: `jaxfed.xclp.one_shot.linear_heads.HeadSettings`.

    Cost: K C d^2 operations for G, d^3 for every candidate of lambda.
    """

    def fit(points: Points, sums: ClientSums) -> Fit:
        clients = points.z.items()
        counts = np.array([points.y[j].sum(axis=0) for j, _ in clients])
        by_class = np.array([points.y[j].T @ z for j, z in clients], np.float32)
        sums.communication.up("class_means", 4 * (by_class.size + counts.size))
        means, total = by_class / np.maximum(counts, 1)[..., None], counts.sum(axis=0)
        moments = Moments(covariance(means, counts), by_class.sum(axis=0, dtype=float).T, total)
        z, y = points.joint()
        residuals = z - y @ (moments.by_class / np.maximum(total, 1)).T
        return fitted(moments, points, sums, p, residuals)

    return head_method(fit, num_classes=num_classes, p=p, owner="fedcof")


def covariance(means: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """G, [d, d], of the clients' class means [K, C, d] and numbers of labels [K, C]."""
    gram = np.zeros((means.shape[-1],) * 2)
    for mean, count in zip(means.swapaxes(0, 1), counts.T, strict=True):
        num_clients, total = int((count > 0).sum()), count.sum()
        if num_clients > 1:
            spread = np.sqrt(count)[:, None] * (mean - count @ mean / total)
            gram += (total - 1) / (num_clients - 1) * spread.T @ spread
    return gram
