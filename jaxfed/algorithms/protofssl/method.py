"""ProtoFSSL: clients share prototypes and pseudo-label by them.

In each of E local epochs a client draws an episode (`jaxfed.training.local.batches`) and takes one step on

    c_k = mean of f(x) over its labeled support S_k                                                  (2)
    p(z; c)_k = exp(-d(f(z), c_k)) / sum_k' exp(-d(f(z), c_k'))                                   (3, 6)
    target(u) = sharpen( 1/|H| sum_{j in H} p(u; c_j) )       by its helpers' prototypes          (5, 7)
    loss = mean_{x in Q_L} CE(y, p(x; c)) + lambda mean_{u in Q_U} CE(target(u), p(u; c))              (8)

After training, the client computes its prototypes from all its labels, with its own network in evaluation
mode. The server averages networks as FedAvg and keeps the prototypes. The helpers H of a round are clients of
the previous round (`jaxfed.algorithms.protofssl.prototype_sharing`). A state classifies by the mean of p over
the prototypes of its last round's clients.

Differences from the paper, and details that it leaves open:

  * d is the Euclidean distance; `distance` "mean_squared" is the authors' code, whose logits are far smaller.
  * A class without a label in an episode's support has no prototype, and the targets are normalized over the
    classes that have one; an unlabeled example whose targets have none of them counts for nothing. A helper
    gives no probability to a class that it lacks. With `missing_class` "mean", as in the code, a helper has
    there the mean of the other helpers' prototypes of that class (in the code of all that the server still
    has), in pseudo-labels as in prediction; what targets say of classes outside the support is lost then, not
    shared out (Keras cuts log p at a constant there).
  * In round 1 nobody has prototypes, hence no unlabeled term; from round 2 on there is one, in the code too.
    With `unlabeled_after` R unlabeled examples count from round R + 1 on; 201 in the code's runs on its
    severest partition (its own flag counts rounds from 0).
  * Helpers are drawn among the clients of the round before. In the code they are the last H of a list of what
    clients sent in the last rounds, one or more: `helper_choice` "newest". That is the same with H clients a
    round or more; with fewer, older prototypes fill up. (A client in the list twice is here once.)
  * `prototypes` "global" is Algorithm 2 (B.1): the mean of the helpers' prototypes in place of S_k's. With
    `prototype_sums` this mean alone is shared, and stands for the helpers in Eq. 7 and at test time, too.
  * The proximal term of ProtoFSSL-FedProx has its gradient, `mu`; in the code it has none: mu = 0.
  * A client's prototypes are made by its own network, and used with others: by helped clients with theirs,
    and with the mean of networks by who classifies. Where clients move far in a round these do not fit: 22 %
    on CIFAR-10 where prototypes by the mean network have 33 (results/protofssl). With `prototype_network`
    "mean" the round's clients make their prototypes by the mean network, when it is known: one more download
    of it for each.
  * A client without labels makes no episode. It takes no step, and is left out of the server's mean.
  * Every client has an optimizer of its own, fresh in each round; the code's is one for all, always. Nearest
    to it is `training.client_optimizer` "kept": each client's own, always. The code's weight decay is
    declared and never added.

With `targets` "xclp" the helpers' answers of (7) give way to cross-client label propagation (XCLP:
`jaxfed.xclp`), which runs once a round over the cohort's points V = f(x), by the network that the round
starts from:

    Z = (I - alpha W)^-1 Y,   target(u) = one-hot(argmax_c Z_uc),   w(u) = 1 - entropy(Z_u) / log C
    loss = mean_{x in Q_L} CE(y, p(x; c)) + lambda mean_{u in Q_U} w(u) CE(target(u), p(u; c))

This works from round 1 on, since it needs no prototypes. No client receives any (except with `prototypes`
"global"). The messages of XCLP leave a client as well: its part of the codes' distances, and its masked
contribution to Z. The client still sends its own prototypes, because states classify by them.

C bits say which prototypes follow: those of classes with `min_labels` labels or more. Each is the mean
embedding of a class at this client, with N(0, sigma^2) noise on every number (B.4). The noise is drawn from
the experiment's seed: it measures the cost of noise, and does not protect from anybody who knows the seed.

The paper does not bound how far one example moves a prototype. With `clip` B, given the network f, replacing
one example by another of its class moves one prototype, a mean of n_k embeddings of length up to B, by
Delta = 2 B / n_k, n_k >= `min_labels`. So R releases with N(0, sigma^2) on every number are together
(epsilon, delta)-private (`jaxfed.privacy.gaussian`); a round's metrics have the `prototype_epsilon` of a
client that took part in all rounds so far. The guarantee rests on the condition "given the network". It
covers what prototypes reveal to somebody who has all networks, including the client's own, which was trained
on that example and is sent without noise. Without this condition the example moves f, hence every embedding,
and Delta is 2 B sqrt(C). Nothing is guaranteed about the network itself.

A client receives the network and its helpers' prototypes, with C bits for each helper. With `prototype_sums`
"masked" or "masked_resilient" helpers' prototypes leave under masks, and the server sees, keeps and sends
their mean (`jaxfed.algorithms.protofssl.prototype_sharing`, docs/threat-model.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import wraps
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.algorithms.protofssl.prototype_sharing import (
    by_prototypes,
    client_prototypes,
    helpers_sent,
    mean_store,
    of_the_last_round,
    perturbed,
    prototype_store,
    the_mean,
    withheld,
)
from jaxfed.algorithms.protofssl.settings import (
    Episode,
    Helpers,
    MissingClass,
    PrototypeTask,
    ReleasedCode,
    Shown,
    TargetSource,
    Unlabeled,
)
from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.method import method
from jaxfed.privacy.gaussian import epsilon_of, mean_sensitivity
from jaxfed.random_streams import Stream
from jaxfed.settings import NotNegative
from jaxfed.training.local.batches import Batches, Episodes
from jaxfed.training.local.client_data import ClientData
from jaxfed.training.local.losses import Batch, Loss, mean_where, proximal
from jaxfed.training.pseudo_labels.prototypes import (
    Distance,
    Prototypes,
    completed,
    joint_means,
    log_probabilities,
    mean_probabilities,
    message_bytes,
    sharpened,
    support_means,
)
from jaxfed.training.round.client_round import ClientRound, ClientUpdate, Shared
from jaxfed.training.round.round import federated_training
from jaxfed.training.round.server_hooks import Classifier, Messages, UploadStore, nothing_sent
from jaxfed.training.specification import Training

if TYPE_CHECKING:
    from jaxfed.models import Model


def _check_together(given: SimpleNamespace) -> None:
    if given.prototype_sums != "none" and given.helper_choice == "newest":
        raise UsageError(
            f"with prototype_sums={given.prototype_sums!r} the mean is of one round",
            key="helper_choice",
            value="newest",
            allowed="set prototype_sums='none'",
        )


@method(
    title="ProtoFSSL",
    cites="Kim, Park, Sohn, Shu, Kim, arXiv 2205.13921",
    leaves="its network's change, and a prototype of each class",
    on_network=True,
    fields={
        "episode": Episode,
        "unlabeled": Unlabeled,
        "helpers": Helpers,
        "shown": Shown,
        "released_code": ReleasedCode,
    },
    together=_check_together,
    pseudo_label=lambda given: "unlabeled" if given.targets == "helpers" else "xclp",
    unread=("augment", "pointwise"),
    ignores=("batches", "batch_size", "local_steps", "unlabeled_ratio"),
    takes=("training", "task"),
)
def protofssl(
    *,
    training: Training,
    task: PrototypeTask,
    mu: NotNegative = 0.0,
    episode: Episode,
    unlabeled: Unlabeled,
    helpers: Helpers,
    shown: Shown,
    released_code: ReleasedCode,
) -> FederatedAlgorithm:
    """ProtoFSSL with labels at clients.

    The fields of the last five are keywords (`jaxfed.algorithms.protofssl.settings`).

    Args:
        training: the ingredients; of `local.batches` the epochs count, E. `local.augment` and
            `local.pointwise` are refused. The embedding f is the network up to its last layer
            (`Model.features`), which a network without a head has no more of.
        task: the classes, and the network without a head.
        mu: of the proximal term; above 0 it is ProtoFSSL-FedProx.
        episode: numbers of examples in a step.
        unlabeled: targets and weight of unlabeled examples.
        helpers: choice of helpers, and what of them is shared.
        shown: prototypes that a client shows.
        released_code: what the authors' code does otherwise.

    Raises:
        UsageError: a value that is not allowed.

    Cost: a step is one pass over an episode, forward and back; a round one more forward pass over the labels.
    """
    task.check_labels(support=episode.support, min_labels=shown.min_labels)
    training = _without_head(training, task)
    sizes = episode.sizes(task.num_classes)
    batches = Batches("episodes", sizes.capacity, training.local.batches.epochs, episodes=sizes)
    training = training.with_local(batches=batches, labeled_batches=batches)
    parts = _ProtoFSSL(training, task, sizes, mu, unlabeled, helpers, shown, released_code)
    algorithm = federated_training(
        training,
        parts.local_update,
        pseudo_label="unlabeled" if unlabeled.targets == "helpers" else "xclp",
        messages=Messages(
            helpers_sent if parts.asks_helpers else nothing_sent,
            after_mean=parts.show if shown.prototype_network == "mean" else None,
        ),
        hooks=(parts.memory(),),
        classifier=parts.classifier(),
    )
    return _with_epsilon(algorithm, shown) if shown.noise and shown.clip else algorithm


def _with_epsilon(algorithm: FederatedAlgorithm, shown: Shown) -> FederatedAlgorithm:
    """Add `prototype_epsilon`, after all rounds so far, to the metrics of an algorithm's rounds."""
    sensitivity = mean_sensitivity(shown.clip, shown.min_labels)

    @wraps(algorithm.round)
    def round(state: Any, cohort: Cohort, key: jax.Array) -> tuple[Any, Metrics]:
        after, metrics = algorithm.round(state, cohort, key)
        epsilon = epsilon_of(shown.delta, sensitivity, shown.noise, releases=int(after.round))
        return after, {**metrics, "prototype_epsilon": epsilon}

    return algorithm._replace(round=round, sides=None)


