"""Microbatching: a sum over a batch and its gradient, in blocks whose activations fit a core's cache.

    sum_{i in B} l(w, x_i) = sum over blocks b of B of sum_{i in b} l(w, x_i),    and likewise its gradient

The activations of a convolution are many times larger than its image. For a whole batch they exceed the
caches, and every layer reads and writes them, forward and backward. Here a block goes through all layers and
back before the next block starts; the price is one addition of gradients per block. That pays on a CPU, where
the parameters are few compared with a block's activations. (Two cores, a round of ten clients with 100 images
of 28 x 28, batches of 50: convolutions of 32 and 64 channels with a head take 0.75 of the time; with a dense
layer of 200,000 parameters between, whose gradient would be added up five or ten times a batch, 1.1 to 1.6.)

Processing the batch block by block inside each layer instead computes what backpropagation needs twice, or
stores and reads it block by block: 1.0 and 1.6 of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from flax import nnx

from jaxfed.federation.communication import num_bytes_of
from jaxfed.kernels.neighbors.blocks import even_size, sum_over_blocks
from jaxfed.models.model import Model

_CACHE_BYTES = 3 * 2**19  # for the results of all of a network's operations on a block
_LEAST_SHARE = 4  # least ratio of those bytes to the parameters'


def examples_at_once(model: Model, state: nnx.State, x: jax.Array) -> int:
    """Number of examples of a batch x [B, ...] in one block of training; B: the whole batch.

    Cost: two traces of the network.
    """
    if jax.default_backend() != "cpu" or not model.by_example or len(x) < 2:
        return len(x)
    if num_bytes_of(state) * _LEAST_SHARE > _CACHE_BYTES:
        return len(x)
    one, two = (_bytes_made(model, state, count, x) for count in (1, 2))
    return even_size(len(x), _CACHE_BYTES // max(two - one, 1))


def _bytes_made(model: Model, state: nnx.State, count: int, x: jax.Array) -> int:
    """Bytes of the results of a network's operations on `count` examples, without those inside a layer."""
    examples = jax.ShapeDtypeStruct((count, *x.shape[1:]), x.dtype)
    program = jax.make_jaxpr(model.train_apply)(state, examples, jax.random.key(0))
    return num_bytes_of(
        [variable.aval for equation in program.eqns for variable in equation.outvars]
    )


def few_at_a_time(function: Callable[..., jax.Array], size: int) -> Callable[..., jax.Array]:
    """f(parameters, *rows) -> scalar, a sum over rows, with value and gradient summed over blocks of rows.

    Args:
        function: f; `rows` are arrays of one length.
        size: rows of a block; the last may have fewer.

    Returns:
        The same function. Only its first derivative by `parameters`, in reverse mode, is available. It is
        computed together with the value, one block after another.

    Raises:
        NotImplementedError: when it is differentiated by `rows`.

    Cost: that of f and its gradient, and one addition of gradients per block; memory for one block's
    activations.
    """

    @jax.custom_vjp
    def total(parameters: Any, rows: tuple[jax.Array, ...]) -> Any:
        return sum_over_blocks(partial(function, parameters), size, *rows)

    def forward(parameters: Any, rows: tuple[Any, ...]) -> tuple[jax.Array, Any]:
        if any(row.perturbed for row in rows):
            raise NotImplementedError("few_at_a_time has no gradient by rows")
        parameters, rows = jax.tree.map(lambda leaf: leaf.value, (parameters, rows))
        of_block = partial(jax.value_and_grad(function), parameters)
        value, gradient = sum_over_blocks(of_block, size, *rows)
        return value, gradient

    def backward(gradient: Any, cotangent: jax.Array) -> tuple[Any, None]:
        return jax.tree.map(lambda leaf: leaf * cotangent, gradient), None

    total.defvjp(forward, backward, symbolic_zeros=True)
    return lambda parameters, *rows: total(parameters, rows)
