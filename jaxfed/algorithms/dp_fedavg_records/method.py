r"""DP-FedAvg of records (Noble, Bellet, Dieuleveut, AISTATS 2022, arXiv 2111.09278): DP-SGD at every client.

    w_k <- w;  J steps of   w_k <- w_k - eta / b ( sum_{i in B} g_i / max(1, |g_i| / C) + N(0, z^2 C^2 I) )
    w <- w + mean_k (w_k - w)

B is a random share s of client k's n_k examples, drawn anew in each step. g_i is the gradient at one example
(`jaxfed.algorithms.dp_fedavg_records.private_gradient`). The paper compares its DP-SCAFFOLD with this method.

Who is protected from whom. Each client adds its own noise, so nobody has to be trusted. The guarantee is for
one example of one client, against the server and everybody else. They may see all that this client sends,
even the model after every local step, and know in which rounds it takes part. Hiding that would lower
epsilon; the paper's guarantee against third parties assumes it, this one does not. `epsilon`, at `delta`, is
that of an example at the client that took part most often so far, in R rounds. These are R J releases,
composed by `jaxfed.privacy.sampled_gaussian`: "poisson" by privacy loss distributions, "fixed" by Renyi
divergences.

    records "poisson"   each example is in with probability s, b = s n_k. One example more or less.
    records "fixed"     floor(s n_k) of them, one at least, as in the paper: one example in place of another,
                        which moves the sum by 2 C. The largest epsilon over clients, whose n_k differ.

The paper's sigma_g is for noise over 2 C: z = 2 sigma_g. n_k, and who has labels, are no secrets.

The authors' code differs: it clips each layer's gradients separately, at the median of the drawn examples'
norms, which has no noise; and it weights clients by their sizes.

The number of steps is `training.local_steps`, or epochs of 1 / s steps, the same at every client; the batch
size is not used. Any client optimizer is allowed, since g already has its noise. The server takes the plain
mean of the models of clients that have examples.

Noise and draws come from the experiment's seed: they measure the cost of noise, and do not protect from
anybody who knows the seed. The guarantee does not cover losses and accuracies that a run writes.

Leaves a client: its model's change. Each client receives the model.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.algorithms.dp_fedavg_records.private_gradient import (
    Records,
    drawn_examples,
    private_gradient,
    sample_size,
)
from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.sampling import Participation
from jaxfed.privacy.sampled_gaussian import (
    EVERYTHING,
    MOST_NOISE,
    Poisson,
    Subsampling,
    WithoutReplacement,
    check_installed,
    epsilon_of,
)
from jaxfed.random_streams import Stream
from jaxfed.rules import NOT_NEGATIVE, POSITIVE, at_least, between, keywords, one_of
from jaxfed.training.local.batches import Batches
from jaxfed.training.local.client_data import usable
from jaxfed.training.local.local_update import ClientUpdate
from jaxfed.training.needs import needs
from jaxfed.training.privacy_budget import check_budget, check_model, fitted_noise
from jaxfed.training.round.client_round import Client, Shared, finished, local_steps
from jaxfed.training.round.round import federated_training
from jaxfed.training.server.aggregate import uniformly
from jaxfed.training.server.client_rows import gather, took_part
from jaxfed.training.server.server_state import ServerState
from jaxfed.training.specification import Training

_COUNTS = ("rounds", "examples", "drawn")  # that a client has taken part in, has, and draws


def _check_together(given: SimpleNamespace) -> None:
    check_budget(given.noise_multiplier, given.target_epsilon)
    if given.target_epsilon and given.records == "fixed":
        raise UsageError(
            "with records='fixed' epsilon depends on how many examples a client has",
            key="target_epsilon",
            value=given.target_epsilon,
            allowed="set records='poisson'",
        )


@keywords(
    _check_together,
    clip=POSITIVE,
    share=between(1e-4, 1, closed=True),
    records=one_of(get_args(Records)),
    noise_multiplier=between(0, MOST_NOISE, closed=True),
    target_epsilon=NOT_NEGATIVE,
    delta=between(0, 1, closed=False),
    chunk=at_least(1),
)
@needs(pseudo_label="none")
def dp_fedavg_records(
    *,
    training: Training,
    participation: Participation | None = None,
    clip: float = 1.0,
    share: float = 0.2,
    records: Records = "poisson",
    noise_multiplier: float = 1.0,
    target_epsilon: float = 0.0,
    delta: float = 1e-5,
    chunk: int = 16,
) -> FederatedAlgorithm:
    """DP-FedAvg of records, on clients' given labels.

    Args:
        training: the training specification.
        participation: how often clients take part in a run; None: unknown, and no `target_epsilon`.
        clip: C, of an example's gradient.
        share: s.
        records: how examples are drawn.
        noise_multiplier: z; 0 is no noise, and no epsilon.
        target_epsilon: in place of z, `epsilon` after the last round, of the client that takes part most
            often, with "poisson" draws; 0: z is given.
        delta: of epsilon.
        chunk: examples whose own gradients are there at once: memory, and no result beyond rounding.

    Raises:
        UsageError: a value that is not allowed, z and a target, BatchNorm; with noise, dp-accounting is not
            installed.

    Cost: a step takes a gradient for each example that is drawn, `chunk` of them in memory; epsilon 0.1 s
    once, and with records "poisson" 0.02 s a round.
    """
    check_model(training, "dp_fedavg_records")
    batches = training.local.labeled_batches
    steps = batches.steps or batches.epochs * max(1, round(1 / share))
    poisson: Subsampling = EVERYTHING if share == 1 else Poisson(share)
    noise = fitted_noise(
        participation,
        noise_multiplier=noise_multiplier,
        target_epsilon=target_epsilon,
        delta=delta,
        draw=poisson,
        releases=steps,
    )
    if noise:
        check_installed(poisson if records == "poisson" else WithoutReplacement(1, 1))
    training = training.with_server(weighting=uniformly)
    gradient = private_gradient(
        clip=clip, noise_multiplier=noise, share=share, records=records, chunk=chunk
    )

    def local_update(
        shared: Shared, client: Client, key: jax.Array, *, batches: Batches
    ) -> ClientUpdate:
        del batches
        draw_key = jax.random.fold_in(key, Stream.RECORDS)
        plan = drawn_examples(client.data, draw_key, share=share, records=records, steps=steps)
        trained = local_steps(
            training, shared, client, key, loss=training.loss, batches=plan, gradient=gradient
        )
        count = jnp.sum(usable(client.data), dtype=jnp.int32)
        state = {
            "rounds": client.state["rounds"] + (count > 0).astype(jnp.int32),
            "examples": count,
            "drawn": sample_size(count, share),
        }
        update = finished(training, shared, client, trained)
        return update._replace(client_state=state)

    plain = federated_training(
        training,
        local_update,
        pseudo_label="none",
        init_client=lambda model, federation: dict.fromkeys(_COUNTS, jnp.int32(0)),
    )

    def spent(clients: dict[str, jax.Array]) -> float:
        known = gather(clients, took_part(clients))
        rounds, examples, drawn = (np.asarray(known[name]).tolist() for name in _COUNTS)
        if records == "poisson":
            return epsilon_of(delta, noise, steps * max(rounds, default=0), poisson)
        different = {each for each in zip(rounds, examples, drawn, strict=True) if each[0]}
        return max(
            (
                epsilon_of(delta, noise, steps * r, WithoutReplacement(m, n))
                for r, n, m in different
            ),
            default=0.0,
        )

    def round_(state: ServerState, cohort: Cohort, key: jax.Array) -> tuple[ServerState, Metrics]:
        after, metrics = plain.round(state, cohort, key)
        return after, {**metrics, "epsilon": spent(after.clients)} if noise else metrics

    return plain._replace(round=round_, sides=None)
