"""ProtoFSSL: clients share prototypes and pseudo-label by them.

In each of E local epochs a client draws an episode (`jaxfed.training.local.batches`) and takes one step on

    c_k = mean of f(x) over its labeled support S_k                                                  (2)
    p(z; c)_k = exp(-d(f(z), c_k)) / sum_k' exp(-d(f(z), c_k'))                                   (3, 6)
    target(u) = sharpen( 1/|H| sum_{j in H} p(u; c_j) )       by its helpers' prototypes          (5, 7)
    loss = mean_{x in Q_L} CE(y, p(x; c)) + lambda mean_{u in Q_U} CE(target(u), p(u; c))              (8)

After training, the client computes its prototypes from all its labels, with its own network in evaluation
mode. The server averages networks as FedAvg and keeps each client's newest prototypes. Up to H clients of a
round, drawn at random, help those of the next round; with an interval R_H for R_H rounds, with their
prototypes of that time. A state classifies by the mean of p over the prototypes of its last round's clients.

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
    `prototype_sums` this mean alone is shared, and stands for the helpers in Eq. 7 and at test time, too:

        c_k = 1 / n_k sum_{j in H, j shows k} c_jk,     n_k >= 2 the helpers that show class k

    (B.1 divides by |M_r|, however many of the helpers have the class; a sum over fewer helpers would then be
    nearer to 0.) A class that only one helper shows has no mean: it would be that client's own prototype.
    Only helpers send anything then, in rounds in which helpers are renewed.
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
(epsilon, delta)-private (`jaxfed.privacy.composition`); a round's metrics have the `prototype_epsilon` of a
client that took part in all rounds so far. The guarantee rests on the condition "given the network". It
covers what prototypes reveal to somebody who has all networks, including the client's own, which was trained
on that example and is sent without noise. Without this condition the example moves f, hence every embedding,
and Delta is 2 B sqrt(C). Nothing is guaranteed about the network itself.

A client receives the network and its helpers' prototypes, with C bits for each helper. With `prototype_sums`
"masked" or "masked_resilient" helpers' prototypes leave under masks, and the server sees, keeps and sends
their mean (docs/threat-model.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, wraps
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.algorithms.protofssl.settings import (
    Episode,
    HelperChoice,
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
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.communication import Communication
from jaxfed.federation.method import method, with_attributes
from jaxfed.privacy.composition import gaussian_epsilon, mean_sensitivity
from jaxfed.random_streams import Stream
from jaxfed.settings import NotNegative
from jaxfed.training import server_state
from jaxfed.training.consensus import in_fresh_session
from jaxfed.training.local.batches import Batches, ClientData, Episodes, class_counts
from jaxfed.training.local.losses import Batch, Loss, mean_where, proximal
from jaxfed.training.pseudo_labels.prototypes import (
    Distance,
    Prototypes,
    class_means,
    completed,
    embedding_size,
    joint_means,
    log_probabilities,
    mean_probabilities,
    message_bytes,
    nothing_shown,
    sharpened,
    support_means,
)
from jaxfed.training.round.client_round import ClientRound, ClientUpdate, Shared
from jaxfed.training.round.parts import Classifier, Messages, UploadStore, nothing_sent
from jaxfed.training.round.round import federated_training
from jaxfed.training.server_state import ServerState, client_draws
from jaxfed.training.specification import Training

if TYPE_CHECKING:
    from jaxfed.models import Model

_LEAST = 2  # helpers that show a class of a mean


def _check_together(settings: SimpleNamespace) -> None:
    if settings.prototype_sums != "none" and settings.helper_choice == "newest":
        raise UsageError(
            f"with prototype_sums={settings.prototype_sums!r} the mean is of one round",
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
    pseudo_label=lambda settings: "unlabeled" if settings.targets == "helpers" else "xclp",
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

    Cost: a step is one pass over an episode, forward and back; a round one more forward pass over the labels.
    """
    task.check_labels(support=episode.support, min_labels=shown.min_labels)
    training = _without_head(training, task)
    sizes = Episodes(task.num_classes, episode.support, episode.query, episode.unlabeled_query)
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
        epsilon = gaussian_epsilon(shown.delta, sensitivity, shown.noise, releases=int(after.round))
        return after, {**metrics, "prototype_epsilon": epsilon}

    return algorithm._replace(round=with_attributes(round, on_network=None))


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
        return self.unlabeled.targets == "helpers" or self.helpers.prototypes == "global"

    def local_update(self, client: ClientRound) -> ClientUpdate:
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
        prototypes = client_prototypes(
            *(self.training.model, state, data, task.max_labels, task.num_classes, shown.clip)
        )
        sent = withheld(prototypes, data, shown.min_labels)
        if shown.noise:
            noise_key = jax.random.fold_in(key, Stream.NOISE)
            sent = perturbed(sent, noise_key, shown.noise)
        # What becomes part of a mean is counted where that is made.
        return sent, {} if self.helpers.shares_mean else {"prototypes": message_bytes(sent)}

    def memory(self) -> UploadStore:
        helpers = self.helpers
        of_model = self.training.model, self.task.num_classes
        chosen = helpers.num_helpers, helpers.helper_interval
        if helpers.shares_mean:
            return mean_store(*of_model, *chosen, helpers.prototype_sums)
        return prototype_store(*of_model, *chosen, self.released_code.helper_choice)

    def classifier(self) -> Classifier:
        return by_prototypes(
            self.training.model,
            self.released_code.distance,
            (lambda store: store.helpers) if self.helpers.shares_mean else of_the_last_round,
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
        prototypes = (
            joint_means(helpers)
            if by_helpers
            else support_means(embedding[:first], used[:first], sizes.num_classes)
        )
        log_p = log_probabilities(embedding[first:], prototypes, distance)
        log_p_labeled, log_p_unlabeled = log_p[: second - first], log_p[second - first :]
        if targets == "helpers":
            target = mean_probabilities(embedding[second:], helpers, distance)
            weight = jnp.ones(sizes.unlabeled)
        else:
            target = jax.nn.one_hot(label[second:], sizes.num_classes)
            weight = batch.weight[second:]
        if missing_class == "leave_out":
            target = sharpened(jnp.where(prototypes.is_present, target, 0), temperature)
        else:
            target = jnp.where(prototypes.is_present, sharpened(target, temperature), 0)
        target = jax.lax.stop_gradient(target)
        is_known = prototypes.is_present[label[first:second]]  # False only if helpers lack a class
        supervised = -jnp.take_along_axis(log_p_labeled, label[first:second, None], axis=1)[:, 0]
        # 0 log 0 = 0, in the gradient too.
        unsupervised = -jnp.sum(
            target * jnp.where(prototypes.is_present, log_p_unlabeled, 0), axis=-1
        )
        has_target = jnp.sum(target, axis=-1) > 0
        value = mean_where(supervised, used[first:second] & is_known)
        value += unlabeled_weight * mean_where(weight * unsupervised, used[second:] & has_target)
        return value, moved

    return loss


class Store(NamedTuple):
    """The server's store: the prototypes of the current helpers and of all clients.

    Fields:
        helpers: prototypes [min(H, M), C, D] of the clients that help in this round; their mean alone,
            [1, C, D], if it is shared.
        latest: every client's newest, [M, C, D]; () with the mean alone.
        round: int32 [M], the round they are of; 0 for none. () with the mean alone.
    """

    helpers: Prototypes
    latest: Any = ()
    round: Any = ()


def prototype_store(
    model: Model,
    num_classes: int,
    num_helpers: int,
    interval: int,
    choice: HelperChoice = "previous_round",
) -> UploadStore:
    """The store as the server's memory; helpers are chosen after rounds 1, 1 + R_H, 1 + 2 R_H, ..."""

    def init(state: nnx.State, federation: Federation, key: jax.Array) -> Store:
        del key
        dim, clients = embedding_size(model, state, federation), federation.num_clients
        nothing = jax.tree.map(lambda leaf: leaf[0], nothing_shown(1, num_classes, dim))
        latest, newest = server_state.rows_for(clients, (nothing, jnp.int32(0)))
        return Store(nothing_shown(min(num_helpers, clients), num_classes, dim), latest, newest)

    choose = jax.jit(chosen, static_argnames="num_helpers")

    def update(
        store: Store,
        client_id: jax.Array,
        shown: Prototypes,
        rounds: jax.Array,
        key: jax.Array,
        communication: Communication,
    ) -> Store:
        del communication  # clients have counted their own messages
        when = np.full(len(client_id), rounds)
        latest, newest = server_state.scatter((store.latest, store.round), client_id, (shown, when))
        if (int(rounds) - 1) % interval:
            return Store(store.helpers, latest, newest)
        age, most = None, len(store.helpers.is_present)
        if choice == "newest":
            ids = newest_clients(latest.is_present, newest, most, len(client_id))
            shown, age = server_state.gather(latest, ids), rounds - server_state.gather(newest, ids)
            client_id = jnp.asarray(ids)
        return Store(choose(key, client_id, shown, num_helpers=most, age=age), latest, newest)

    return UploadStore(init, update)


def newest_clients(is_present: Any, newest: Any, num_helpers: int, cohort_size: int) -> np.ndarray:
    """Return the clients among which the newest H helpers are, int32 [H + K]; -1 in unused entries.

    These are all clients with prototypes as new as those of the H-th newest one: fewer than H newer ones, and
    some of one round's K.

    Args:
        is_present: bool [M, C], the prototypes of clients.
        newest: int32 [M], their rounds.
        num_helpers: H.
        cohort_size: K.
    """
    ids = server_state.took_part(newest)
    ids = ids[np.asarray(server_state.gather(is_present, ids)).any(axis=1)]
    when = np.asarray(server_state.gather(newest, ids))
    if len(ids) > num_helpers:
        ids = ids[when >= np.partition(when, -num_helpers)[-num_helpers]]
    padded_ids = np.full(num_helpers + cohort_size, -1, np.int32)
    padded_ids[: len(ids)] = ids
    return padded_ids


def helpers_sent(state: ServerState, cohort: Cohort, communication: Communication) -> Prototypes:
    """Send each client of the cohort the same helpers, [K, H, C, D]; existing prototypes count as bytes."""
    helpers: Prototypes = state.memory.helpers
    num_clients = int(np.sum(np.asarray(cohort.client_id) >= 0))
    num_bytes = int(np.sum(message_bytes(helpers)))
    communication.down("prototypes", num_clients * num_bytes)
    return server_state.stacked_for(len(cohort.client_id), helpers)


def client_prototypes(
    model: Model, state: nnx.State, data: ClientData, max_labels: int, num_classes: int, clip: float
) -> Prototypes:
    """Return the prototypes of a client's labels.

    Labeled examples are a client's first ones, `max_labels` at most; with 0 all its rows are read. With a
    clip B above 0 each embedding z counts as z min(1, B / |z|).
    """
    rows = slice(0, max_labels or None)
    embedding = model.features(state, data.x[rows]).astype(jnp.float32)
    if clip:
        length = jnp.linalg.norm(embedding, axis=-1, keepdims=True)
        embedding = embedding * jnp.minimum(1, clip / jnp.maximum(length, 1e-12))
    return class_means(
        embedding, data.label[rows], data.is_labeled[rows] & data.mask[rows], num_classes
    )


def withheld(prototypes: Prototypes, data: ClientData, min_labels: int) -> Prototypes:
    """Drop the prototypes of classes with fewer than `min_labels` labels."""
    count = class_counts(data.label, data.is_labeled & data.mask, len(prototypes.is_present))
    shown = prototypes.is_present & (count >= min_labels)
    return Prototypes(jnp.where(shown[:, None], prototypes.center, 0), shown)


def perturbed(shown: Prototypes, key: jax.Array, sigma: float) -> Prototypes:
    """Add N(0, sigma^2) to every number of the prototypes."""
    noise = sigma * jax.random.normal(key, shown.center.shape)
    return shown._replace(center=shown.center + jnp.where(shown.is_present[:, None], noise, 0))


def chosen(
    key: jax.Array,
    client_id: jax.Array,
    shown: Prototypes,
    num_helpers: int,
    age: jax.Array | None = None,
) -> Prototypes:
    """Draw H of the clients that show any prototype: [H, C, D], empty if there are fewer; see `drawn`."""
    rows, is_one = drawn(key, client_id, shown.is_present, num_helpers, age)
    center = jnp.where(is_one[:, None, None], shown.center[rows], 0)
    return Prototypes(center, shown.is_present[rows] & is_one[:, None])


def drawn(
    key: jax.Array,
    client_id: jax.Array,
    is_present: jax.Array,
    num_helpers: int,
    age: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Draw the rows int32 [H] of the helping clients, and bool [H], False in slots without a client.

    With an `age` of their prototypes, int32 [K] from 0 on, the newest come first.
    """
    can_help = (client_id >= 0) & jnp.any(is_present, axis=-1)
    age = jnp.zeros(client_id.shape, jnp.int32) if age is None else age
    draws = client_draws(key, client_id)
    order = jnp.lexsort((draws, jnp.where(can_help, age, jnp.iinfo(jnp.int32).max)))
    rows = order[jnp.minimum(jnp.arange(num_helpers), len(order) - 1)]
    return rows, jnp.arange(num_helpers) < jnp.sum(can_help)


def of_the_last_round(store: Store) -> Prototypes:
    """Return the prototypes of the last round's clients."""
    ids = server_state.took_part(store.round)
    newest = np.asarray(server_state.gather(store.round, ids))
    rows = ids[newest == newest.max()] if newest.any() else np.zeros(1, int)
    return jax.tree.map(lambda leaf: leaf[rows], store.latest)


def by_prototypes(
    model: Model,
    distance: Distance,
    known: Callable[[Any], Prototypes] = of_the_last_round,
    *,
    complete: bool = False,
) -> Classifier:
    """Return the classifier by the mean of p over the `known` prototypes; uniform before there are any.

    If `complete`, prototypes are `completed` first. A single client's upload is classified by the prototypes
    that it showed or, if the server stores none per client, by the mean.
    """

    def needed(state: ServerState) -> tuple[nnx.State, Prototypes]:
        return state.model, known(state.memory)

    def probabilities(needed: tuple[nnx.State, Prototypes], x: jax.Array) -> jax.Array:
        state, prototypes = needed
        embedding = model.features(state, x).astype(jnp.float32)
        prototypes = completed(prototypes) if complete else prototypes
        mean = mean_probabilities(embedding, prototypes, distance)
        return jnp.where(jnp.any(prototypes.is_present), mean, 1 / mean.shape[-1])

    def of_client(state: ServerState, sent: nnx.State, client: int) -> tuple[nnx.State, Prototypes]:
        if not state.memory.latest:
            return sent, known(state.memory)
        rows = np.asarray([client])
        return sent, jax.tree.map(lambda leaf: leaf[rows], state.memory.latest)

    return Classifier(needed, probabilities, of_client)


def mean_store(
    model: Model, num_classes: int, num_helpers: int, interval: int, sums: str
) -> UploadStore:
    """The store; helpers are drawn after rounds 1, 1 + R_H, 1 + 2 R_H, ...

    `sums` is a key of `SUMS`. A helper sends its summand and nothing else.
    """
    means_of = SUMS[sums]
    draw = jax.jit(partial(drawn, num_helpers=num_helpers))

    def init(state: nnx.State, federation: Federation, key: jax.Array) -> Store:
        del key
        dim = embedding_size(model, state, federation)
        return Store(nothing_shown(1, num_classes, dim))

    def update(
        store: Store,
        client_id: jax.Array,
        shown: Prototypes,
        rounds: jax.Array,
        key: jax.Array,
        communication: Communication,
    ) -> Store:
        if (int(rounds) - 1) % interval:
            return store
        rows, is_one = map(np.asarray, draw(key, client_id, shown.is_present))
        helpers = Prototypes(*(np.asarray(leaf)[rows[is_one]] for leaf in shown))
        center, count = means_of(helpers, communication)
        mean = jnp.asarray(center, jnp.float32)[None], jnp.asarray(count > 0)[None]
        return Store(Prototypes(*mean))

    return UploadStore(init, update)


def plaintext_means(
    helpers: Prototypes, communication: Communication
) -> tuple[np.ndarray, np.ndarray]:
    """Means float64 [C, D] and n_k int [C], 0 if too few show a class; the server sees all prototypes."""
    communication.up("prototypes", int(np.sum(message_bytes(helpers))))
    count = np.sum(helpers.is_present, axis=0)
    count = np.where(count >= _LEAST, count, 0)
    total = np.sum(
        helpers.center,
        axis=0,
        where=helpers.is_present[..., None] & (count > 0)[:, None],
        dtype=float,
    )
    return total / np.maximum(count, 1)[:, None], count


def secure_means(
    helpers: Prototypes, communication: Communication, *, is_resilient: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The same by `jaxfed.secure.class_means`, in a fresh session."""
    from jaxfed.secure.class_means import Shown, class_means

    if len(helpers.center) < _LEAST:
        return plaintext_means(Prototypes(*(leaf[:0] for leaf in helpers)), communication)
    shown = list(map(Shown, *map(np.asarray, helpers)))
    means = in_fresh_session(
        class_means, shown, communication, least=_LEAST, is_resilient=is_resilient
    )
    return means.center, means.contributors


SUMS: dict[str, Callable[..., tuple[np.ndarray, np.ndarray]]] = {
    "plaintext": plaintext_means,
    "masked": partial(secure_means, is_resilient=False),
    "masked_resilient": partial(secure_means, is_resilient=True),
}
