"""SemiFL: labels at the server, alternate training.

In every round the server trains on its labels and sends the resulting model w to the clients. Client k labels
all its data once with w, in evaluation mode, and trains on the examples with a confidence of tau or more:

    p_i = softmax(f_w(weak(x_i))),   y_i = argmax p_i
    D_fix = {i: max p_i >= tau};   each batch of it comes with as many m of all data, drawn with replacement
    l_fix = mean_i CE(f(strong(x_i)), y_i)
    l_mix = mean_i [ l CE(f(x_mix), y_i) + (1 - l) CE(f(x_mix), y_m) ],   l ~ Beta(a, a) for each batch,
            x_mix = l weak(x_i) + (1 - l) weak(x_m)
    w_k <- w_k - eta clip(grad (l_fix + lambda l_mix))
    v <- beta v + (w - mean_k w_k),   w <- w - v

The mean is over clients with D_fix not empty, with equal weights. Gradients longer than `max_norm` are cut to
it, the server's too. The last line is `training.server_optimizer` "sgd" with rate 1 and `server_momentum`
0.5; the server's epochs are `training.server_epochs`, 5, as the clients'; static BatchNorm is
`training.batch_statistics` "static" (HeteroFL).

Differences from the authors' code, and details that the paper leaves open:

  * The code's round begins with the clients and ends with the server's training, after which it evaluates:
    the same turns in the same order but for the first, which clients do by a model that is sure of nothing.
    Here a state is the clients' mean, before the server has trained on.
  * Momentum is fresh in every round; the code keeps the server's, and the clients' as
    `training.client_optimizer` "kept" does.
  * Statistics to label with are measured on the server's examples alone (the code's sbn = 0), for clients
    could add theirs by a further exchange only; those of evaluation on the cohort's too (sbn = 1: on all).
  * D_mix is drawn at every step, as in the code; its labels have no threshold.

A round's metrics have `sure`, |D_fix| over the number of a client's examples, averaged as models are: clients
that are sure of nothing are not in it.

A client sends nothing if its D_fix is empty. It receives the model.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.method import method
from jaxfed.settings import NotNegative, Positive, Share
from jaxfed.training.local import losses
from jaxfed.training.local.batches import ClientData
from jaxfed.training.local.local_training import client_logits
from jaxfed.training.local.losses import Batch, Loss, ValueAndState
from jaxfed.training.round.client_round import ClientRound, ClientUpdate, plain_update
from jaxfed.training.round.round import federated_training
from jaxfed.training.specification import Training


@method(
    title="SemiFL",
    cites="Diao, Ding, Tarokh, NeurIPS 2022",
    leaves="its model's change",
    pseudo_label="unlabeled",
    labels_at=("server",),
    two_views=True,
    weighting="uniform",
)
def semifl(
    *,
    training: Training,
    threshold: Share = 0.95,
    mix_weight: NotNegative = 1.0,
    mix_alpha: Positive = 0.75,
    max_norm: Positive = 1.0,
) -> FederatedAlgorithm:
    """SemiFL.

    Args:
        training: the training specification; `server.examples` and `local.strong_augment` are needed. Of
            `local.batches` size and epochs count.
        threshold: tau, confidence from which an example counts.
        mix_weight: lambda, weight of the term of mixed examples.
        mix_alpha: a, parameter of the Beta distribution of mixing weights.
        max_norm: largest norm of a gradient; longer ones are cut to it.

    Cost: a step is two passes over B examples; a round one forward pass over a client's data.
    """
    plain = training.local.optimizer
    batches = replace(training.local.batches, scheme="beside_all")
    training = training.with_local(
        optimizer=lambda rate: optax.chain(optax.clip_by_global_norm(max_norm), plain(rate)),
        batches=batches,
        labeled_batches=batches,
    )
    loss = semifl_loss(training, mix_weight, mix_alpha)

    def local_update(client: ClientRound) -> ClientUpdate:
        label_key, train_key = jax.random.split(client.key)
        data, is_sure = labeled(client, label_key, threshold)
        client = client._replace(data=data, key=train_key)
        count = jnp.maximum(jnp.sum(data.mask), 1).astype(jnp.float32)
        sure = jnp.sum(is_sure).astype(jnp.float32) / count
        update = client.update(client.steps(loss), metrics={"sure": sure})
        is_in = jnp.any(is_sure)
        return update._replace(
            weight=jnp.where(is_in, update.weight, 0), sent=client.model_sent_if(is_in)
        )

    return federated_training(
        training, local_update, pseudo_label="unlabeled", server_update=plain_update(training.loss)
    )


def labeled(client: ClientRound, key: jax.Array, threshold: float) -> tuple[ClientData, jax.Array]:
    """The client's data with labels by the received model; weight 1 on D_fix, whose members are bool [N]."""
    model, weak, data = client.training.model, client.training.local.augment, client.data
    logits = client_logits(model, client.model, data, key, weak)
    is_sure = data.mask & (jnp.max(jax.nn.softmax(logits), axis=-1) >= threshold)
    label = jnp.where(data.mask, jnp.argmax(logits, axis=-1).astype(jnp.int32), -1)
    return data._replace(label=label, weight=is_sure.astype(jnp.float32)), is_sure


def semifl_loss(training: Training, mix_weight: float, mix_alpha: float) -> Loss:
    """l_fix + lambda l_mix of batches whose first half is of D_fix and whose second is D_mix."""
    model, local, pointwise = training.model, training.local, training.local.pointwise

    def loss(state: nnx.State, anchor: nnx.State, batch: Batch, key: jax.Array) -> ValueAndState:
        del anchor
        strong_key, weak_key, share_key, model_key = jax.random.split(key, 4)
        (x, _), (y, y_m) = (jnp.split(part, 2) for part in (batch.x, batch.label))
        used = jnp.split(batch.used, 2)[0]
        logits, state = losses.augmented_logits(model, state, x, strong_key, local.strong_augment)
        fixed = losses.mean_where(pointwise(logits, y), used)
        share = jax.random.beta(share_key, mix_alpha, mix_alpha)
        first, second = jnp.split(losses.view(local.augment, weak_key, batch.x), 2)
        mixed = share * first + (1 - share) * second
        logits, state = model.train_apply(state, mixed, model_key)
        both = share * pointwise(logits, y) + (1 - share) * pointwise(logits, y_m)
        return fixed + mix_weight * losses.mean_where(both, used), state

    return loss
