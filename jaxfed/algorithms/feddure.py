"""FedDure: two regulators train beside the local model and judge its pseudo-labels.

Beside its local model theta, a client trains a coarse regulator phi (C-reg), which is a second model of the
same network, and a fine regulator omega (F-reg), a small net g that weighs examples. In each round theta and
phi start as the received model. In each step

    p_i = softmax f_theta(weak(u_i)),   y_i = argmax p_i,   m_i(omega) = g_omega(p_i) in (0, 1)
    L(v) = 1/|B_L| sum l(f_v(weak(x)), y),   W(v, omega) = 1/|B_U| sum m_i(omega) l(f_v(weak(u_i)), y_i)

    phi^-(omega) = phi - eta_c grad_phi W(phi, omega)                                                    (6)
    omega <- omega - Adam's step by grad_omega L(phi^-(omega))                                           (7)
    phi' = phi - eta_c grad_phi W(phi, omega),   d = L(phi) - L(phi'),   phi <- phi'                  (4, 5)
    theta <- theta - eta grad_theta [ L(theta)
        + lambda/|B_U| sum 1[max p_i >= tau] m_i(omega) l(f_theta(strong(u_i)), y_i)                     (9)
        + d/|B_U| sum l(f_theta(strong(u_i)), y_i) ]                                                (10, 11)

p_i is held fixed everywhere, m_i and d in the last step. (7) differentiates through the step (6): examples
whose labels lower C-reg's loss on given labels get larger weights. The chain rule needs inner products of
gradients, which difference quotients along grad L(phi^-) give without second derivatives. If d > 0, learning
from the labels has lowered that loss, and theta becomes surer of them; if d < 0, less sure. The server
averages theta as in FedAvg.

The sources are the authors' code and the drawing of the method in their repository (`framework.png`), not the
paper's text. The drawing has the order of the steps, the training of F-reg and the equations' numbers. The
code has the forms: g has one hidden layer of 100 ReLUs and a sigmoid, Adam has the rate 0.001, C-reg learns
from weak views, and both models start as the received one.

Neither establishes the following choices: F-reg stays at its client from round to round, while its Adam
starts afresh; W and (9) divide by |B_U|, not by the sum of weights; lambda is constant; eta_c is a multiple
of the round's learning rate.

Differences from the authors' code:

  * In the code the client of FedDure has no F-reg. Another client's class has the net, but never updates it,
    and its weights cancel: a product of shapes [B] and [B, 1] has the shape [B, B].
  * In the code d has the other sign. This one is that of -grad_theta L(phi') by the labels' probabilities.
  * In (10) the code has the label of the strong view, from which C-reg did not learn.
  * In (9) the code has soft targets, no m_i, and lambda = 8 min(1, (s + 1) / 20) in a round's step s = 0..4.
  * In the code five steps on given labels precede a round's five steps, and both models have Adam with a
    warm-up, in which C-reg's first two rates are 0. Here C-reg takes plain gradient steps, as in (6).

The regulators stay at the client.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.method import method
from jaxfed.models.model import Model
from jaxfed.settings import NotNegative, Share
from jaxfed.training.aggregate import norm
from jaxfed.training.local import losses
from jaxfed.training.local.batches import plan_of
from jaxfed.training.local.local_training import Trained, batch_of, rebuilt
from jaxfed.training.local.losses import Batch, Pointwise, ValueAndState
from jaxfed.training.round.client_round import ClientRound, ClientUpdate, at_rate
from jaxfed.training.round.round import federated_training
from jaxfed.training.specification import Training

_HIDDEN = 100
_STEP = 0.001  # to each side in a difference quotient: beyond, ReLUs switch; below, rounding errors grow
_TINY = 1e-16  # no step along a gradient so short that its square is 0

Pull = Callable[[jax.Array], nnx.State]
Carry = tuple[nnx.State, optax.OptState, "Regulators", jax.Array]


class Weigher(NamedTuple):
    """The fine regulator g: C inputs, 100 ReLUs, one sigmoid."""

    kernel: jax.Array
    bias: jax.Array
    last: jax.Array
    last_bias: jax.Array


class Regulators(NamedTuple):
    """Both regulators within a round, phi and omega, and the state of Adam for omega."""

    coarse: nnx.State
    fine: Weigher
    adam: optax.OptState


@method(
    title="FedDure",
    cites="Bai et al., AAAI 2024",
    leaves="its local model's change",
    on_network=True,
    pseudo_label="unlabeled",
    two_views=True,
)
def feddure(
    *,
    training: Training,
    threshold: Share = 0.6,
    unlabeled_weight: NotNegative = 1.0,
    regulator_rate: NotNegative = 1.0,
    weigher_rate: NotNegative = 0.001,
) -> FederatedAlgorithm:
    """FedDure with labels at clients.

    Args:
        training: the training specification; its `local.strong_augment` is needed.
        threshold: tau in [0, 1], the confidence from which an example counts in (9).
        unlabeled_weight: lambda, the weight of (9).
        regulator_rate: eta_c, in units of the round's learning rate.
        weigher_rate: Adam's rate for F-reg; 0 leaves its weights near 1/2, as drawn.

    Cost: FixMatch's, and five passes over the weak view, two of them with gradients. A client in training
    has two models.
    """
    model, local_training, pointwise = training.model, training.local, training.local.pointwise

    def local_loss(logits: jax.Array, p: jax.Array, share: jax.Array, batch: Batch) -> jax.Array:
        weak, strong = jnp.split(logits, 2)
        label = jnp.argmax(p, axis=-1).astype(jnp.int32)
        value = losses.labeled_mean(pointwise(weak, batch.label), batch)
        return value + losses.unlabeled_mean(share * pointwise(strong, label), batch)

    def local_update(client: ClientRound) -> ClientUpdate:
        received, rate = client.model, client.shared.learning_rate
        optimizer = local_training.optimizer(rate)
        rates = regulator_rate * rate, weigher_rate  # eta_c, and Adam's
        plan_key, step_key = jax.random.split(client.key)
        plan = plan_of(client.data, client.batches, plan_key)

        def step(number: jax.Array, carry: Carry) -> Carry:
            local, state, regulators, total = carry
            keys = jax.random.split(jax.random.fold_in(step_key, number), 4)
            batch = batch_of(client.data, *plan.rows(number))
            both = local_training.two_views((keys[0], keys[1]), batch.x)
            logits, pull, local = _derived(model, local, both, keys[2])
            p = jax.nn.softmax(jnp.split(logits, 2)[0].astype(jnp.float32))
            weak = jnp.split(both, 2)[0]
            regulators, gain = regulated(
                *(model, regulators, weak, p, batch, keys[3], rates, pointwise)
            )
            is_sure = (jnp.max(p, axis=-1) >= threshold).astype(jnp.float32)
            share = unlabeled_weight * is_sure * weights(regulators.fine, p) + gain
            value, slope = jax.value_and_grad(local_loss)(logits, p, share, batch)
            parameters, statistics = nnx.split_state(local, nnx.Param, ...)
            updates, state = optimizer.update(pull(slope), state, parameters)
            parameters = optax.apply_updates(parameters, updates)
            local = nnx.merge_state(parameters, statistics)
            return local, state, regulators, total + value

        kept = client.optimizer_state
        if kept is None:
            kept = optimizer.init(nnx.filter_state(received, nnx.Param))
        adam = optax.adam(weigher_rate).init(client.state)
        beside = Regulators(received, client.state, adam)
        carry = received, at_rate(kept, rate), beside, jnp.float32(0)
        local, state, beside, total = jax.lax.fori_loop(0, plan.num_steps, step, carry)
        loss = total / jnp.maximum(plan.num_steps, 1).astype(jnp.float32)
        trained = Trained(local, plan.num_steps, loss, state)
        return client.update(trained, client_state=beside.fine)

    return federated_training(
        training,
        local_update,
        pseudo_label="unlabeled",
        init_client=lambda _, federation, key: weigher(key, federation.num_classes),
    )


def weigher(key: jax.Array, num_classes: int) -> Weigher:
    """Draw a net; entries are uniform within 1 / sqrt(inputs) of their layer, as in the authors' code."""

    def drawn(number: int, shape: tuple[int, ...], inputs: int) -> jax.Array:
        draw_key = jax.random.fold_in(key, number)
        return jax.random.uniform(draw_key, shape, minval=-1, maxval=1) / math.sqrt(inputs)

    return Weigher(
        drawn(0, (num_classes, _HIDDEN), num_classes),
        drawn(1, (_HIDDEN,), num_classes),
        drawn(2, (_HIDDEN,), _HIDDEN),
        drawn(3, (), _HIDDEN),
    )