@dataclass(frozen=True, eq=False)
class _ProtoFSSL:
    """The parts of a round; attributes as the keywords of `protofssl`, `sizes` of its episodes."""

    training: Training
    task: PrototypeTask
    sizes: Episodes
    mu: float
    unlabeled: Unlabeled
    helpers: Helpers
    shown: Shown
    released_code: ReleasedCode

    @property
    def asks_helpers(self) -> bool:
        """True if clients receive prototypes."""
        return self.unlabeled.targets == "helpers" or self.helpers.prototypes == "global"

    def local_update(self, client: ClientRound) -> ClientUpdate:
        """Local steps on episodes; then the client shows its prototypes."""
        client = client._replace(data=_with_an_episode(client.data))
        trained = client.steps(self.loss(client.shared, client.received))
        update = client.update(trained)
        if self.shown.prototype_network == "mean":
            return update
        upload, sent = self.show(trained.state, client.data, client.key)
        return update._replace(upload=upload, sent=sent)

    def loss(self, shared: Shared, helpers: Prototypes) -> Loss:
        """Equation 8, with the proximal term of ProtoFSSL-FedProx."""
        unlabeled, missing_class = self.unlabeled, self.released_code.missing_class
        loss = prototype_loss(
            self.training.model,
            completed(helpers) if self.asks_helpers and missing_class == "mean" else helpers,
            self.sizes,
            unlabeled_weight=jnp.where(
                shared.round < unlabeled.unlabeled_after, 0, unlabeled.unlabeled_weight
            ),
            temperature=unlabeled.temperature,
            distance=self.released_code.distance,
            by_helpers=self.helpers.prototypes == "global",
            missing_class=missing_class,
            targets=unlabeled.targets,
        )
        return proximal(loss, self.mu) if self.mu else loss

    def show(
        self, state: nnx.State, data: ClientData, key: jax.Array
    ) -> tuple[Prototypes, dict[str, jax.Array]]:
        """Prototypes of a client's labels by this network as they are sent, and their bytes."""
        task, shown = self.task, self.shown
        own = client_prototypes(
            *(self.training.model, state, data, task.max_labels, task.num_classes, shown.clip)
        )
        sent = withheld(own, data, shown.min_labels)
        if shown.noise:
            noise_key = jax.random.fold_in(key, Stream.NOISE)
            sent = perturbed(sent, noise_key, shown.noise)
        # What becomes part of a mean is counted where that is made.
        return sent, {} if self.helpers.shares_mean else {"prototypes": message_bytes(sent)}

    def memory(self) -> UploadStore:
        """The server's store of prototypes, which chooses the helpers."""
        helpers = self.helpers
        of_model = self.training.model, self.task.num_classes
        chosen = helpers.num_helpers, helpers.helper_interval
        if helpers.shares_mean:
            return mean_store(*of_model, *chosen, helpers.prototype_sums)
        host = self.training.execution.host
        return prototype_store(*of_model, *chosen, self.released_code.helper_choice, host)

    def classifier(self) -> Classifier:
        """Classification by the prototypes that the server has."""
        return by_prototypes(
            self.training.model,
            self.released_code.distance,
            the_mean if self.helpers.shares_mean else of_the_last_round,
            complete=self.released_code.missing_class == "mean",
        )


