r"""DP-FedAvg, of records: DP-SGD at every client.

    w_k <- w;  J steps of   w_k <- w_k - eta / b ( sum_{i in B} g_i / max(1, |g_i| / C) + N(0, z^2 C^2 I) )
    w <- w + mean_k (w_k - w)

b = s n_k. B has each of client k's n_k examples with probability s, drawn anew in each step (DP-SGD, Abadi
et al., 2016). g_i is the gradient at one example, |g_i| its norm over all parameters together. The divisor
b does not depend on which examples were drawn; after an empty draw the step consists of noise alone. The
paper compares its DP-SCAFFOLD with this method.

Who is protected from whom. Each client adds its own noise, so nobody has to be trusted. The guarantee is for
one example of one client, against the server and everybody else. They may see all that this client sends,
even the model after every local step, and know in which rounds it takes part. Hiding that would lower
epsilon; the paper's guarantee against third parties assumes it, this one does not. `epsilon`, at `delta`, is
that of an example at the client that took part most often so far, in R rounds. These are R J releases that
one example more or less moves, composed by privacy loss distributions (`jaxfed.privacy.composition`).
n_k, and who has labels, are no secrets. The paper draws floor(s n_k) examples in each step, and its sigma_g
is for one example in place of another, which moves the sum by 2 C: z = 2 sigma_g.

The authors' code differs: it clips each layer's gradients separately, at the median of the drawn examples'
norms, which has no noise; and it weights clients by their sizes.

The number of steps is `training.local_steps`, or epochs of 1 / s steps, the same at every client; the batch
size is not used. Any client optimizer is allowed, since g already has its noise. The server takes the plain
mean of the models of clients that have examples.

Noise and draws come from the experiment's seed: they measure the cost of noise, and do not protect from
anybody who knows the seed. What else the guarantee does not cover is said at `jaxfed.algorithms.dp_fedavg`.
"""

from __future__ import annotations

from typing import Annotated

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.method import method
from jaxfed.federation.rounds import Participation
from jaxfed.privacy.composition import EVERYTHING, Poisson, Subsampling, accounting
from jaxfed.random_streams import Stream
from jaxfed.settings import Ge, Le
from jaxfed.training.aggregate import noisy, norm, scaled, shrinking, uniformly, weighted_sum
from jaxfed.training.local.batches import BatchPlan, ClientData, usable
from jaxfed.training.local.local_training import GradientOf, MakeGradient, batch_of, rebuilt
from jaxfed.training.local.losses import Loss
from jaxfed.training.privacy_budget import PRIVATE, Budget, Guarantee, check_private
from jaxfed.training.round.client_round import ClientRound, ClientUpdate
from jaxfed.training.round.round import federated_training
from jaxfed.training.specification import Training

_CHUNK = 16  # examples whose gradients are in memory at once; it changes rounding only


@method(
    title="DP-FedAvg, of records",
    cites="Noble, Bellet, Dieuleveut, AISTATS 2022, arXiv 2111.09278",
    leaves="its model's change",
    **PRIVATE,
)
def dp_fedavg_records(
    *,
    training: Training,
    participation: Participation | None = None,
    share: Annotated[float, Ge(1e-4), Le(1)] = 0.2,
    guarantee: Guarantee,
) -> FederatedAlgorithm:
    """DP-FedAvg of records, on clients' given labels.

    Args:
        training: the training specification.
        participation: how often clients take part in a run; None: unknown, and no `target_epsilon`.
        share: s, probability with which a step draws an example.
        guarantee: its fields, passed as keywords; `clip` is C.

    A round's metrics, with noise: `epsilon`, `noise_multiplier`, `delta`, `clip`, `sampling_rate` (s).

    Raises:
        UsageError: both z and a target epsilon are given, the network has BatchNorm, or only a part of a
            cohort trains; with noise, dp-accounting is not installed; in a run, cohorts or rounds differ
            from `participation`.

    Cost: a step takes a gradient for each example that is drawn, 16 of them in memory; epsilon 0.1 s
    once, and 0.02 s a round.
    """
    check_private(training, participation, "dp_fedavg_records")
    batches = training.local.labeled_batches
    steps = batches.steps or batches.epochs * round(1 / share)
    draw: Subsampling = EVERYTHING if share == 1 else Poisson(share)
    budget = Budget(guarantee, draw, participation, releases=steps, sampling_rate=share)
    noise = budget.noise
    if noise and draw is not None:
        accounting()  # refuses what is not installed
    training = training.with_server(weighting=uniformly)
    gradient = private_gradient(clip=guarantee.clip, noise_multiplier=noise, share=share)

    def local_update(client: ClientRound) -> ClientUpdate:
        draw_key = jax.random.fold_in(client.key, Stream.RECORDS)
        plan = drawn_examples(client.data, draw_key, share=share, steps=steps)
        trained = client.steps(training.loss, batches=plan, gradient=gradient)
        takes_part = jnp.any(usable(client.data)).astype(jnp.int32)
        return client.update(trained, client_state=client.state + takes_part)

    plain = federated_training(
        training,
        local_update,
        pseudo_label="none",
        init_client=lambda model, federation, key: jnp.int32(0),
    )
    return budget.accounted(plain)


