"""RSCFed: a mean of sub-consensus models of random groups of clients.

    server   M times: draw K of the round's clients
                 u   = sum_i n_i w_i / sum_i n_i                              over these K
                 a_i = n_i exp(-beta |w_i - u| / n_i) / sum_j n_j exp(-beta |w_j - u| / n_j)
                 v   = sum_i a_i w_i
             w <- the mean of the M models v
    client   w_k <- w_k - eta grad [ mean_{B_L} CE(f_{w_k}(a(x)), y)
                                     + lambda mean_{B_U} |softmax f_{w_k}(a(x)) - sharp(f_{t_k}(a'(x)))|^2 ]
             t_k <- alpha t_k + (1 - alpha) w_k,   alpha = min(1 - 1 / (s + 1), 0.999)      (each step)

a, a' are two draws of the augmentation. sharp(z) = softmax(z / T) is p^(1/T), normalized. s = 0, 1, ...
counts the client's steps over all rounds. Each client keeps its teacher t_k from round to round; it starts as
the first model that the client receives, predicts in evaluation mode, and is held fixed in the loss. n_i is
the client's weight (`training.weighting`), by default its number of examples. beta must fit the size of n_i:
10^4 is for thousands of examples. With far fewer, each v is the model of the one client with the least
|w_i - u| / n_i.

Differences from the authors' code, and details that the paper leaves open:

  * In the code a client that is drawn twice in a round trains twice, each time from w. Here each of the
    round's clients trains once, and groups are drawn from them; with K or fewer clients, all v are equal.
  * |w_i - u| is one norm over all parameters. In the code it is the sum of the tensors' norms, running
    statistics included.
  * The code multiplies n_i of labeled clients by 6 (SVHN, CIFAR-100) or 200 (skin lesions, where beta is
    0.01); the factor is in u and enters a_i twice. In a group with a labeled client every member has another
    beta, 100. Neither is reproduced here.
  * A teacher's running statistics are those received in this round; in the code, those that it started with.
  * In the code labeled clients have the rate 0.03 and unlabeled ones 0.021, gradients are clipped to norm 5,
    clients keep momentum over rounds (`training.client_optimizer` "kept"), and labeled clients train alone at
    first (`training.labeled_only_rounds`).

Labels at the server: the server trains on them before the clients, which train on the second term alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.method import EVERYWHERE, method
from jaxfed.random_streams import Stream
from jaxfed.settings import Count, NotNegative, Positive, Share
from jaxfed.training.aggregate import Aggregate, norm
from jaxfed.training.local import losses
from jaxfed.training.local.losses import Batch, Loss, ValueAndState
from jaxfed.training.mean_teacher import Teacher, mean_teacher_steps
from jaxfed.training.round.client_round import ClientRound, ClientUpdate, plain_update
from jaxfed.training.round.round import aggregate_of, federated_training, weighted_mean
from jaxfed.training.server_state import together
from jaxfed.training.specification import Training


@method(
    title="RSCFed",
    cites="Liang, Lin, Fu, Zhu, Li, CVPR 2022",
    leaves="its model's change",
    on_network=True,
    pseudo_label="unlabeled",
    labels_at=EVERYWHERE,
)
def rscfed(
    *,
    training: Training,
    draws: Count = 3,
    draw_size: Count = 5,
    beta: NotNegative = 1e4,
    unlabeled_weight: NotNegative = 0.02,
    temperature: Positive = 0.5,
    average: Share = 0.999,
) -> FederatedAlgorithm:
    """RSCFed.

    Args:
        training: the training specification.
        draws: M, the number of sub-consensus models.
        draw_size: K, the number of clients in each.
        beta: effect of a client's distance from its group's mean on its weight; 0: none.
        unlabeled_weight: lambda, weight of the unlabeled examples' term.
        temperature: T of sharpening; below 1 sharpens the teacher's probabilities.
        average: largest weight alpha in [0, 1] that the teacher keeps in a step.

    Cost: one more forward pass in each step; each client keeps a model.
    """
    aggregate = sub_consensus(aggregate_of(training), draws, draw_size, beta)
    training = training.with_server(aggregate=aggregate)
    loss = mean_teacher(training, unlabeled_weight, temperature)

    def parameters_of(network: nnx.State) -> nnx.State:
        return nnx.filter_state(network, nnx.Param)

    def local_update(client: ClientRound) -> ClientUpdate:
        trained, teacher = mean_teacher_steps(client, loss, average, parameters_of)
        return client.update(trained, client_state=teacher)

    return federated_training(
        training,
        local_update,
        pseudo_label="unlabeled",
        init_client=lambda model, *_: Teacher(parameters_of(model), jnp.int32(0)),
        server_update=plain_update(training.loss),
    )


def mean_teacher(training: Training, unlabeled_weight: float, temperature: float) -> Loss:
    """The client's loss on states {online, target}."""
    model, local = training.model, training.local

    def loss(state: nnx.State, anchor: nnx.State, batch: Batch, key: jax.Array) -> ValueAndState:
        del anchor
        target_key, online_key = jax.random.split(key)
        seen = losses.view(local.augment, target_key, batch.x)
        guess = model.apply(jax.lax.stop_gradient(state["target"]), seen).astype(jnp.float32)
        logits, online = losses.augmented_logits(
            model, state["online"], batch.x, online_key, local.augment
        )
        p = jax.nn.softmax(logits.astype(jnp.float32))
        distance = jnp.sum(jnp.square(p - jax.nn.softmax(guess / temperature)), axis=-1)
        value = losses.labeled_mean(local.pointwise(logits, batch.label), batch)
        value = value + unlabeled_weight * losses.unlabeled_mean(distance, batch)
        return value, together(online=online, target=state["target"])

    return loss


