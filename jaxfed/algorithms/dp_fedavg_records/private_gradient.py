r"""DP-SGD (Abadi et al., 2016): per-example gradients clipped to a bound, with Gaussian noise.

    in each step each of the client's n examples is in the sample B with probability s, independently
    g = 1 / b ( sum_{i in B} g_i min(1, C / |g_i|) + N(0, z^2 C^2 I) ),    g_i the gradient at example i alone

b = s n, and |g_i| is the norm over all parameters together. The divisor b does not depend on which examples
were drawn. After an empty draw the step consists of noise alone. n is public.
`jaxfed.privacy.sampled_gaussian` computes epsilon, and names the accountant. (JAX Privacy 2.0 also has
clipped gradients with such noise. Its batches are indices that NumPy draws on the host; here they are drawn
inside the one program of a round, from each client's key.)

Per-example gradients are computed for `chunk` examples at a time, and only their sum is kept. Memory is
`chunk` times a model's, however large B is.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.random_streams import Stream
from jaxfed.training.local.batches import BatchPlan
from jaxfed.training.local.client_data import ClientData, usable
from jaxfed.training.local.local_update import GradientOf, MakeGradient, batch_of, rebuilt
from jaxfed.training.local.losses import Loss
from jaxfed.training.server.aggregate import weighted_sum
from jaxfed.training.server.clipped_mean import noisy, norm, scaled, shrinking


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
    *, clip: float, noise_multiplier: float, share: float, chunk: int
) -> MakeGradient:
    """The gradient g of a `drawn_examples` plan, for `jaxfed.training.local.local_update.train`.

    Args:
        clip: C.
        noise_multiplier: z; 0 draws none.
        share: s.
        chunk: number of per-example gradients in memory at once.

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
                place = number * chunk + jnp.arange(chunk)
                there = jnp.minimum(place, len(index) - 1)
                is_used = used[there] & (place == there)
                values, factors, gradients = jax.vmap(one)(index[there], is_used)
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
