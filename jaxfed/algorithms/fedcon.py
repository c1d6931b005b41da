"""FedCon: labels at the server, contrast at the clients.

The server has a network of a body b and a head f, and a moving average b', f' of it. In each round it trains
on its labels. With p_v = softmax f(b(a_v(x))) for two draws a_1, a_2 of the augmentation, and q_v the same of
the average, held fixed,

    L_S = mean 1/2 [ l(p_1, y) + l(p_2, y) ] + beta(r) mean 1/2 [ KL(q_2, p_1) + KL(q_1, p_2) ]
    b, f <- b, f - eta grad L_S,   b', f' <- alpha_S (b', f') + (1 - alpha_S) (b, f)              (each step)

beta(r) = beta exp(-5 (1 - r / R)^2) in round r = 0, 1, ... until r = R. Client k receives b alone. It has a
predictor h_k and a moving average t_k of its body, which both stay:

    b_k <- b;   b_k, h_k <- b_k, h_k - eta grad mean 1/2 [ d(h_k(b_k(a_1(x))), t_k(a_2(x)))
                                                        + d(h_k(b_k(a_2(x))), t_k(a_1(x))) ],   d = 1 - cos
    t_k <- alpha t_k + (1 - alpha) b_k                                                          (each step)

t_k is held fixed in the loss (BYOL), and starts as the first b that the client receives. The server takes the
mean of b_k; f, b', f' stay as they are. As the head fits b only after the server has trained, a state is
evaluated by the network that the server trained last: that of this round, before the clients.

The source is the authors' code, with the paper's abstract.

Differences from the authors' code:

  * Its q_v are predictions of the network itself without derivatives: the average is computed, but never
    used. That is `server_average` 0, except in the first step of a round.
  * The code's script for Section 4.5 leaves the second term of L_S out, by a comment sign.
  * alpha_S follows a cosine in the code, from 0.9996 to 1 in 20 rounds of 1000 steps. Here it is constant.
  * The code keeps h_k and t_k under the number of the last batch, not of the client (its variant for Section
    4.5 does not), and averages the bodies of all local epochs, with equal weights.
  * In the code the server has SGD with rate 0.01 and momentum 0.5, and clients have LARS. Here
    `training.optimizer` is for both.
  * The code's predictor has 12288 hidden units with BatchNorm. Here it has 512, without BatchNorm.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.communication import Communication, num_bytes_of
from jaxfed.federation.method import method
from jaxfed.models.head import dense_head, head_paths, split_head
from jaxfed.models.mlp import mlp
from jaxfed.models.model import Model
from jaxfed.settings import CountOrZero, NotNegative, Share
from jaxfed.training.local import losses
from jaxfed.training.local.consistency import divergence
from jaxfed.training.local.local_training import LocalTraining
from jaxfed.training.local.losses import Augment, Batch, Loss, ValueAndState
from jaxfed.training.mean_teacher import followed, kept_or_first, online_only, ramp_up, siamese
from jaxfed.training.round.client_round import ClientRound, ClientUpdate
from jaxfed.training.round.parts import Classifier, Hook, Messages, network_classifier
from jaxfed.training.round.round import federated_training
from jaxfed.training.server_state import ServerState, together
from jaxfed.training.specification import Training

_PREDICTOR_HIDDEN = 512  # hidden units of h_k


class ClientState(NamedTuple):
    """A client's state: h_k, the parameters of t_k, and the number of its steps, int32 scalar."""

    predictor: nnx.State
    target: nnx.State
    steps: jax.Array


