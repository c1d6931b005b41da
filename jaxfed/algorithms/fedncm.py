"""FedNCM: the nearest class mean of frozen features, as a head of one round.

    s_c = sum_k sum_{i: y_ki = c} z_ki,    w_c = s_c / |s_c|,    label_i = argmax_c z_i^T w_c

(Legate, Bernier, Caccia, Oyallon, Belilovsky, "Guiding The Last Layer in Federated Learning with Pre-
Trained Models", NeurIPS 2023.) A client sends the sums s_kc and its numbers of labels, C d + C numbers, and
receives the weights, d C. The server sees sums over all clients alone with `sums="masked"` or
`"masked_resilient"`. In the clear it sees each client's: the sum of a class of one label is that example's
features.

Difference from the paper: there the means start a head that is then trained (FedNCM + FT); here they are the
classifier. Features have unit length, so the nearest mean is that of the largest cosine.
"""

from __future__ import annotations

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.method import method
from jaxfed.xclp.heads import ClientSums, scaled_weights, summed_labels
from jaxfed.xclp.one_shot.linear_heads import Fit, HeadSettings, Points, head_method


@method(
    title="FedNCM",
    cites="Legate, Bernier, Caccia, Oyallon, Belilovsky, NeurIPS 2023",
    leaves="the sum of its features of each class, and C counts",
    one_shot=True,
    fields={"p": HeadSettings},
    without=("regularization", "select_measure"),
    takes=("num_classes",),
)
def fedncm(*, num_classes: int, p: HeadSettings) -> FederatedAlgorithm:
    """Class means as a head; keywords are fields of `jaxfed.xclp.one_shot.linear_heads.HeadSettings`."""

    def fit(points: Points, sums: ClientSums) -> Fit:
        by_class, counts = summed_labels(sums, *points)
        sums.communication.down("weights", 4 * sums.num_clients * by_class.size)
        return Fit(scaled_weights(by_class, by_class, counts), counts, {})

    return head_method(fit, num_classes=num_classes, p=p, owner="fedncm")
