"""CBAFed: labels fixed for a round, thresholds by class frequency.

n_c is the number of examples of class c that clients train on, by given label or pseudo-label; s_c is its
scaled share. Client k labels its unlabeled examples once with the received model w, in evaluation mode:

    s_c = C / 10  n_c / sum_c n_c,     tau_c = min(s_c + 0.84 - std_c(s), 0.95)
    p_i = softmax(f_w(weak(x_i))),     y_i = argmax p_i,     z_i = argmax_{c != y_i} p_ic
    label of i    y_i   if max p_i > tau_c, c = y_i
                  z_i   else, if s_c < 0.03, c = z_i: an unsure example trains the second class if it is rare
                  none  else
    w_k <- w_k - eta grad mean CE over labeled and pseudo-labeled examples
    w   <- FedAvg's mean, by their number;   in every 5th round   w <- (w + v) / 2,  v <- w

v is the model of 5 rounds before.

Fixed labels keep a client from unlearning the received model. The paper's other two parts are low thresholds
for rare classes, and v. The method is for a few fully labeled clients among many without labels, or for
clients with some of both. In the paper, rounds on given labels alone (`training.labeled_only_rounds`) come
first; v starts as the last model of these.

Differences from the authors' code, and details that the paper leaves open:

  * In the code all clients take part in every round, and n_c is the count of the round before. Here a client
    counts as in the last round that it took part in. Before the first count, all s_c are 0.1.
  * std divides by C - 1, as in the code. The cap 0.95 is 0.9 for SVHN and skin lesions: `highest_threshold`.
  * The code first averages with v in the sixth round, then in every fifth.
  * In the code a labeled client also averages over epochs: after every fifth of eleven, its model becomes 4/5
    that of five epochs before. This is not reproduced here.
  * In the code unlabeled clients make one pass over the views that were labeled, at rate 0.02; labeled ones
    have 0.03. Here all clients have the same rate and epochs, and views are drawn at each step.
  * In the code each client keeps its momentum over rounds (`training.client_optimizer` "kept"), and gradients
    are clipped to norm 5.

Metrics of a round: `selected`, the share of a client's unlabeled examples that get a label.

A client receives w and the counts n_c.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.clients import Federation
from jaxfed.federation.method import method
from jaxfed.settings import Ge, Note, NotNegative, Share
from jaxfed.training.aggregate import Aggregate
from jaxfed.training.local.batches import class_counts, usable
from jaxfed.training.local.losses import mean_where
from jaxfed.training.round.client_round import ClientRound, ClientUpdate
from jaxfed.training.round.parts import Control, Hook
from jaxfed.training.round.round import aggregate_of, federated_training
from jaxfed.training.server_state import ServerState
from jaxfed.training.specification import Training


@method(
    title="CBAFed",
    cites="Li, Li, Wang, CVPR 2023",
    leaves="its model's change, and the change of its C class counts",
    on_network=True,
    pseudo_label="unlabeled",
)
def cbafed(
    *,
    training: Training,
    threshold: Share = 0.84,
    highest_threshold: Share = 0.95,
    rare_share: NotNegative = 0.03,
    residual_rounds: Annotated[int, Ge(0), Note("0: never")] = 5,
) -> FederatedAlgorithm:
    """CBAFed.

    Args:
        training: the training specification; labels are at clients.
        threshold: base of tau_c, in [0, 1], to which s_c - std(s) is added.
        highest_threshold: upper bound of all tau_c.
        rare_share: an unsure example is labeled with its second class c if s_c is below this; 0: never.
        residual_rounds: number of rounds from one mean with v to the next; 0: never.

    Cost: FedAvg's, plus one forward pass over a client's data in each round; the server keeps two models.
    """
    aggregate = aggregate_of(training)
    if residual_rounds:
        aggregate = residual_mean(aggregate, residual_rounds, training.labeled_only_rounds)
    training = training.with_server(aggregate=aggregate)

    def local_update(client: ClientRound) -> ClientUpdate:
        p, unlabeled = client.predictions()
        s = scaled_shares(client.shared.control)
        label = labels(p, thresholds(s, threshold, highest_threshold), s < rare_share)
        data = client.data._replace(
            label=jnp.where(unlabeled, label, client.data.label),
            weight=jnp.where(unlabeled, 1, client.data.weight),
        )
        client = client._replace(data=data)
        count = class_counts(data.label, usable(data), len(s))
        # A padding row of a cohort has a real client's state, and no examples.
        change = jnp.where(jnp.any(data.mask), count - client.state, 0)
        selected = mean_where((label >= 0).astype(jnp.float32), unlabeled)
        return client.update(
            client.steps(training.loss),
            client_state=client.state + change,
            correction=change,
            metrics={"selected": selected},
        )

    return federated_training(
        training,
        local_update,
        pseudo_label="unlabeled",
        init_client=lambda model, federation, key: jnp.zeros(federation.num_classes),
        control=Control(),
        hooks=(_ClassCounts(),),
    )


class _ClassCounts(Hook):
    """The server's control state: n / M, float32 [C], for M clients."""

    def init(self, state: ServerState, federation: Federation, key: jax.Array) -> ServerState:
        del key
        return state._replace(control=jnp.zeros(federation.num_classes))


