"""FedDyn: dynamic regularization.

    w_k <- argmin_v  l_k(v) - <g_k, v> + alpha / 2 |v - w|^2        (local steps from w)
    g_k <- g_k - alpha (w_k - w)                                    (clients keep it)
    h <- h - alpha / M sum_{k in S} (w_k - w)                       (the server keeps it)
    w <- 1 / |S| sum_{k in S} w_k - h / alpha

g_k and h start at 0. M is the number of clients that can train: those with a label, or with pseudo-labels
those with an example. With local steps to a stationary point g_k is the gradient of l_k at w_k, and a fixed
point of the rounds is one of the mean of all l_k, however unlike clients are. The mean over S has equal
weights unless `training.weighting` sets others. The server's optimizer is plain SGD with rate 1.

The server computes h from the models' changes; clients receive w. Messages have FedAvg's bytes.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.method import method
from jaxfed.settings import Positive
from jaxfed.training.local.losses import proximal
from jaxfed.training.round.client_round import ClientRound, ClientUpdate
from jaxfed.training.round.parts import Control
from jaxfed.training.round.round import federated_training
from jaxfed.training.specification import Training


@method(
    title="FedDyn",
    cites="Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama, ICLR 2021",
    leaves="its model's change",
    on_network=True,
    weighting="uniform",
)
def feddyn(
    *, training: Training, alpha: Positive = 0.01, pseudo_label: str = "none"
) -> FederatedAlgorithm:
    """FedDyn on the labels that a pseudo-labeler finds.

    Args:
        training: the training specification.
        alpha: weight of the dynamic regularizer; the paper has 0.1 to 0.001.
        pseudo_label: name of the pseudo-labeler; "none": given labels alone.
    """

    def local_update(client: ClientRound) -> ClientUpdate:
        gradient = client.state
        correction = jax.tree.map(jnp.negative, gradient)
        loss = proximal(training.loss, alpha)
        update = client.update(client.steps(loss, correction=correction))
        moved = jax.tree.map(lambda d: -alpha * d, nnx.filter_state(update.delta, nnx.Param))
        return update._replace(
            client_state=jax.tree.map(jnp.add, gradient, moved), correction=moved
        )

    def zeros(model: nnx.State) -> nnx.State:
        return jax.tree.map(jnp.zeros_like, nnx.filter_state(model, nnx.Param))

    return federated_training(
        training,
        local_update,
        pseudo_label=pseudo_label,
        init_client=lambda model, federation, key: zeros(model),
        control=Control(
            zeros,
            lambda mean, h: jax.tree.map(lambda w, gradient: w - gradient / alpha, mean, h),
            is_sent=False,
        ),
    )
