"""ProtoFSSL (Kim, Park, Sohn, Shu, Kim, arXiv 2205.13921): clients share prototypes and pseudo-label by them.

In every one of E local epochs a client draws an episode (`jaxfed.training.local.episodes`) and takes one step
on

    c_k = mean of f(x) over its labeled support S_k                                                  (2)
    p(z; c)_k = exp(-d(f(z), c_k)) / sum_k' exp(-d(f(z), c_k'))                                   (3, 6)
    target(u) = sharpen( 1/|H| sum_{j in H} p(u; c_j) )       by its helpers' prototypes          (5, 7)
    loss = mean_{x in Q_L} CE(y, p(x; c)) + lambda mean_{u in Q_U} CE(target(u), p(u; c))              (8)

and afterwards makes its prototypes anew, of all its labels, with its own network in evaluation mode. The
server averages networks as FedAvg and keeps the prototypes; the helpers H of a round are clients of the round
before (`jaxfed.algorithms.protofssl.prototype_sharing`). A state classifies by the mean of p over the
prototypes of its last round's clients.

Said otherwise than in the paper, or left open by it:

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

From round 1 on, since it asks no prototypes. Then no client receives any (but with `prototypes` "global"),
and what XCLP sends leaves a client besides: its points' part in the codes' distances, and its masked
contribution to Z. It sends its own prototypes all the same: states classify by them.

Leaves a client: its network's change, C bits that say which prototypes follow, and those of classes with
`min_labels` labels or more, with N(0, sigma^2) noise on every number (B.4), drawn from the experiment's
seed: it shows what noise costs, and protects nobody from those who know the seed. Each is the mean embedding
of a class at this client; the paper has no bound on what one example moves. With `clip` B it is 2 B / n_k, by
a network that is given, and the metrics of a round have the epsilon, at `delta`, of a client that took part
in all (`prototype_epsilon`: `jaxfed.algorithms.protofssl.noise_accounting`, which says what that leaves out).
It receives the network and its helpers' prototypes, C bits with each. With `prototype_sums` "masked" or
"masked_resilient" helpers' prototypes leave under masks, and the server sees, keeps and sends their mean
(`jaxfed.algorithms.protofssl.prototype_means`, docs/threat-model.md).
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Literal, get_args

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.algorithms.protofssl.noise_accounting import with_epsilon
from jaxfed.algorithms.protofssl.prototype_loss import MissingClass, Targets, prototype_loss
from jaxfed.algorithms.protofssl.prototype_means import SUMS, mean_store, the_mean
from jaxfed.algorithms.protofssl.prototype_sharing import (
    HelperChoice,
    by_prototypes,
    client_prototypes,
    helpers_sent,
    message_bytes,
    of_the_last_round,
    perturbed,
    prototype_store,
    withheld,
)
from jaxfed.algorithms.protofssl.prototype_task import PrototypeTask
from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.rules import NOT_NEGATIVE, POSITIVE, at_least, between, keywords, one_of
from jaxfed.training.ingredients import Training
from jaxfed.training.local.batches import Batches
from jaxfed.training.local.client_data import ClientData
from jaxfed.training.local.episodes import Episodes
from jaxfed.training.local.local_update import ClientUpdate
from jaxfed.training.local.losses import proximal
from jaxfed.training.needs import needs
from jaxfed.training.pseudo_labels.prototypes import DISTANCES, Distance, Prototypes, completed
from jaxfed.training.round.client_round import Client, Shared, finished, local_steps
from jaxfed.training.round.round import federated_training
from jaxfed.training.round.server_roles import Messages, nothing_sent

PrototypeNetwork = Literal["own", "mean"]

_NOISE = 0x6E6F6973  # sets the noise apart from local steps


def _check_together(given: SimpleNamespace) -> None:
    sums = given.prototype_sums
    if sums == "none":
        return
    if given.prototypes != "global":
        raise UsageError(
            f"does not go with prototypes={given.prototypes!r}",
            key="prototype_sums",
            value=sums,
            allowed="set prototypes='global'",
        )
    if given.helper_choice == "newest":
        raise UsageError(
            f"with prototype_sums={sums!r} the mean is of one round",
            key="helper_choice",
            value="newest",
            allowed="set prototype_sums='none'",
        )
    if given.num_helpers < 2:
        raise UsageError(
            f"with prototype_sums={sums!r} a mean is of two helpers at least",
            key="num_helpers",
            value=given.num_helpers,
            allowed="use 2 or more",
        )


@keywords(
    _check_together,
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
    targets=one_of(get_args(Targets)),
    missing_class=one_of(get_args(MissingClass)),
    helper_choice=one_of(get_args(HelperChoice)),
    unlabeled_after=at_least(0),
    min_labels=at_least(1),
    noise=NOT_NEGATIVE,
    clip=NOT_NEGATIVE,
    prototype_sums=one_of(("none", *SUMS)),
    prototype_network=one_of(get_args(PrototypeNetwork)),
    delta=between(0, 1, closed=False),
)
@needs(pseudo_label=lambda given: "unlabeled" if given.targets == "helpers" else "xclp")
def protofssl(
    *,
    training: Training,
    task: PrototypeTask,
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
    targets: Targets = "helpers",
    missing_class: MissingClass = "leave_out",
    helper_choice: HelperChoice = "previous_round",
    unlabeled_after: int = 0,
    min_labels: int = 1,
    noise: float = 0.0,
    clip: float = 0.0,
    prototype_sums: str = "none",
    prototype_network: PrototypeNetwork = "own",
    delta: float = 1e-5,
) -> FederatedAlgorithm:
    """ProtoFSSL with labels at clients; defaults are its Table 5.

    Args:
        training: the ingredients; of `local.batches` the epochs count, E. The embedding f is the network up
            to its last layer (`Model.features`), which a network without a head has no more of.
        task: the classes, and the network without a head.
        support: n_S, of each class.
        query: n_Q, of each class.
        unlabeled_query: n_U.
        unlabeled_weight: lambda.
        temperature: T.
        num_helpers: H at most.
        helper_interval: rounds between two choices of helpers.
        mu: of the proximal term; above 0 it is ProtoFSSL-FedProx.
        distance: d.
        prototypes: what stands for a class in the loss, "local" of the episode's support or "global".
        targets: whose pseudo-labels unlabeled examples have.
        missing_class: what becomes of classes without a prototype.
        helper_choice: who helps.
        unlabeled_after: rounds in which unlabeled examples do not count yet.
        min_labels: a client withholds prototypes of classes with fewer labels (7.1).
        noise: sigma.
        clip: embeddings that make prototypes to be shown are made no longer than this; 0 leaves them.
        prototype_sums: "none": helpers' prototypes reach the clients one by one. Else, with "global" ones,
            their mean does, by sums that are "plaintext", "masked" or "masked_resilient".
        prototype_network: whose embeddings a client shows the means of: its own, or those of the mean that
            the round has come to.
        delta: of what noise promises.

    Raises:
        UsageError: a value that is not allowed.

    Cost: a step is one pass over an episode, forward and back; a round one more forward pass over the labels.
    """
    shares_mean = prototype_sums != "none"
    model = training.model
    if task.body is not None and training.initial_model is None:
        model = task.body()  # a dense layer would be averaged and never trained
        training = replace(training, model=model)
    if not jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0))):
        raise UsageError(
            "has no layer before its last one, whose inputs make prototypes", key="model"
        )
    num_classes = task.num_classes
    sizes = Episodes(num_classes, support, query, unlabeled_query)
    batches = Batches("episodes", sizes.capacity, training.local.batches.epochs, episodes=sizes)
    training = training.with_local(batches=batches, labeled_batches=batches)
    asks_helpers = targets == "helpers" or prototypes == "global"

    def local_update(
        shared: Shared, client: Client, key: jax.Array, *, batches: Batches
    ) -> ClientUpdate:
        client = client._replace(data=_with_an_episode(client.data))
        helpers = client.received
        loss = prototype_loss(
            model,
            completed(helpers) if asks_helpers and missing_class == "mean" else helpers,
            sizes,
            unlabeled_weight=jnp.where(shared.round < unlabeled_after, 0, unlabeled_weight),
            temperature=temperature,
            distance=distance,
            by_helpers=prototypes == "global",
            missing_class=missing_class,
            targets=targets,
        )
        loss = proximal(loss, mu) if mu else loss
        trained = local_steps(training, shared, client, key, loss=loss, batches=batches)
        update = finished(training, shared, client, trained)
        if prototype_network == "mean":
            return update
        upload, sent = show(trained.state, client.data, key)
        return update._replace(upload=upload, sent=sent)

    def show(
        state: nnx.State, data: ClientData, key: jax.Array
    ) -> tuple[Prototypes, dict[str, jax.Array]]:
        own = client_prototypes(model, state, data, task.max_labels, num_classes, clip)
        shown = withheld(own, data, min_labels)
        if noise:
            noise_key = jax.random.fold_in(key, _NOISE)
            shown = perturbed(shown, noise_key, noise)
        # What becomes part of a mean is counted where that is made.
        return shown, {} if shares_mean else {"prototypes": message_bytes(shown)}

    kept = model, num_classes, num_helpers, helper_interval
    memory = (
        mean_store(*kept, prototype_sums) if shares_mean else prototype_store(*kept, helper_choice)
    )
    known = the_mean if shares_mean else of_the_last_round
    algorithm = federated_training(
        training,
        local_update,
        pseudo_label="unlabeled" if targets == "helpers" else "xclp",
        messages=Messages(
            helpers_sent if asks_helpers else nothing_sent,
            after_mean=show if prototype_network == "mean" else None,
        ),
        hooks=(memory,),
        judge=by_prototypes(model, distance, known, complete=missing_class == "mean"),
    )
    if not (noise and clip):
        return algorithm
    return with_epsilon(algorithm, clip=clip, noise=noise, min_labels=min_labels, delta=delta)


def _with_an_episode(data: ClientData) -> ClientData:
    """The data; a client without labels, which takes no step, has nothing to train on and so no weight."""
    return data._replace(label=jnp.where(jnp.any(data.mask & data.is_labeled), data.label, -1))
