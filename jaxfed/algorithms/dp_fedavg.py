"""DP-FedAvg, of clients: noise by a trusted server hides each client in the published models.

    w_k <- w;  E epochs of  w_k <- w_k - eta grad l(w_k; batch);    d_k = w_k - w
    w <- w + 1/K ( sum_k d_k / max(1, |d_k| / S) + N(0, z^2 S^2 I) )

The sum is over the K clients of the round. A client without labels counts, with d_k = 0. S is `clip`. The
paper takes the median of the round's |d_k| instead. That median depends on the clients and has no noise, so
the proof does not cover it.

Who is protected from whom. The server sees every d_k, clips, and adds the noise: it must be trusted. The
guarantee holds against everybody who sees models, also other clients, for the models of all rounds together.
It covers one client with all its data: it compares a run with the same run where that client's d_k are 0
(K stays).

    epsilon            who takes part in which round may be known. The client that took part most often so far
                       has been in R sums: R releases of what moves a sum by S at most, exactly composed.
    epsilon_sampled    where each round draws K of M clients (`sampling` "uniform") and nobody knows whom: of
                       one client in place of another, which moves a sum by 2 S. (The paper's accountant takes
                       clients to be drawn independently, ours what runs: `jaxfed.privacy.composition`.)

Both are at `delta`. The paper stops when the delta of a given epsilon is spent. Here the number of rounds is
fixed, and `target_epsilon` chooses z so that the last round spends `epsilon`.

Noise is drawn from the experiment's seed: it measures the cost of noise, and does not protect from anybody
who knows the seed. The guarantee does not cover losses, norms and accuracies that a run writes, a model that
training starts from, the state that validation selects, and the set of texts in a table's columns. A config
uses no exact statistics of clients' rows (`jaxfed.config.data.simulation`): only public examples scale
inputs. In the library, scale the inputs of `Training.model` by public numbers only.
"""

from __future__ import annotations

from functools import wraps

import jax
import jax.numpy as jnp

from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.method import method
from jaxfed.federation.rounds import Participation
from jaxfed.privacy.composition import EVERYTHING, WithoutReplacement, accounting, epsilon_of
from jaxfed.training.aggregate import clipped_mean, over_cohort
from jaxfed.training.privacy_budget import PRIVATE, Budget, Guarantee, check_private
from jaxfed.training.round.client_round import ClientRound, ClientUpdate
from jaxfed.training.round.round import aggregate_of, federated_training
from jaxfed.training.server_state import ServerState
from jaxfed.training.specification import Training


@method(
    title="DP-FedAvg, of clients",
    cites="Geyer, Klein, Nabi, 2017, arXiv 1712.07557",
    leaves="its model's change",
    **PRIVATE,
)
def dp_fedavg(
    *, training: Training, participation: Participation | None = None, guarantee: Guarantee
) -> FederatedAlgorithm:
    """DP-FedAvg of clients, on their given labels.

    Args:
        training: the training specification, without a weighting: all clients of a round count alike.
        participation: how often clients take part in a run; None: unknown, and no `target_epsilon`.
        guarantee: its fields, passed as keywords; `clip` is S.

    A round's metrics: `update_norm`, the median of |d_k|; `clipped`, the share that was longer than S; with
    noise also `epsilon`, `noise_multiplier`, `delta`, `clip` and `sampling_rate`. Where clients are drawn,
    `sampling_rate` is K / M, and `epsilon_sampled` is added.

    Raises:
        UsageError: both z and a target epsilon are given, the network has BatchNorm, or only a part of a
            cohort trains; in a run, cohorts or rounds differ from `participation`.

    Cost: that of FedAvg; epsilon is next to nothing.
    """
    check_private(training, participation, "dp_fedavg")
    drawn, rate = None, 1.0
    if participation is not None and participation.is_drawn:
        drawn = WithoutReplacement(participation.cohort_size, participation.num_clients)
        rate = participation.cohort_size / participation.num_clients
    budget = Budget(guarantee, EVERYTHING, participation, sampling_rate=rate)
    noise = budget.noise
    if noise and drawn is not None:
        accounting()  # refuses what is not installed
    mean = clipped_mean(aggregate_of(training), clip=guarantee.clip, noise_multiplier=noise)
    training = training.with_server(aggregate=mean, weighting=over_cohort)

    def local_update(client: ClientRound) -> ClientUpdate:
        return client.update(client.steps(training.loss), client_state=client.state + 1)

    plain = federated_training(
        training,
        local_update,
        pseudo_label="none",
        init_client=lambda model, federation, key: jnp.int32(0),
    )
    accounted = budget.accounted(plain)

    @wraps(accounted.round)
    def round(state: ServerState, cohort: Cohort, key: jax.Array) -> tuple[ServerState, Metrics]:
        after, metrics = accounted.round(state, cohort, key)
        added: Metrics = {"update_norm": after.optimizer.norm, "clipped": after.optimizer.clipped}
        if noise and drawn is not None:
            added["epsilon_sampled"] = epsilon_of(guarantee.delta, noise, int(after.round), drawn)
        return after, {**metrics, **added}

    return accounted._replace(round=round)
