"""FedRGD, or SSFL (Zhang, Yang, Yao, Yan, Gonzalez, Ramchandran, Mahoney, IEEE Big Data 2021).

Labels at the server (the paper). Server and clients train in parallel, then models are averaged in random
groups (`jaxfed.training.server.group_averaging`). f_k is client k's network; weak and strong views are as in
FixMatch:

    server     w_s <- w;     steps on  mean CE(f_s(weak(x)), y)
    client     w_k <- w_i of its group;   steps on  mean 1[max p >= tau] CE(f_k(strong(u)), argmax p),
                             p = softmax(f_k(weak(u))) held fixed
    groups     w_i <- (w_s + sum_{k in G_i} w_k) / (|G_i| + 1),    w <- 1/S sum_i w_i

Labels at clients (the authors' code, and the setting in which ProtoFSSL quotes it): no w_s; the client's loss
has CE on its own labels beside the term above, both of weight 1.

The paper trains with group normalization in place of batch normalization (the model's `norm`), S = 2, 16
steps a round (`training.local_steps`), SGD with Nesterov's momentum 0.9. Groups are drawn anew in every round
out of who takes part, and start from the group models of the round before. So it is in the code, whose groups
are ranks that go on with their model whichever client's data they are given next.

Not reproduced are the code's loss, which has the weak view's logits on both sides, its one pair of ranks that
belongs to both groups and averages between them, and its rate over warm-up steps. A client that is unsure of
everything counts with the model that it received. `training.server_optimizer` has no say: the step is the
means'.

A round's metrics have `gradient_diversity`, sum |g_k|^2 / |sum g_k|^2, with g_k the change from w of all who
count, so that what groups differ by is in it; S = 1 is FedAvg's.

Leaves a client: its model's change. It receives its group's model.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort
from jaxfed.random_streams import Stream
from jaxfed.rules import SHARE, at_least, keywords
from jaxfed.training.local.batches import Batches
from jaxfed.training.local.consistency import fixmatch
from jaxfed.training.local.local_update import ClientUpdate
from jaxfed.training.needs import EVERYWHERE, needs
from jaxfed.training.round.client_round import Client, Shared, finished, local_steps, plain_update
from jaxfed.training.round.labels_at_server import ServerPart
from jaxfed.training.round.round import federated_training
from jaxfed.training.round.server_hooks import Messages
from jaxfed.training.server.group_averaging import group_mail, group_means
from jaxfed.training.server.server_state import ServerState, with_statistics
from jaxfed.training.specification import Training


@keywords(num_groups=at_least(1), threshold=SHARE)
@needs(pseudo_label="unlabeled", labels_at=EVERYWHERE, two_views=True)
def fedrgd(
    *, training: Training, num_groups: int = 2, threshold: float = 0.95
) -> FederatedAlgorithm:
    """FedRGD, in the scenario that `training.server.examples` says.

    Args:
        training: the training specification; its `local.strong_augment` is needed.
        num_groups: S.
        threshold: tau.

    Raises:
        UsageError: a number out of range, or no strong augmentation.

    Cost: the server keeps S models, and a round makes one for each client of its group's.
    """
    loss = fixmatch(
        training.model,
        weak=training.local.augment,
        strong=training.local.strong_augment_for("fedrgd"),
        threshold=threshold,
        pointwise=training.local.pointwise,
    )
    training = training.with_server(aggregate=group_means(num_groups))
    at_server = plain_update(training, training.loss)

    def server_update(
        shared: Shared, client: Client, key: jax.Array, *, batches: Batches
    ) -> ClientUpdate:
        update = at_server(shared, client, key, batches=batches)
        return update._replace(weight=update.weight * jnp.ones(num_groups))

    def local_update(
        shared: Shared, client: Client, key: jax.Array, *, batches: Batches
    ) -> ClientUpdate:
        group = client.received
        start = group.model
        if training.local.batch_statistics != "averaged":  # the group's go with its model
            start = with_statistics(start, client.statistics)
        trained = local_steps(
            training, shared, client, key, loss=loss, batches=batches, start=start
        )
        update = finished(training, shared, client, trained)
        return update._replace(weight=update.weight * group.member)

    plain = federated_training(
        training,
        local_update,
        pseudo_label="unlabeled",
        messages=Messages(group_mail),
        server_part=ServerPart(server_update, joins=True),
    )

    def init(key: jax.Array, federation: Federation) -> ServerState:
        state = plain.init(key, federation)
        groups = state.optimizer._replace(key=jax.random.fold_in(key, Stream.MODEL_GROUPS))
        return state._replace(optimizer=groups)

    def round(state: ServerState, cohort: Cohort, key: jax.Array) -> tuple[ServerState, Metrics]:
        after, metrics = plain.round(state, cohort, key)
        return after, {**metrics, "gradient_diversity": after.optimizer.diversity}

    return plain._replace(init=init, round=round, sides=None)
