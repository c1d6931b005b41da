r"""DP-FedAvg, of records: DP-SGD at every client.

    w_k <- w;  J steps of   w_k <- w_k - eta / b ( sum_{i in B} g_i / max(1, |g_i| / C) + N(0, z^2 C^2 I) )
    w <- w + mean_k (w_k - w)

b = s n_k. B has each of client k's n_k examples with probability s, drawn anew in each step. g_i is the
gradient at one example (`jaxfed.algorithms.dp_fedavg_records.private_gradient`). The paper compares its
DP-SCAFFOLD with this method.

Who is protected from whom. Each client adds its own noise, so nobody has to be trusted. The guarantee is for
one example of one client, against the server and everybody else. They may see all that this client sends,
even the model after every local step, and know in which rounds it takes part. Hiding that would lower
epsilon; the paper's guarantee against third parties assumes it, this one does not. `epsilon`, at `delta`, is
that of an example at the client that took part most often so far, in R rounds. These are R J releases that
one example more or less moves, composed by privacy loss distributions (`jaxfed.privacy.sampled_gaussian`).
n_k, and who has labels, are no secrets. The paper draws floor(s n_k) examples in each step, and its sigma_g
is for one example in place of another, which moves the sum by 2 C: z = 2 sigma_g.

The authors' code differs: it clips each layer's gradients separately, at the median of the drawn examples'
norms, which has no noise; and it weights clients by their sizes.

The number of steps is `training.local_steps`, or epochs of 1 / s steps, the same at every client; the batch
size is not used. Any client optimizer is allowed, since g already has its noise. The server takes the plain
mean of the models of clients that have examples.

Noise and draws come from the experiment's seed: they measure the cost of noise, and do not protect from
anybody who knows the seed. The guarantee does not cover losses and accuracies that a run writes, a model that
training starts from, the state that validation selects, and the set of texts in a table's columns. A config
uses no exact statistics of clients' rows (`jaxfed.config.data.row_statistics`): only public examples scale
inputs. In the library, scale the inputs of `Training.model` by public numbers only.

Each client receives the model.
"""

from __future__ import annotations

from typing import Annotated

import jax
import jax.numpy as jnp

from jaxfed.algorithms.dp_fedavg_records.private_gradient import (
    drawn_examples,
    private_gradient,
)
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.method import method
from jaxfed.federation.sampling import Participation
from jaxfed.privacy.sampled_gaussian import (
    EVERYTHING,
    MOST_NOISE,
    Poisson,
    Subsampling,
    check_installed,
)
from jaxfed.random_streams import Stream
from jaxfed.settings import Ge, Le, NotNegative, Positive, Probability
from jaxfed.training.local.batches import Batches
from jaxfed.training.local.client_data import usable
from jaxfed.training.local.local_update import ClientUpdate
from jaxfed.training.privacy_budget import Budget, check_budget, check_private
from jaxfed.training.round.client_round import Client, Shared, finished, local_steps
from jaxfed.training.round.round import federated_training
from jaxfed.training.server.aggregate import uniformly
from jaxfed.training.specification import Training

_CHUNK = 16  # examples whose gradients are in memory at once; it changes rounding only


@method(
    title="DP-FedAvg, of records",
    cites="Noble, Bellet, Dieuleveut, AISTATS 2022, arXiv 2111.09278",
    leaves="its model's change",
    takes=("training", "participation"),
    together=check_budget,
    pseudo_label="none",
    private=True,
    unread=("weighting",),
)
def dp_fedavg_records(
    *,
    training: Training,
    participation: Participation | None = None,
    clip: Positive = 1.0,
    share: Annotated[float, Ge(1e-4), Le(1)] = 0.2,
    noise_multiplier: Annotated[float, Ge(0), Le(MOST_NOISE)] | None = None,
    target_epsilon: NotNegative = 0.0,
    delta: Probability = 1e-5,
) -> FederatedAlgorithm:
    """DP-FedAvg of records, on clients' given labels.

    Args:
        training: the training specification.
        participation: how often clients take part in a run; None: unknown, and no `target_epsilon`.
        clip: C, largest norm of an example's gradient; longer ones are scaled down to it.
        share: s, probability with which a step draws an example.
        noise_multiplier: z, the noise's standard deviation in units of C. None: 1, or the value that
            `target_epsilon` needs. 0: no noise and no epsilon.
        target_epsilon: in place of z, `epsilon` after the last round, of the client that takes part most
            often; 0: z is given.
        delta: delta of the guarantee; epsilon is at it.

    A round's metrics, with noise: `epsilon`, `noise_multiplier`, `delta`, `clip`, `sampling_rate` (s).

    Raises:
        UsageError: a value that is not allowed, z and a target, BatchNorm, a cohort that trains only in part;
            with noise, dp-accounting is not installed; in a run, cohorts or rounds that are not those of
            `participation`.

    Cost: a step takes a gradient for each example that is drawn, 16 of them in memory; epsilon 0.1 s
    once, and 0.02 s a round.
    """
    check_private(training, "dp_fedavg_records")
    batches = training.local.labeled_batches
    steps = batches.steps or batches.epochs * max(1, round(1 / share))
    draw: Subsampling = EVERYTHING if share == 1 else Poisson(share)
    budget = Budget(
        *(clip, noise_multiplier, target_epsilon, delta, draw, participation),
        releases=steps,
        sampling_rate=share,
    )
    noise = budget.noise
    if noise:
        check_installed(draw)
    training = training.with_server(weighting=uniformly)
    gradient = private_gradient(clip=clip, noise_multiplier=noise, share=share, chunk=_CHUNK)

    def local_update(
        shared: Shared, client: Client, key: jax.Array, *, batches: Batches
    ) -> ClientUpdate:
        del batches
        draw_key = jax.random.fold_in(key, Stream.RECORDS)
        plan = drawn_examples(client.data, draw_key, share=share, steps=steps)
        trained = local_steps(
            training, shared, client, key, loss=training.loss, batches=plan, gradient=gradient
        )
        takes_part = jnp.any(usable(client.data)).astype(jnp.int32)
        update = finished(training, shared, client, trained)
        return update._replace(client_state=client.state + takes_part)

    plain = federated_training(
        training,
        local_update,
        pseudo_label="none",
        init_client=lambda model, federation: jnp.int32(0),
    )
    return budget.accounted(plain)
