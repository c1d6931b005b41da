"""FedLoKe: each client's resident model and the shared model teach each other.

Client k keeps a resident model v_k. In a round it receives w, and trains both from

    w_k <- w,   v_k <- mu v_k + (1 - mu) w                                                               (2)

With p_w, p_v the softmax of each on the weak view, H the entropy, and r = min(1, t / T_u) in round
t = 0, 1, ...:

    L(w_k) = 1/|B_L| sum l(f_w(strong(x)), y) + r/|B_U| sum 1[H(p_v) < delta] KL(p_v, softmax f_w(strong(u)))
    L(v_k) = 1/|B_L| sum l(f_v(weak(x)), y)   + r/|B_U| sum 1[H(p_w) < delta] KL(p_w, softmax f_v(strong(u)))

These are eqs. 9 to 16. The targets p_w and p_v are predictions of the models in training at each step, held
fixed. |B_U| counts all unlabeled examples, sure or not. The server averages w_k as in FedAvg.

Differences from the authors' code, and details that the paper leaves open:

  * In the paper each resident model starts from its own random weights; in the code and here, from the
    initial model.
  * The code clips each entry of the gradients to [-0.1, 0.1], and averages clients uniformly.
  * One optimizer updates both models: clipping by global norm, say, uses the norm of both gradients together.

The resident model stays at the client.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.method import method
from jaxfed.settings import CountOrZero, NotNegative, Share
from jaxfed.training.local import losses
from jaxfed.training.local.consistency import divergence
from jaxfed.training.local.losses import Batch, Loss, ValueAndState
from jaxfed.training.round.client_round import ClientRound, ClientUpdate
from jaxfed.training.round.round import federated_training
from jaxfed.training.server_state import together
from jaxfed.training.specification import Training
from jaxfed.xclp.steps.prediction import entropy


@method(
    title="FedLoKe",
    cites="Zhang et al., CIKM 2023",
    leaves="the received model's change",
    on_network=True,
    pseudo_label="unlabeled",
    two_views=True,
)
def fedloke(
    *,
    training: Training,
    average: Share = 0.9,
    max_entropy: NotNegative = 0.1,
    rampup_rounds: CountOrZero = 200,
) -> FederatedAlgorithm:
    """FedLoKe with labels at clients.

    Args:
        training: the training specification; its `local.strong_augment` is needed.
        average: mu, weight of the old resident model when a round starts; the paper tries 0.5, 0.7 and 0.9.
        max_entropy: delta, in nats; a prediction of lower entropy teaches the other model.
        rampup_rounds: T_u; 0: full weight from the first round on.

    Raises:
        UsageError: clients keep their optimizers (`training.client_optimizer`).

    Cost: twice FixMatch's; the state has one more model for each client.
    """
    training.local.require_fresh_optimizers(
        "fedloke trains two models at once, and keeps no optimizer of both"
    )

    def local_update(client: ClientRound) -> ClientUpdate:
        resident = jax.tree.map(
            lambda old, new: average * old + (1 - average) * new, client.state, client.model
        )
        number = client.shared.round.astype(jnp.float32)
        share = jnp.minimum(number / rampup_rounds, 1) if rampup_rounds else jnp.float32(1)
        trained = client.steps(
            mutual_loss(training, max_entropy, share),
            start=together(received=client.model, resident=resident),
        )
        travels, stays = (trained.state[name] for name in ("received", "resident"))
        return client.update(trained._replace(state=travels), client_state=stays)

    return federated_training(
        training,
        local_update,
        pseudo_label="unlabeled",
        init_client=lambda model, federation, key: model,
    )


def mutual_loss(training: Training, max_entropy: float, unlabeled_weight: jax.Array) -> Loss:
    """L(w_k) + L(v_k) on states {received, resident}; both views go through a network together."""
    model, pointwise = training.model, training.local.pointwise

    def loss(state: nnx.State, anchor: nnx.State, batch: Batch, key: jax.Array) -> ValueAndState:
        del anchor
        *view_keys, own_key, other_key = jax.random.split(key, 4)
        x = training.local.two_views(view_keys, batch.x)
        travels, received = model.train_apply(state["received"], x, own_key)
        stays, resident = model.train_apply(state["resident"], x, other_key)
        (weak, strong), (own_weak, own_strong) = (
            jnp.split(logits, 2) for logits in (travels, stays)
        )
        value = losses.labeled_mean(
            pointwise(strong, batch.label) + pointwise(own_weak, batch.label), batch
        )
        terms = _confident(own_weak, strong, max_entropy) + _confident(
            weak, own_strong, max_entropy
        )
        value += unlabeled_weight * losses.unlabeled_mean(terms, batch)
        return value, together(received=received, resident=resident)

    return loss


def _confident(teacher: jax.Array, student: jax.Array, max_entropy: float) -> jax.Array:
    """1[H(p) < delta] KL(p, softmax(student)), float32 [B], with p = softmax(teacher) held fixed."""
    p = losses.fixed_softmax(teacher)
    return (entropy(p) < max_entropy).astype(jnp.float32) * divergence(student, p)