def drawn_examples(data: ClientData, key: jax.Array, *, share: float, steps: int) -> BatchPlan:
    """Return the plan of `steps` steps: row numbers [N], those of B first, and bool [N], True for B.

    An example's draw depends on its own number and the key alone. A client without examples takes no step.

    Cost: one sort of N numbers per step.
    """
    is_one = usable(data)
    count = jnp.sum(is_one, dtype=jnp.int32)

    def rows(step: jax.Array) -> tuple[jax.Array, jax.Array]:
        draw = jax.random.uniform(jax.random.fold_in(key, step), is_one.shape)
        is_in = is_one & (draw < share)
        first = jnp.argsort(~is_in, stable=True).astype(jnp.int32)
        return first, jnp.arange(len(is_one)) < jnp.sum(is_in)

    return BatchPlan(jnp.where(count > 0, steps, 0), rows)


def private_gradient(
    *, clip: float, noise_multiplier: float, share: float, chunk: int = _CHUNK
) -> MakeGradient:
    """The gradient of a `drawn_examples` plan, for `jaxfed.training.local.local_training.train`.

    Args:
        clip: C.
        noise_multiplier: z; 0 draws none.
        share: s.
        chunk: number of per-example gradients in memory at once; only their sum is kept, however large B is.

    The loss is called for one example at a time; its randomness (augmentation, dropout) is drawn for that
    example alone. The returned value is the mean loss of B.
    """

    def make(
        loss: Loss, *, anchor: nnx.State, data: ClientData, plan: BatchPlan, key: jax.Array
    ) -> GradientOf:
        count = jnp.sum(usable(data), dtype=jnp.int32)
        divisor = jnp.float32(share) * count.astype(jnp.float32)

        def gradient_of(
            parameters: nnx.State, statistics: nnx.State, number: jax.Array
        ) -> tuple[jax.Array, nnx.State, nnx.State]:
            step_key = jax.random.fold_in(key, number)
            index, used = plan.rows(number)

            def one(row: jax.Array, is_used: jax.Array) -> tuple[jax.Array, jax.Array, nnx.State]:
                batch = batch_of(data, row[None], is_used[None])

                def objective(parameters: nnx.State) -> jax.Array:
                    state = nnx.merge_state(parameters, rebuilt(statistics))
                    return loss(state, anchor, batch, jax.random.fold_in(step_key, row))[0]

                value, gradient = jax.value_and_grad(objective)(parameters)
                factor = jnp.where(is_used, shrinking(norm(gradient), clip), 0)
                return jnp.where(is_used, value, 0), factor, gradient

            def add(number: jax.Array, carry: tuple[jax.Array, nnx.State]) -> tuple:
                position = number * chunk + jnp.arange(chunk)
                row = jnp.minimum(position, len(index) - 1)
                is_used = used[row] & (position == row)
                values, factors, gradients = jax.vmap(one)(index[row], is_used)
                total, summed = carry
                # As a product: XLA's CPU backend takes seconds for scaled gradients that are then added up.
                summed = jax.tree.map(lambda s, g: s + weighted_sum(factors, g), summed, gradients)
                return total + jnp.sum(values), summed

            num_drawn = jnp.sum(used, dtype=jnp.int32)
            start = (jnp.float32(0), jax.tree.map(jnp.zeros_like, parameters))
            num_chunks = (num_drawn + chunk - 1) // chunk
            total, summed = jax.lax.fori_loop(0, num_chunks, add, start)
            if noise_multiplier:
                noise_key = jax.random.fold_in(step_key, Stream.NOISE)
                summed = noisy(summed, noise_key, jnp.float32(noise_multiplier * clip))
            rows = num_drawn.astype(jnp.float32)
            mean = scaled(summed, 1 / jnp.maximum(divisor, jnp.finfo(jnp.float32).tiny))
            return total / jnp.maximum(rows, 1), statistics, mean

        return gradient_of

    return make
