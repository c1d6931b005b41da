"""A method of one's own, complete: MOON, beside FedAvg in one table.

    w_k <- argmin CE(f(x), y) + mu l_con,   z = features of w_k, z_s of the server's w, z_p of k's last model
    l_con = -log( exp(cos(z, z_s) / tau) / (exp(cos(z, z_s) / tau) + exp(cos(z, z_p) / tau)) )

A client sends what it sends in FedAvg, and keeps its last model.

    python -m launch.run --config=examples/own_method.py --workdir=runs/moon --config.moon.mu=0.5
"""

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config.file import shipped
from jaxfed.federation.method import method
from jaxfed.models.layers import unit_vectors
from jaxfed.settings import NotNegative, Positive
from jaxfed.training.local.losses import labeled_mean
from jaxfed.training.round.round import federated_training


@ALGORITHMS.register("moon")
@method(title="MOON", cites="Li, He, Song, CVPR 2021", leaves="its model's change")
def moon(*, training, mu: NotNegative = 1.0, tau: Positive = 0.5):
    model = training.model

    def loss_beside(previous):
        def loss(state, anchor, batch, key):
            features, moved = model.train_features(state, batch.x, key)
            z = unit_vectors(features)
            z_server, z_previous = (
                unit_vectors(jax.lax.stop_gradient(model.features(other, batch.x)))
                for other in (anchor, previous)
            )
            to_server, to_previous = (jnp.sum(z * other, -1) for other in (z_server, z_previous))
            contrast = jax.nn.softplus((to_previous - to_server) / tau)
            error = training.local.pointwise(model.head(moved, features), batch.label)
            return labeled_mean(error + mu * contrast, batch), moved

        return loss

    def local_update(client):
        trained = client.steps(loss_beside(previous=client.state))
        return client.update(trained, client_state=trained.state)

    return federated_training(
        training,
        local_update,
        pseudo_label="none",
        init_client=lambda model, federation, key: model,
    )


def get_config(variant: str = "") -> ConfigDict:
    config = shipped("federated_optimization").get_config(variant)
    config.algorithm, config.baselines = "moon", ("fedavg",)
    config.moon = ConfigDict({"mu": 1.0, "tau": 0.5})
    return config