@method(
    title="FedCon",
    cites="Long, Wang, Wang, Xiao, Ma, arXiv 2109.04533",
    leaves="its body's change",
    pseudo_label="unlabeled",
    labels_at=("server",),
    weighting="uniform",
)
def fedcon(
    *,
    training: Training,
    consistency_weight: NotNegative = 1.0,
    rampup_rounds: CountOrZero = 100,
    server_average: Share = 0.9996,
    average: Share = 0.999,
) -> FederatedAlgorithm:
    """FedCon.

    Args:
        training: the training specification; `server.examples` is needed, and a network whose head is one
            dense layer. Without `local.augment` both views are the example itself.
        consistency_weight: beta, weight of the server's consistency term after the ramp-up.
        rampup_rounds: R, rounds until this weight is full; 0: no ramp-up.
        server_average: alpha_S in [0, 1], weight that the server's average keeps in a step.
        average: alpha in [0, 1], weight that a client's average keeps in a step.

    Raises:
        UsageError: the network has another head, or clients keep their optimizers.

    Cost: a step has one pass with gradients and one without over two views. The server has three networks,
    each client keeps one and a predictor.
    """
    training.local.require_fresh_optimizers(
        "fedcon trains beside a moving average, and keeps no optimizer of both"
    )
    model, plain = training.model, training.local.optimizer
    _, num_features, _ = dense_head(model, "fedcon")
    split = partial(split_head, paths=head_paths(model, "fedcon"))
    predictor = mlp((num_features,), num_features, hidden=(_PREDICTOR_HIDDEN,))
    training = training.with_states(
        siamese(model, "online", _with_target, run=("online",)), _with_target
    )
    training = training.with_local(optimizer=lambda rate: online_only(plain(rate)))

    def server_update(client: ClientRound) -> ClientUpdate:
        rounds = client.shared.round.astype(jnp.float32)
        trained = client.steps(
            server_loss(model, training.local, consistency_weight * ramp_up(rounds, rampup_rounds)),
            after_step=lambda parameters, *_: followed(parameters, jnp.float32(server_average)),
        )
        return client.update(trained)

    def body_bytes(state: nnx.State) -> int:
        return num_bytes_of(nnx.filter_state(split(state["online"])[1], nnx.Param))

    def drawn(state: nnx.State, federation: Federation, key: jax.Array) -> ClientState:
        del federation
        start = nnx.filter_state(state["online"], nnx.Param)
        return ClientState(predictor.init(key), start, jnp.int32(0))

    loss = contrast_loss(model, predictor, training.local.augment)

    def follow(parameters: nnx.State, *_: jax.Array) -> nnx.State:
        online = parameters["online"]
        pair = together(online=online["network"], target=parameters["target"])
        return together(online=online, target=followed(pair, jnp.float32(average))["target"])

    def local_update(client: ClientRound) -> ClientUpdate:
        client_state, received, network = client.state, client.shared.model, client.model["online"]
        target = kept_or_first(
            client_state.steps, client_state.target, nnx.filter_state(network, nnx.Param)
        )
        online = together(network=network, predictor=client_state.predictor)
        start = together(online=online, target=target)
        trained = client.steps(loss, start=start, after_step=follow)
        online = trained.state["online"]
        moved = nnx.merge_state(split(online["network"])[1], split(network)[0])
        steps = client_state.steps + trained.num_steps
        return client.update(
            trained._replace(state=together(online=moved, target=received["target"])),
            client_state=ClientState(online["predictor"], trained.state["target"], steps),
            sent={"parameters": jnp.int32(body_bytes(received))},
        )

    classifier = network_classifier(training)
    return federated_training(
        training,
        local_update,
        pseudo_label="unlabeled",
        init_client=drawn,
        messages=Messages(download_bytes=body_bytes),
        hooks=(_TrainedLast(),),
        server_update=server_update,
        classifier=Classifier(lambda state: state.memory, classifier.probabilities),
    )


class _TrainedLast(Hook):
    """The server's store of the network that it trained last, `ServerState.memory`."""

    def init(self, state: ServerState, federation: Federation, key: jax.Array) -> ServerState:
        return state._replace(memory=state.model)

    def before(
        self, state: ServerState, cohort: Cohort, key: jax.Array, communication: Communication
    ) -> ServerState:
        return state._replace(memory=state.model)


def _with_target(network: nnx.State) -> nnx.State:
    """Return {online, target} of a network; the target has its parameters alone."""
    return together(online=network, target=nnx.filter_state(network, nnx.Param))


def _swapped(views: jax.Array) -> jax.Array:
    """Rows of the other view."""
    return jnp.concatenate(jnp.split(views, 2)[::-1])


def _target(state: nnx.State, network: nnx.State) -> nnx.State:
    """The target, held fixed, with the network's statistics."""
    statistics = nnx.split_state(network, nnx.Param, ...)[1]
    target: nnx.State = jax.lax.stop_gradient(nnx.merge_state(state["target"], statistics))
    return target


def server_loss(model: Model, local: LocalTraining, weight: jax.Array) -> Loss:
    """L_S on states {online, target}."""

    def loss(state: nnx.State, anchor: nnx.State, batch: Batch, key: jax.Array) -> ValueAndState:
        del anchor
        view_key, online_key, target_key = jax.random.split(key, 3)
        x = losses.views((local.augment,) * 2, jax.random.split(view_key), batch.x)
        logits, online = model.train_apply(state["online"], x, online_key)
        target_logits, _ = model.train_apply(_target(state, state["online"]), x, target_key)
        q = _swapped(losses.fixed_softmax(target_logits))
        label, used = (jnp.concatenate([part, part]) for part in (batch.label, batch.used))
        terms = local.pointwise(logits, label) + weight * divergence(logits, q)
        return losses.mean_where(terms, used), together(online=online, target=state["target"])

    return loss


def contrast_loss(model: Model, predictor: Model, augment: Augment | None) -> Loss:
    """A client's loss on states {online: {network, predictor}, target}."""

    def loss(state: nnx.State, anchor: nnx.State, batch: Batch, key: jax.Array) -> ValueAndState:
        del anchor
        view_key, online_key, target_key, predictor_key = jax.random.split(key, 4)
        x = losses.views((augment,) * 2, jax.random.split(view_key), batch.x)
        online_network, predicts = state["online"]["network"], state["online"]["predictor"]
        features, network = model.train_features(online_network, x, online_key)
        guess, _ = predictor.train_apply(predicts, features, predictor_key)
        target_features, _ = model.train_features(_target(state, online_network), x, target_key)
        pairs = losses.unit(guess.astype(jnp.float32)) * _swapped(
            losses.unit(target_features.astype(jnp.float32))
        )
        value = losses.mean_where(
            1 - jnp.sum(pairs, axis=-1), jnp.concatenate([batch.used, batch.used])
        )
        online = together(network=network, predictor=predicts)
        return value, together(online=online, target=state["target"])

    return loss