def weights(net: Weigher, p: jax.Array) -> jax.Array:
    """m, float32 [B], of predictions float32 [B, C]."""
    hidden = jax.nn.relu(p @ net.kernel + net.bias[None])
    return jax.nn.sigmoid(hidden @ net.last + net.last_bias)


def regulated(
    model: Model,
    regulators: Regulators,
    x: jax.Array,
    p: jax.Array,
    batch: Batch,
    key: jax.Array,
    rates: tuple[jax.Array, float],
    pointwise: Pointwise,
) -> tuple[Regulators, jax.Array]:
    """Return both regulators after their steps (6), (7) and (4), and d, float32 scalar.

    `x` is the weak view [B, ...], `p` the local model's prediction for it, float32 [B, C], held fixed; `key`
    is for C-reg's own draws, `rates` are eta_c and Adam's.
    """
    label = jnp.argmax(p, axis=-1).astype(jnp.int32)
    logits, pull, moved = _derived(model, regulators.coarse, x, key)
    parameters, statistics = nnx.split_state(regulators.coarse, nnx.Param, ...)

    def stepped(net: Weigher) -> nnx.State:
        def weighted(logits: jax.Array) -> jax.Array:
            return losses.unlabeled_mean(weights(net, p) * pointwise(logits, label), batch)

        return _shifted(parameters, pull(jax.grad(weighted)(logits)), -rates[0])

    def logits_at(parameters: nnx.State) -> jax.Array:
        state = nnx.merge_state(parameters, rebuilt(statistics))
        return model.train_apply(state, x, key)[0]

    def labeled(logits: jax.Array) -> jax.Array:
        return losses.labeled_mean(pointwise(logits, batch.label), batch)

    uphill = jax.grad(lambda v: labeled(logits_at(v)))(stepped(regulators.fine))
    length = norm(uphill)
    scale = _STEP / jnp.maximum(length, _TINY)
    ahead, behind = (
        pointwise(logits_at(_shifted(parameters, uphill, sign * scale)), label) for sign in (1, -1)
    )
    along = length * (ahead - behind) / (2 * _STEP)  # of each l_i, by the direction `uphill`
    slope = jax.grad(lambda net: -rates[0] * losses.unlabeled_mean(weights(net, p) * along, batch))(
        regulators.fine
    )
    with jax.numpy_dtype_promotion("standard"):  # Adam raises floats to an integer power
        change, adam = optax.adam(rates[1]).update(slope, regulators.adam)
    fine = optax.apply_updates(regulators.fine, change)
    new = stepped(fine)
    gain = labeled(logits) - labeled(logits_at(new))
    coarse = nnx.merge_state(new, nnx.split_state(moved, nnx.Param, ...)[1])
    return Regulators(coarse, fine, adam), gain


def _shifted(parameters: nnx.State, direction: nnx.State, size: jax.Array) -> nnx.State:
    return jax.tree.map(lambda v, g: v + size * g, parameters, direction)


def _derived(
    model: Model, state: nnx.State, x: jax.Array, key: jax.Array
) -> tuple[jax.Array, Pull, nnx.State]:
    """Return logits in training mode, their pullback to the parameters, and the state moved on."""
    parameters, statistics = nnx.split_state(state, nnx.Param, ...)

    def logits_at(parameters: nnx.State) -> ValueAndState:
        return model.train_apply(nnx.merge_state(parameters, rebuilt(statistics)), x, key)

    logits, pull, moved = jax.vjp(logits_at, parameters, has_aux=True)
    return logits, lambda cotangent: pull(cotangent)[0], moved