class Drawing(NamedTuple):
    """State of `sub_consensus`.

    Fields:
        inner: state of the inner aggregate.
        key: typed key that groups are drawn from.
        number: int32 scalar, rounds done.
    """

    inner: Any
    key: jax.Array
    number: jax.Array


def sub_consensus(inner: Aggregate, draws: int, draw_size: int, beta: float) -> Aggregate:
    """The server's step, with weights n_i, [K]. `inner` takes the clients' weights in the mean of all v.

    Cost: M means.
    """

    def init(model: nnx.State, key: jax.Array) -> Drawing:
        own_key = jax.random.fold_in(key, Stream.SUB_CONSENSUS)
        return Drawing(inner.init(model, key), own_key, jnp.int32(0))

    def apply(
        model: nnx.State, deltas: nnx.State, weights: jax.Array, state: Drawing
    ) -> tuple[nnx.State, Drawing]:
        key = jax.random.fold_in(state.key, state.number)

        def one(number: jax.Array) -> jax.Array:
            drawn = group(jax.random.fold_in(key, number), weights, draw_size)
            return distance_weights(deltas, jnp.where(drawn, weights, 0), beta)

        shares = jnp.mean(jax.lax.map(one, jnp.arange(draws)), axis=0)
        new, server_state = inner.apply(model, deltas, shares, state.inner)
        return new, Drawing(server_state, state.key, state.number + 1)

    return Aggregate(init, apply)


def group(key: jax.Array, weights: jax.Array, size: int) -> jax.Array:
    """Members of a random group, bool [K]: `size` clients of positive weight, or all if there are fewer.

    Clients of weight 0 do not affect the draw, since they may be missing on a network.
    """
    is_in = weights > 0
    rank = jnp.maximum(jnp.cumsum(is_in) - 1, 0)
    draw = jnp.where(is_in, jax.random.uniform(key, weights.shape)[rank], jnp.inf)
    return (jnp.argsort(jnp.argsort(draw)) < size) & is_in


def distance_weights(deltas: nnx.State, weights: jax.Array, beta: float) -> jax.Array:
    """a_i, float32 [K], from n_i, which is 0 for clients outside the group; all 0 for an empty group.

    Computed with logarithms: if all exponentials underflow, a_i is 1 for the least |w_i - u| / n_i.
    """
    parameters = nnx.filter_state(deltas, nnx.Param)
    mean = weighted_mean(parameters, weights)
    apart = jax.vmap(lambda client: norm(jax.tree.map(jnp.subtract, client, mean)))(parameters)
    is_in = weights > 0
    size = jnp.where(is_in, weights, 1)
    score = jnp.where(is_in, jnp.log(size) - beta * apart / size, -jnp.inf)
    most = jnp.where(jnp.any(is_in), jnp.max(score), 0)
    raised = jnp.exp(score - most)
    return raised / jnp.where(jnp.any(is_in), jnp.sum(raised), 1)
