"""ProtoFSSL (Kim, Park, Sohn, Shu, Kim, arXiv 2205.13921): clients share prototypes and pseudo-label by them.

In every one of E local epochs a client draws an episode (`jaxfed.training.episodes`) and takes one step on

    c_k = mean of f(x) over its labeled support S_k                                                  (2)
    p(z; c)_k = exp(-d(f(z), c_k)) / sum_k' exp(-d(f(z), c_k'))                                   (3, 6)
    target(u) = sharpen( 1/|H| sum_{j in H} p(u; c_j) )       by its helpers' prototypes          (5, 7)
    loss = mean_{x in Q_L} CE(y, p(x; c)) + lambda mean_{u in Q_U} CE(target(u), p(u; c))              (8)

and afterwards makes its prototypes anew, of all its labels, with its own network in evaluation mode. The
server averages networks as FedAvg and keeps the prototypes; the helpers H of a round are clients of the round
before (`jaxfed.training.prototype_sharing`). A state classifies by the mean of p over the prototypes of its
last round's clients.

Said otherwise than in the paper, or left open by it:

  * d is the Euclidean distance; `distance` "mean_squared" is the authors' code, whose logits are far smaller.
  * A class without a label in an episode's support has no prototype, and the targets are normalized over the
    classes that have one; an unlabeled example whose targets have none of them counts for nothing. The code
    puts the mean of the other prototypes there.
  * In round 1 nobody has prototypes: no unlabeled term. (The code has none before round 2.)
  * `prototypes` "global" is Algorithm 2 (B.1): the mean of the helpers' prototypes in place of S_k's.
  * The proximal term of ProtoFSSL-FedProx has its gradient, `mu`; in the code it has none.
  * Every client has an optimizer of its own, fresh in each round; the code's is one for all, always.

Leaves a client: its network's change, and the prototypes of classes with `min_labels` labels or more, with
N(0, sigma^2) noise on every number (B.4), drawn from the experiment's seed: it shows what noise costs, and
protects nobody from those who know the seed. Each is the mean embedding of a class at this client; the paper
has no bound on what one example moves. With `clip` B it is 2 B / n_k, and `jaxfed.privacy.gaussian` says what
sigma promises. It receives the network and its helpers' prototypes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.rules import NOT_NEGATIVE, POSITIVE, at_least, keywords, one_of
from jaxfed.training.client_round import Client, Shared, finished
from jaxfed.training.episodes import Episodes
from jaxfed.training.ingredients import Training
from jaxfed.training.local_update import Batches, ClientUpdate, train
from jaxfed.training.losses import Batch, Loss, mean_where, proximal
from jaxfed.training.prototype_sharing import (
    by_prototypes,
    client_prototypes,
    helpers_sent,
    perturbed,
    prototype_store,
    withheld,
)
from jaxfed.training.prototypes import (
    DISTANCES,
    Distance,
    Prototypes,
    class_means,
    joint_means,
    log_probabilities,
    mean_probabilities,
    sharpened,
)
from jaxfed.training.round import federated_training
from jaxfed.training.server_state import with_statistics

if TYPE_CHECKING:
    from jaxfed.models import Model

_NOISE = 0x6E6F6973  # sets the noise apart from local steps


@keywords(
    support=at_least(1),
    query=at_least(1),
    unlabeled_query=at_least(1),
    unlabeled_weight=NOT_NEGATIVE,
    temperature=POSITIVE,
    num_helpers=at_least(1),
    helper_interval=at_least(1),
    mu=NOT_NEGATIVE,
    distance=one_of(tuple(DISTANCES)),
    prototypes=one_of(("local", "global")),
    min_labels=at_least(1),
    noise=NOT_NEGATIVE,
    clip=NOT_NEGATIVE,
)
def protofssl(
    *,
    training: Training,
    support: int = 1,
    query: int = 2,
    unlabeled_query: int = 100,
    unlabeled_weight: float = 0.3,
    temperature: float = 0.5,
    num_helpers: int = 5,
    helper_interval: int = 1,
    mu: float = 0.0,
    distance: Distance = "euclidean",
    prototypes: Literal["local", "global"] = "local",
    min_labels: int = 1,
    noise: float = 0.0,
    clip: float = 0.0,
) -> FederatedAlgorithm:
    """ProtoFSSL with labels at clients; defaults are its Table 5.

    Args:
        training: the ingredients; of `batches` the epochs count, E. The embedding f is the network up to its
            last layer (`Model.features`), which a network without a head has no more of.
        support: n_S, of each class.
        query: n_Q, of each class.
        unlabeled_query: n_U.
        unlabeled_weight: lambda.
        temperature: T.
        num_helpers: H at most, drawn among the clients of a round.
        helper_interval: rounds between two choices of helpers.
        mu: of the proximal term; above 0 it is ProtoFSSL-FedProx.
        distance: d.
        prototypes: what stands for a class in the loss, "local" of the episode's support or "global".
        min_labels: a client withholds prototypes of classes with fewer labels (7.1).
        noise: sigma.
        clip: embeddings that make prototypes to be shown are made no longer than this; 0 leaves them.

    Raises:
        UsageError: a value that is not allowed.

    Cost: a step is one pass over an episode, forward and back; a round one more forward pass over the labels.
    """
    model = training.model
    if training.body is not None and training.initial_model is None:
        model = training.body()  # a dense layer would be averaged and never trained
    num_classes = training.num_classes
    sizes = Episodes(num_classes, support, query, unlabeled_query)
    batches = Batches("episodes", sizes.capacity, training.batches.epochs, episodes=sizes)
    training = replace(
        training,
        model=model,
        batches=batches,
        labeled_batches=batches,
    )

    def local_update(
        shared: Shared, client: Client, key: jax.Array, *, batches: Batches
    ) -> ClientUpdate:
        loss = protofssl_loss(
            model,
            client.received,
            sizes,
            unlabeled_weight=unlabeled_weight,
            temperature=temperature,
            distance=distance,
            by_helpers=prototypes == "global",
        )
        trained = train(
            with_statistics(shared.model, client.statistics),
            client.data,
            key,
            loss=proximal(loss, mu) if mu else loss,
            optimizer=training.optimizer(shared.learning_rate),
            batches=batches,
        )
        own = client_prototypes(
            model, trained.state, client.data, training.max_labels, num_classes, clip
        )
        shown = withheld(own, client.data, min_labels)
        if noise:
            noise_key = jax.random.fold_in(key, _NOISE)
            shown = perturbed(shown, noise_key, noise)
        num_bytes = 4 * shown.center.shape[-1] * jnp.sum(shown.is_there, dtype=jnp.int32)
        update = finished(training, shared, client, trained)
        return update._replace(upload=shown, sent={"prototypes": num_bytes})

    return federated_training(
        training,
        local_update,
        pseudo_label="unlabeled",
        send=helpers_sent,
        memory=prototype_store(model, num_classes, num_helpers, helper_interval),
        judge=by_prototypes(model, distance),
    )


def protofssl_loss(
    model: Model,
    helpers: Prototypes,
    sizes: Episodes,
    *,
    unlabeled_weight: float,
    temperature: float,
    distance: Distance,
    by_helpers: bool,
) -> Loss:
    """Eq. 8 on the rows of an episode, all of them embedded in one pass."""

    def loss(
        state: nnx.State, anchor: nnx.State, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, nnx.State]:
        del anchor
        embedding, moved = model.train_features(state, batch.x, key)
        embedding = embedding.astype(jnp.float32)
        first, second = sizes.ends
        label, used = batch.label, batch.used
        own = (
            joint_means(helpers)
            if by_helpers
            else class_means(embedding[:first], label[:first], used[:first], sizes.num_classes)
        )
        log_p = log_probabilities(embedding[first:], own, distance)
        log_p_labeled, log_p_unlabeled = log_p[: second - first], log_p[second - first :]
        target = mean_probabilities(embedding[second:], helpers, distance)
        target = sharpened(jnp.where(own.is_there, target, 0), temperature)
        target = jax.lax.stop_gradient(target)
        is_known = own.is_there[label[first:second]]  # always, but for helpers that lack a class
        supervised = -jnp.take_along_axis(log_p_labeled, label[first:second, None], axis=1)[:, 0]
        # 0 log 0 = 0, in the gradient too.
        unsupervised = -jnp.sum(target * jnp.where(own.is_there, log_p_unlabeled, 0), axis=-1)
        has_target = jnp.sum(target, axis=-1) > 0
        value = mean_where(supervised, used[first:second] & is_known)
        value += unlabeled_weight * mean_where(unsupervised, used[second:] & has_target)
        return value, moved

    return loss