def _without_head(training: Training, task: PrototypeTask) -> Training:
    """The training specification of f: a last layer would be averaged and never trained."""
    if task.body is not None and training.initial_model is None:
        training = replace(training, model=task.body())
    if not jax.tree.leaves(jax.eval_shape(training.model.init, jax.random.key(0))):
        raise UsageError(
            "has no layer before its last one, whose inputs make prototypes", key="model"
        )
    return training


def _with_an_episode(data: ClientData) -> ClientData:
    """The data; a client without labels, which takes no step, has nothing to train on and so no weight."""
    return data._replace(label=jnp.where(jnp.any(data.mask & data.is_labeled), data.label, -1))


def prototype_loss(
    model: Model,
    helpers: Prototypes,
    sizes: Episodes,
    *,
    unlabeled_weight: float | jax.Array,
    temperature: float,
    distance: Distance,
    by_helpers: bool = False,
    missing_class: MissingClass = "leave_out",
    targets: TargetSource = "helpers",
) -> Loss:
    """Equation 8, with weights w(u) of targets, on the rows of an episode, embedded in one pass.

    Args:
        model: a model without its last layer.
        helpers: prototypes [H, C, D] that the client received.
        sizes: of the episode.
        unlabeled_weight: lambda.
        temperature: T.
        distance: d.
        by_helpers: use the mean of the helpers' prototypes in place of the support's.
        missing_class: treatment of a class without a prototype (`jaxfed.algorithms.protofssl`).
        targets: source of the unlabeled examples' targets: predictions by the helpers' prototypes, or the
            batch's labels with their weights.
    """

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
            else support_means(embedding[:first], used[:first], sizes.num_classes)
        )
        log_p = log_probabilities(embedding[first:], own, distance)
        log_p_labeled, log_p_unlabeled = log_p[: second - first], log_p[second - first :]
        if targets == "helpers":
            target = mean_probabilities(embedding[second:], helpers, distance)
            weight = jnp.ones(sizes.unlabeled)
        else:
            target = jax.nn.one_hot(label[second:], sizes.num_classes)
            weight = batch.weight[second:]
        if missing_class == "leave_out":
            target = sharpened(jnp.where(own.is_there, target, 0), temperature)
        else:
            target = jnp.where(own.is_there, sharpened(target, temperature), 0)
        target = jax.lax.stop_gradient(target)
        is_known = own.is_there[label[first:second]]  # False only if helpers lack a class
        supervised = -jnp.take_along_axis(log_p_labeled, label[first:second, None], axis=1)[:, 0]
        # 0 log 0 = 0, in the gradient too.
        unsupervised = -jnp.sum(target * jnp.where(own.is_there, log_p_unlabeled, 0), axis=-1)
        has_target = jnp.sum(target, axis=-1) > 0
        value = mean_where(supervised, used[first:second] & is_known)
        value += unlabeled_weight * mean_where(weight * unsupervised, used[second:] & has_target)
        return value, moved

    return loss
