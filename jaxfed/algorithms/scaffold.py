"""SCAFFOLD (Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, ICML 2020): client drift corrected.

    w_k <- w;  K_k steps of  w_k <- w_k - eta (grad l(w_k; batch) - c_k + c)
    c_k+ = grad l(w; all the client's examples)                                (option I)
    c_k+ = c_k - c + (w - w_k) / (K_k eta)                                     (option II)
    w <- w + eta_g mean_k (w_k - w),    c <- c + 1/M sum_{k in S} (c_k+ - c_k)

c and all c_k start at 0. Clients keep c_k. eta_g is the server optimizer's rate. Option II's c_k is an
average gradient only under plain SGD, where weight decay counts as part of the loss; with momentum or an
adaptive optimizer it is not. Option I costs one more epoch of gradients, and leaves weight decay out.

Leaves a client: its model's change, and its control variate's. That is twice FedAvg's upload. It receives w
and c.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.random_streams import Stream
from jaxfed.rules import keywords, one_of
from jaxfed.training.local.batches import Batches
from jaxfed.training.local.local_update import ClientUpdate, mean_gradient
from jaxfed.training.needs import needs
from jaxfed.training.round.client_round import Client, Shared, finished, local_steps
from jaxfed.training.round.round import federated_training
from jaxfed.training.round.server_hooks import Control
from jaxfed.training.server.server_state import with_statistics
from jaxfed.training.specification import Training


@keywords(option=one_of(("I", "II")))
@needs()
def scaffold(
    *, training: Training, option: str = "II", pseudo_label: str = "none"
) -> FederatedAlgorithm:
    """SCAFFOLD on the labels that a pseudo-labeler finds.

    Args:
        training: the training specification.
        option: how a client makes its new control: "I", by a gradient over all its examples; "II", from its
            steps.
        pseudo_label: name of the pseudo-labeler; "none": given labels alone.

    Raises:
        UsageError: an unknown option.
    """

    def local_update(
        shared: Shared, client: Client, key: jax.Array, *, batches: Batches
    ) -> ClientUpdate:
        server_control, control = shared.control, client.state
        trained = local_steps(
            training,
            shared,
            client,
            key,
            loss=training.loss,
            batches=batches,
            correction=jax.tree.map(jnp.subtract, server_control, control),
        )
        update = finished(training, shared, client, trained)
        if option == "I":
            gradient = mean_gradient(
                with_statistics(shared.model, client.statistics),
                client.data,
                jax.random.fold_in(key, Stream.CONTROL),
                loss=training.loss,
                batches=batches,
            )
            change = jax.tree.map(jnp.subtract, gradient, control)
        else:
            step, _ = nnx.split_state(update.delta, nnx.Param, ...)
            travelled = trained.num_steps.astype(jnp.float32) * shared.learning_rate  # K eta
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
        init_client=lambda model, federation: zeros(nnx.filter_state(model, nnx.Param)),
        control=Control(zeros),
    )
