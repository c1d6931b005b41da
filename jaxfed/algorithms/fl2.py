"""(FL)^2: labels at the server, thresholds and weights of each client.

In every round the server trains on its labels and sends the resulting model w. Client k labels its examples
once with w, in evaluation mode, and trains on those that reach the threshold of their class:

    p_i = softmax(f_w(weak(x_i))),   m_i = max p_i,   y_i = argmax p_i
    tau_k = mean_i m_i,   tau_kc = tau_k q_c / max_c q_c,   q = mean_i p_i     (FreeMatch's, of this client)
    D = {i: m_i >= tau_kc, c = y_i};   in a batch B of D, B+ are those with m_i >= 0.95

    l(v)  = mean_{i in B} CE(f_v(strong(x_i)), y_i)
    v*    = v + rho T^2 g / |T g|,   g = grad mean_{i in B+} CE(f_v(strong(x_i)), y_i)
    s(u)  = 1/|B| sum_{i in B+} KL(softmax f_v(strong(x_i)), softmax f_u(strong(x_i)))
    v_k  <- v_k - eta (grad l(v_k) + grad s(v_k*))
    w    <- sum_k a_k v_k,   a_k in proportion to 1 - tau_k

T is |v| + 0.01, and 1 for biases (ASAM, Kwon et al., ICML 2021): the authors' values of rho, 0.1 and 1
(CIFAR-100), are for ASAM. g, T and softmax f_v in s are held fixed. An unsure client has low thresholds and a
large weight.

Differences from the authors' code, and details that the paper leaves open:

  * The reference in s is the strong view, as in the code by default (`use_weak: False`).
  * The code clips gradients to norm 1; this does not.
  * Settings of the code: clients keep momentum over rounds (`training.client_optimizer` "kept"), the server
    has momentum (`training.server_optimizer`), BatchNorm is static (`training.batch_statistics` "static"),
    and the server trains alone in the first rounds (`training.labeled_only_rounds`).
  * A round of the code ends with the server's training; here it begins with it, as in `semifl`.
  * A client whose D is empty neither sends its model nor counts in the mean. 1 - tau_k is at least 1e-6, so
    that clients that are sure of everything still have a mean.

Metrics of a round: `sure`, the share of a client's unlabeled examples in D, and `threshold`, tau_k. Both are
means over the clients with weights a_k.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.method import method
from jaxfed.settings import NotNegative, Share
from jaxfed.training.aggregate import norm
from jaxfed.training.local.batches import ClientData, usable
from jaxfed.training.local.consistency import divergence, freematch
from jaxfed.training.local.local_training import rebuilt
from jaxfed.training.local.losses import Batch, Loss, ValueAndState, fixed_softmax, mean_where, view
from jaxfed.training.round.client_round import ClientRound, ClientUpdate, plain_update
from jaxfed.training.round.round import federated_training
from jaxfed.training.specification import Training

_LEAST_WEIGHT = 1e-6
_LEAST_SIZE = 0.01  # ASAM's eta
_TINY = 1e-16  # no perturbation for a gradient so short that its square is 0


@method(
    title="(FL)^2",
    cites="Lee, Le, Shin, Lee, NeurIPS 2024",
    leaves="its model's change, and its mean confidence",
    pseudo_label="unlabeled",
    labels_at=("server",),
    two_views=True,
)
def fl2(
    *, training: Training, sure_threshold: Share = 0.95, rho: NotNegative = 0.1
) -> FederatedAlgorithm:
    """(FL)^2.

    Args:
        training: the training specification; `server.examples` and `local.strong_augment` are needed.
        sure_threshold: confidence in [0, 1] from which an example is in B+.
        rho: size of the perturbation of the model.

    Cost: three passes over a batch in each step, one forward pass over a client's data in each round.
    """
    loss = sharpness_aware(training, rho)

    def local_update(client: ClientRound) -> ClientUpdate:
        data, tau, sure = labeled(client, sure_threshold)
        client = client._replace(data=data)
        update = client.update(client.steps(loss), metrics={"sure": sure, "threshold": tau})
        is_in = jnp.any(usable(data)) & (update.weight > 0)
        return update._replace(
            weight=jnp.where(is_in, jnp.maximum(1 - tau, _LEAST_WEIGHT), 0),
            sent=client.model_sent_if(is_in) | {"thresholds": jnp.where(is_in, jnp.int32(4), 0)},
        )

    return federated_training(
        training, local_update, pseudo_label="unlabeled", server_update=plain_update(training.loss)
    )


def labeled(client: ClientRound, sure_threshold: float) -> tuple[ClientData, jax.Array, jax.Array]:
    """Return the client's data with D labeled, tau_k, and the share of D.

    Examples outside of D have label -1; weight is 1 for those of B+, else 0.
    """
    p, member = client.predictions()
    label, confidence = jnp.argmax(p, axis=-1).astype(jnp.int32), jnp.max(p, axis=-1)
    is_in = member & (confidence >= freematch(p, member)[label])
    data = client.data._replace(
        label=jnp.where(is_in, label, -1),
        weight=(is_in & (confidence >= sure_threshold)).astype(jnp.float32),
    )
    return data, mean_where(confidence, member), mean_where(is_in.astype(jnp.float32), member)


def sharpness_aware(training: Training, rho: float) -> Loss:
    """l(v) + s(v + (v* - v)), with v* - v held fixed: its gradient is the step's."""
    local, pointwise = training.local, training.local.pointwise

    def loss(state: nnx.State, anchor: nnx.State, batch: Batch, key: jax.Array) -> ValueAndState:
        del anchor
        strong_key, model_key = jax.random.split(key)
        x = view(local.strong_augment, strong_key, batch.x)
        parameters, statistics = nnx.split_state(state, nnx.Param, ...)

        def logits_at(parameters: nnx.State) -> ValueAndState:
            merged = nnx.merge_state(parameters, rebuilt(statistics))
            return training.model.train_apply(merged, x, model_key)

        def of_sure(parameters: nnx.State) -> jax.Array:
            terms = pointwise(logits_at(parameters)[0], batch.label)
            return mean_where(terms, batch.weight > 0)

        fixed = jax.lax.stop_gradient(parameters)
        shift = perturbation(fixed, jax.grad(of_sure)(fixed), rho)
        logits, state = logits_at(parameters)
        perturbed, _ = logits_at(jax.tree.map(jnp.add, parameters, shift))
        divergences = divergence(perturbed, fixed_softmax(logits))
        sharpness = mean_where(batch.weight * divergences, batch.used)
        value = mean_where(pointwise(logits, batch.label), batch.used)
        return value + sharpness, state

    return loss


def perturbation(parameters: nnx.State, gradient: nnx.State, rho: float) -> nnx.State:
    """rho T^2 g / |T g|, in the structure of the parameters; 0 where g is 0."""

    def scaled(path: tuple, g: jax.Array, v: jax.Array) -> jax.Array:
        is_bias = "bias" in jax.tree_util.keystr(path)
        return g * (jnp.abs(v) + _LEAST_SIZE) if not is_bias else g

    once = jax.tree_util.tree_map_with_path(scaled, gradient, parameters)
    twice = jax.tree_util.tree_map_with_path(scaled, once, parameters)
    factor = rho / (norm(once) + _TINY)
    return jax.tree.map(lambda leaf: factor * leaf, twice)