def scaled_shares(counts: jax.Array) -> jax.Array:
    """s, float32 [C], from n in any unit; 0.1 for every class if there are no examples."""
    total = jnp.sum(counts)
    share = jnp.where(total > 0, counts / jnp.where(total > 0, total, 1), 1 / len(counts))
    return len(counts) / 10 * share


def thresholds(s: jax.Array, base: float, highest: float) -> jax.Array:
    """tau_c, float32 [C], from s."""
    return jnp.minimum(s + base - jnp.std(s, ddof=1), highest)


def labels(p: jax.Array, least: jax.Array, is_rare: jax.Array) -> jax.Array:
    """Labels int32 [N], -1 for none, from predictions [N, C], thresholds [C] and rare classes, bool [C]."""
    first = jnp.argmax(p, axis=-1).astype(jnp.int32)
    others = jnp.where(jax.nn.one_hot(first, p.shape[-1], dtype=bool), -1, p)
    second = jnp.argmax(others, axis=-1).astype(jnp.int32)
    unsure = jnp.where(is_rare[second], second, -1)
    return jnp.where(jnp.max(p, axis=-1) > least[first], first, unsure)


class Residual(NamedTuple):
    """State of `residual_mean`.

    Fields:
        inner: state of the inner aggregate.
        earlier: v.
        number: int32 scalar, rounds done.
    """

    inner: Any
    earlier: nnx.State
    number: jax.Array


def residual_mean(inner: Aggregate, every: int, first: int) -> Aggregate:
    """The server's step, averaged in every `every`-th round with the model of the last such round.

    Args:
        inner: the aggregate that makes the step.
        every: number of rounds from one mean to the next.
        first: number of rounds before counting starts; v starts as the model of the last of them.
    """

    def init(model: nnx.State, key: jax.Array) -> Residual:
        return Residual(inner.init(model, key), model, jnp.int32(0))

    def apply(
        model: nnx.State, deltas: nnx.State, weights: jax.Array, state: Residual
    ) -> tuple[nnx.State, Residual]:
        new, server_state = inner.apply(model, deltas, weights, state.inner)
        number = state.number + 1
        is_due = (number > first) & ((number - first) % every == 0) & jnp.any(weights > 0)
        new = jax.tree.map(
            lambda now, before: jnp.where(is_due, (now + before) / 2, now), new, state.earlier
        )
        is_next = is_due | (number <= first)
        earlier = jax.tree.map(
            lambda now, before: jnp.where(is_next, now, before), new, state.earlier
        )
        return new, Residual(server_state, earlier, number)

    return Aggregate(init, apply)
