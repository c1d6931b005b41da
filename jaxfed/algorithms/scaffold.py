"""SCAFFOLD: control variates correct client drift.

    w_k <- w;  K_k steps of  w_k <- w_k - eta (grad l(w_k; batch) - c_k + c)
    c_k+ = c_k - c + (w - w_k) / (K_k eta)                               (the paper's option II)
    w <- w + eta_g mean_k (w_k - w),    c <- c + 1/M sum_{k in S} (c_k+ - c_k)

c and all c_k start at 0. M is the number of clients that can train: those with a label, or with pseudo-labels
those with an example. Clients keep c_k. eta_g is the server optimizer's rate. c_k is an average gradient only
under plain SGD, where weight decay counts as part of the loss; with momentum or an adaptive optimizer it is
not. The paper's option I, the gradient at w over all the client's examples, is left out.

An upload is twice as large as FedAvg's. A client receives w and c.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.method import method
from jaxfed.training.round.client_round import ClientRound, ClientUpdate
from jaxfed.training.round.parts import Control
from jaxfed.training.round.round import federated_training
from jaxfed.training.specification import Training


@method(
    title="SCAFFOLD",
    cites="Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, ICML 2020",
    leaves="its model's change, and its control variate's",
    on_network=True,
    weighting="uniform",
)
def scaffold(*, training: Training, pseudo_label: str = "none") -> FederatedAlgorithm:
    """SCAFFOLD on the labels that a pseudo-labeler finds.

    Args:
        training: the training specification.
        pseudo_label: name of the pseudo-labeler; "none": given labels alone.
    """

    def local_update(client: ClientRound) -> ClientUpdate:
        server_control, control = client.shared.control, client.state
        correction = jax.tree.map(jnp.subtract, server_control, control)
        trained = client.steps(training.loss, correction=correction)
        update = client.update(trained)
        step, _ = nnx.split_state(update.delta, nnx.Param, ...)
        travelled = trained.num_steps.astype(jnp.float32) * client.shared.learning_rate  # K eta
        change = jax.tree.map(
            lambda c, d: -c - d / jnp.maximum(travelled, 1e-30), server_control, step
        )
        change = jax.tree.map(lambda leaf: jnp.where(trained.num_steps > 0, leaf, 0), change)
        return update._replace(
            client_state=jax.tree.map(jnp.add, control, change), correction=change
        )

    def zeros(parameters: nnx.State) -> nnx.State:
        return jax.tree.map(jnp.zeros_like, parameters)

    return federated_training(
        training,
        local_update,
        pseudo_label=pseudo_label,
        init_client=lambda model, federation, key: zeros(nnx.filter_state(model, nnx.Param)),
        control=Control(zeros),
    )
