"""Twin-sight: a supervised and an unsupervised model as twins.

Clients train two networks of one architecture. The supervised one has features h(x) and a classifier f(x);
the unsupervised one has features g(x) and, in place of a classifier, a projector to z(x). On a batch
B = B_L u B_U, with p_i = softmax f(weak(x_i)) held fixed and y_i = argmax p_i for i in B_U,

    L_s = 1/|B_L| sum_{B_L} l(f(weak(x_i)), y_i)
          + lambda/|B_U| sum_{B_U} 1[max p_i >= tau_c, c = y_i] l(f(strong(x_i)), y_i)
    L_u = instance discrimination: SimCLR's loss of z(weak(x_i)) and z(strong(x_i)), all i in B
    L_t = 1/|B|^2 sum_{i, j in B} [ cos(h(weak(x_i)), h(weak(x_j))) - cos(g(weak(x_i)), g(weak(x_j))) ]^2
    L   = L_s + contrast_weight L_u + twin_weight L_t

L_t keeps the neighborhoods of a batch's examples equal in both networks; it trains both. The server averages
both networks and the projector as in FedAvg. The supervised network is evaluated. Losses of features are in
`jaxfed.training.local.losses`.

The sources are the paper's abstract and the authors' code, where the setting of clients with both labeled
and unlabeled examples has L with these weights.

Differences from the authors' code:

  * The code divides L_t by `n ^ 2`, which is n XOR 2 in Python, about n. Here it is a mean over n^2 pairs:
    `twin_weight` n is the code's 1.
  * In the code tau_c follows FreeMatch at each step by moving averages with weight 0.999, which start again
    at 1/C in each epoch. So nearly every label counts. Here the received model makes thresholds once a round
    (`jaxfed.training.local.consistency.freematch`). For SVHN the code clips them to [0.9, 0.95].
  * In the code fully unlabeled clients have lambda 0 by default, and 0.5 as an option; their views are then
    exchanged: the strong view labels, and the weak one learns.
  * The code's projector has 4096 hidden and 2048 output units, and BatchNorm. Here it has 512 and 128,
    without BatchNorm.
  * The code has SimSiam and BYOL as other choices for L_u.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.method import method
from jaxfed.models.head import dense_head, head_paths, split_head
from jaxfed.models.mlp import mlp
from jaxfed.models.model import Model, compose
from jaxfed.settings import NotNegative, Positive
from jaxfed.training.local import losses
from jaxfed.training.local.consistency import Views, confident, freematch
from jaxfed.training.local.local_training import LocalTraining
from jaxfed.training.local.losses import Batch, Loss, ValueAndState
from jaxfed.training.round.client_round import ClientRound, ClientUpdate
from jaxfed.training.round.round import federated_training
from jaxfed.training.server_state import together
from jaxfed.training.specification import Training

_PROJECTION_HIDDEN, _PROJECTION_SIZE = 512, 128  # hidden units of the projector, dimension of z


@method(
    title="Twin-sight",
    cites="Zhang, Yang, Tian, Wang, Liu, Han, ICLR 2024",
    leaves="the changes of both networks and the projector",
    on_network=True,
    pseudo_label="unlabeled",
    two_views=True,
)
def twinsight(
    *,
    training: Training,
    unlabeled_weight: NotNegative = 5.0,
    contrast_weight: NotNegative = 0.5,
    twin_weight: NotNegative = 1.0,
    temperature: Positive = 0.07,
) -> FederatedAlgorithm:
    """Twin-sight with labels at clients.

    Args:
        training: the training specification; its `local.strong_augment` is needed, and a network whose head
            is one dense layer.
        unlabeled_weight: lambda. With 5, as in the code, take its learning rate of 0.01; a small CNN diverged
            at 0.1.
        contrast_weight: weight of L_u, the loss of the unsupervised network.
        twin_weight: weight of L_t, which keeps both networks' neighborhoods equal.
        temperature: T of SimCLR's loss.

    Raises:
        UsageError: the network has another head.

    Cost: twice FixMatch's, in computation and in bytes; thresholds take one forward pass over a client's
    data in each round.
    """
    plain = training.model
    _, num_features, _ = dense_head(plain, "twinsight")
    projector = mlp((num_features,), _PROJECTION_SIZE, hidden=(_PROJECTION_HIDDEN,))
    twins = Twins(plain, projector, "twinsight")
    training = training.with_states(twins.model(), twins.of)
    weights = unlabeled_weight, contrast_weight, twin_weight

    def local_update(client: ClientRound) -> ClientUpdate:
        least = freematch(*client.predictions())
        loss = twin_loss(twins, training.local, least, weights, temperature)
        return client.update(client.steps(loss))

    return federated_training(training, local_update, pseudo_label="unlabeled")


class Twins:
    """States {supervised, encoder, projector}: the encoder is a second network without its head."""

    def __init__(self, plain: Model, projector: Model, method: str) -> None:
        """Pair a network with a projector of its features; `method` is for the error without a head."""
        self.plain, self.projector = plain, projector
        self._split = partial(split_head, paths=head_paths(plain, method))

    def of(self, supervised: nnx.State, key: jax.Array | None = None) -> nnx.State:
        """Return a state of this supervised network; without a key, the encoder starts as it does."""
        own_key, projector_key = jax.random.split(jax.random.key(0) if key is None else key)
        other = supervised if key is None else self.plain.init(own_key)
        return together(
            supervised=supervised,
            encoder=self._split(other)[1],
            projector=self.projector.init(projector_key),
        )

    def projected(
        self, state: nnx.State, x: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, jax.Array, nnx.State]:
        """Return g(x) [n, D] and z(x) in training mode, and the encoder moved on."""
        head, _ = self._split(state["supervised"])  # features do not read it
        encoder_key, projector_key = jax.random.split(key)
        whole = nnx.merge_state(state["encoder"], head)
        features, moved = self.plain.train_features(whole, x, encoder_key)
        z, _ = self.projector.train_apply(state["projector"], features, projector_key)
        return features, z, self._split(moved)[1]

    def model(self) -> Model:
        """Return the model that classifies by the supervised network; in training both move."""

        def init(key: jax.Array) -> nnx.State:
            own_key, other_key = jax.random.split(key)
            return self.of(self.plain.init(own_key), other_key)

        def train_features(
            state: nnx.State, x: jax.Array, key: jax.Array
        ) -> tuple[jax.Array, nnx.State]:
            own_key, other_key = jax.random.split(key)
            features, supervised = self.plain.train_features(state["supervised"], x, own_key)
            _, _, encoder = self.projected(state, x, other_key)
            moved = together(supervised=supervised, encoder=encoder, projector=state["projector"])
            return features, moved

        return compose(
            init=init,
            features=lambda state, x: self.plain.features(state["supervised"], x),
            head=lambda state, features: self.plain.head(state["supervised"], features),
            train_features=train_features,
        )


def twin_loss(
    twins: Twins,
    local: LocalTraining,
    thresholds: jax.Array,
    weights: tuple[float, float, float],
    temperature: float,
) -> Loss:
    """L on states of `twins`; both views go through a network together.

    Args:
        twins: the two networks.
        local: the augmentations, and l.
        thresholds: tau_c, float32 [C].
        weights: lambda, and the weights of L_u and L_t.
        temperature: T.
    """
    term = confident(thresholds, pointwise=local.pointwise)

    def loss(state: nnx.State, anchor: nnx.State, batch: Batch, key: jax.Array) -> ValueAndState:
        del anchor
        *view_keys, own_key, other_key = jax.random.split(key, 4)
        x = local.two_views(view_keys, batch.x)
        h, supervised = twins.plain.train_features(state["supervised"], x, own_key)
        logits, strong = jnp.split(twins.plain.head(state["supervised"], h), 2)
        g, z, encoder = twins.projected(state, x, other_key)
        p = losses.fixed_softmax(logits)
        labels = losses.unlabeled_mean(term(Views(p, p, strong, batch)), batch)
        discrimination = losses.instance_discrimination(
            z.astype(jnp.float32), batch.used, temperature
        )
        near_h, near_g = (jnp.split(part.astype(jnp.float32), 2)[0] for part in (h, g))
        difference = losses.neighborhood_difference(near_h, near_g, batch.used)
        value = (
            losses.labeled_mean(local.pointwise(logits, batch.label), batch) + weights[0] * labels
        )
        value = value + weights[1] * discrimination + weights[2] * difference
        return value, together(supervised=supervised, encoder=encoder, projector=state["projector"])

    return loss
