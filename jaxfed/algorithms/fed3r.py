"""Fed3R: ridge regression on frozen features from sums of second moments, exact whatever the split.

    G = sum_k Z_k^T Z_k,    B = sum_k Z_k^T Y_k,    W = (G + lambda I)^-1 B,    w_c <- w_c / |w_c|

(Fanì, Camoriano, Caputo, Ciccone, "Accelerating Heterogeneous Federated Learning with Closed-form
Classifiers", ICML 2024.) A client sends G_k and B_k of its labeled points and its numbers of labels,
d (d + 1) / 2 + d C + C numbers. It receives as many where lambda is chosen by leave-one-out, and sends three
counts a candidate; else it receives W. With `sums="masked"` or `"masked_resilient"` the server sees sums over
all clients alone. In the clear it sees each client's, and G_k of few points tells the space that they span.

Differences from the paper: lambda can be chosen by leave-one-out; random Fourier features and the fine-tuning
that may follow (Fed3R + FT) are left out.
"""

from __future__ import annotations

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.method import method
from jaxfed.xclp.heads import ClientSums, summed_moments
from jaxfed.xclp.one_shot.linear_heads import Fit, HeadSettings, Points, fitted, head_method


@method(
    title="Fed3R",
    cites="Fanì, Camoriano, Caputo, Ciccone, ICML 2024",
    leaves="second moments of its labeled points' features, their sums by class, and C counts",
    one_shot=True,
    fields={"p": HeadSettings},
    takes=("num_classes",),
)
def fed3r(*, num_classes: int, p: HeadSettings) -> FederatedAlgorithm:
    """Ridge regression by sums; keywords are the fields of `jaxfed.xclp.one_shot.linear_heads.HeadSettings`.

    Cost: n d^2 operations at the clients, d^3 at the server for every candidate of lambda.
    """

    def fit(points: Points, sums: ClientSums) -> Fit:
        return fitted(summed_moments(sums, *points), points, sums, p)

    return head_method(fit, num_classes=num_classes, p=p, owner="fed3r")
