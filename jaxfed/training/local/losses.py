"""Losses of local training. A loss is a function of a batch, and losses can be built from losses.

    loss(state, anchor, batch, key) -> (value, state)

`state` is the model being trained, `anchor` the model that the server sent this round (FedProx pulls
towards it, distillation learns from it), `batch` a `Batch`, `key` a typed key of this step. The value
is differentiated with respect to the `nnx.Param` leaves of `state`; the state that comes back carries
the running statistics on. A method with a loss of its own needs no training loop of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.federation.cohort import Ragged
from jaxfed.federation.communication import num_bytes_of
from jaxfed.kernels.arrays import even_size, sum_over_blocks
from jaxfed.models.model import Model, as_float
from jaxfed.settings import Described

# (key, x [B, ...]) -> x [B, ...]. Bytes may come back as bytes or as floats in [0, 1]; methods see a `view`.
Augment = Annotated[
    Callable[[jax.Array, jax.Array], jax.Array], Described("a function of a key and a batch")
]
Pointwise = Callable[[jax.Array, jax.Array], jax.Array]  # logits [..., C], label [...] -> [...]


class Batch(NamedTuple):
    """One batch of one client.

    Fields:
        x: [B, ...], examples as the clients hold them.
        label: int32 [B], given or pseudo-label; any class where not `used`.
        weight: float32 [B], the label's weight; 0 where not `used`.
        used: bool [B], False on rows that only fill the batch (they hold real examples too, so that
            batch statistics stay those of data).
        is_labeled: bool [B], the label was given, not inferred.
        beside: further draws of the step's `Plan`.
    """

    x: jax.Array
    label: jax.Array
    weight: jax.Array
    used: jax.Array
    is_labeled: jax.Array
    beside: Any = ()


def taken(x: jax.Array | Ragged, index: jax.Array) -> jax.Array:
    """x[index], [B, ...]: the examples of these rows.

    Read as rows of one axis: XLA:CPU gathers examples of many short axes number by number.
    """
    if isinstance(x, Ragged):
        return taken(x.rows, jnp.clip(x.start + index, 0, len(x.rows) - 1))
    return x.reshape(len(x), math.prod(x.shape[1:]))[index].reshape(len(index), *x.shape[1:])


def views(
    augments: Sequence[Augment | None], keys: Sequence[jax.Array] | jax.Array, x: jax.Array
) -> jax.Array:
    """Return a view of a batch by each augmentation with its key, one after the other, [V B, ...]."""
    return jnp.concatenate([view(*made, x) for made in zip(augments, keys, strict=True)])


def view(augment: Augment | None, key: jax.Array, x: jax.Array) -> jax.Array:
    """Return one view of a batch as floats: augment(x), or x. All methods make their views here.

    Bytes are read as [0, 1], also those that an augmentation returns.
    """
    seen = x if augment is None else augment(key, x)
    has_scale = seen.dtype in (x.dtype, jnp.uint8) or jnp.issubdtype(seen.dtype, jnp.floating)
    has_shape = (
        len(seen) == len(x) if x.ndim == 3 else seen.shape == x.shape
    )  # [B, views, D]: one view
    if not (has_scale and has_shape):
        raise UsageError(
            f"augmentation: returns {seen.dtype}{list(seen.shape)} for {x.dtype}{list(x.shape)}; return this "
            "shape, of uint8 or of floats (in [0, 1] where examples are uint8)"
        )
    return as_float(seen)


ValueAndState = tuple[jax.Array, nnx.State]


# state, anchor, batch, key -> the value to minimize, and the state with its batch statistics moved on
Loss = Callable[[nnx.State, nnx.State, Batch, jax.Array], ValueAndState]


def softmax_cross_entropy(logits: jax.Array, label: jax.Array) -> jax.Array:
    """-log softmax(logits)_label, float32 [...], of logits [..., C] and labels int [...]."""
    log_probability = jax.nn.log_softmax(logits.astype(jnp.float32))
    # Selected, not gathered: the gradient of a gather is a scatter, slow on every device.
    is_label = jax.nn.one_hot(label, logits.shape[-1], dtype=bool)
    return -jnp.sum(jnp.where(is_label, log_probability, 0), axis=-1)


def fixed_softmax(logits: jax.Array) -> jax.Array:
    """softmax(logits), float32 [..., C], held fixed: a target, or a prediction that labels."""
    return jax.lax.stop_gradient(jax.nn.softmax(logits.astype(jnp.float32)))


def focal_loss(logits: jax.Array, label: jax.Array, *, gamma: float = 2.0) -> jax.Array:
    """-(1 - p)^gamma log p with p = softmax(logits)_label (Lin et al., ICCV 2017), float32 [...]."""
    cross_entropy = softmax_cross_entropy(logits, label)
    # expm1 keeps the factor's precision where p is near 1; the clip its gradient finite at p = 1.
    return jnp.maximum(-jnp.expm1(-cross_entropy), 1e-12) ** gamma * cross_entropy


def class_weighted(pointwise: Pointwise, weights: Sequence[float]) -> Pointwise:
    """weights_label l(logits, label): rare or important classes get larger weights.

    `weights` are C numbers; with `focal_loss` this is FLamby's loss for Fed-ISIC2019.
    """
    table = np.asarray(weights, np.float32)

    def weighted(logits: jax.Array, label: jax.Array) -> jax.Array:
        return jnp.asarray(table)[label] * pointwise(logits, label)

    return weighted


POINTWISE: dict[str, Pointwise] = {"cross_entropy": softmax_cross_entropy, "focal": focal_loss}


def weighted_loss(
    model: Model, *, augment: Augment | None = None, pointwise: Pointwise = softmax_cross_entropy
) -> Loss:
    """Confidence-weighted loss of XCLP's ClientUpdate (Section 4.2 and A.2):

        1 / |B| sum_{i in B} weight_i l(f(augment(x_i)), label_i),     |B| = number of used rows.

    The divisor counts rows, not weights (as in the authors' code): a batch of uncertain labels takes
    a small step. The sum is taken over a few examples at a time where that is quicker
    (`examples_at_once`); there the loss has derivatives by the state alone.
    """

    def loss(state: nnx.State, anchor: nnx.State, batch: Batch, key: jax.Array) -> ValueAndState:
        del anchor
        augment_key, model_key = jax.random.split(key)
        x = view(augment, augment_key, batch.x)

        def summed(
            state: nnx.State, x: jax.Array, label: jax.Array, weight: jax.Array
        ) -> ValueAndState:
            logits, moved = model.train_apply(state, x, model_key)
            return jnp.sum(weight * pointwise(logits, label)), moved

        size = examples_at_once(model, state, x)
        if size < len(x):
            over_blocks = few_at_a_time(lambda *rows: summed(*rows)[0], size)
            total = over_blocks(state, x, batch.label, batch.weight)
        else:
            total, state = summed(state, x, batch.label, batch.weight)
        return total / jnp.maximum(jnp.sum(batch.used), 1).astype(jnp.float32), state

    return loss


def augmented_logits(
    model: Model, state: nnx.State, x: jax.Array, key: jax.Array, augment: Augment | None
) -> tuple[jax.Array, nnx.State]:
    """f(augment(x)) in training mode, [B, C], and the state with its running statistics moved on."""
    augment_key, model_key = jax.random.split(key)
    return model.train_apply(state, view(augment, augment_key, x), model_key)


def labeled_mean(value: jax.Array, batch: Batch) -> jax.Array:
    """Mean of float32 [B] over the batch's given labels; 0 without any."""
    return mean_where(value, batch.used & batch.is_labeled)


def unlabeled_mean(value: jax.Array, batch: Batch) -> jax.Array:
    """Mean of float32 [B] over the batch's unlabeled examples; 0 without any."""
    return mean_where(value, batch.used & ~batch.is_labeled)


def mean_where(value: jax.Array, member: jax.Array) -> jax.Array:
    """Mean of float32 [B, ...] over members, bool [B]; 0 without any."""
    counted = jnp.where(member.reshape(-1, *(1,) * (value.ndim - 1)), value, 0)
    return jnp.sum(counted, axis=0) / jnp.maximum(jnp.sum(member), 1).astype(jnp.float32)


def proximal(loss: Loss, mu: float) -> Loss:
    """loss + mu / 2 |w - w_anchor|^2 over all parameters: FedProx (Li et al., MLSys 2020, eq. 2)."""

    def proximal_loss(
        state: nnx.State, anchor: nnx.State, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, nnx.State]:
        value, new_state = loss(state, anchor, batch, key)
        return value + mu / 2 * squared_distance(state, anchor), new_state

    return proximal_loss


def squared_distance(state: nnx.State, other: nnx.State) -> jax.Array:
    """|w - v|^2 over the parameters of two states, float32 scalar."""
    squares = jax.tree.map(
        lambda w, v: jnp.sum(jnp.square(w - v)),
        nnx.filter_state(state, nnx.Param),
        nnx.filter_state(other, nnx.Param),
    )
    return sum(jax.tree.leaves(squares), jnp.float32(0))


def absolute_size(state: nnx.State) -> jax.Array:
    """|w|_1 over the parameters of a state, float32 scalar; its gradient at 0 is 0, not JAX's 1."""
    sizes = jax.tree.map(
        lambda w: jnp.sum(w * jax.lax.stop_gradient(jnp.sign(w))),
        nnx.filter_state(state, nnx.Param),
    )
    return sum(jax.tree.leaves(sizes), jnp.float32(0))


_CACHE_BYTES = 3 * 2**19  # for the results of all of a network's operations on a block
_LEAST_SHARE = 4  # least ratio of those bytes to the parameters'


def examples_at_once(model: Model, state: nnx.State, x: jax.Array) -> int:
    """Number of examples of a batch x [B, ...] in one block of training; B: the whole batch.

    The activations of a convolution are many times larger than its image. For a whole batch they exceed a
    core's cache, and every layer reads and writes them, forward and backward. A block whose activations fit
    goes through all layers and back before the next one starts, for one addition of gradients per block. That
    pays on a CPU, where the parameters are few compared with a block's activations. (Two cores, a round of
    ten clients with 100 images of 28 x 28, batches of 50: convolutions of 32 and 64 channels with a head take
    0.75 of the time; with a dense layer of 200,000 parameters between, 1.1 to 1.6. Blocks inside each layer
    compute what backpropagation needs twice, or store and read it by block: 1.0 and 1.6 of the time.)

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

    A block has `size` rows, the last may have fewer. Only the first derivative by `parameters`, in reverse
    mode, is available, computed together with the value. Memory: one block's activations.
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


# A cosine's slope is 1 over the length. Features that are nearly 0, as of a ReLU layer without a norm, would
# take the model away in one step.
_SHORTEST = 0.01


def unit(vectors: jax.Array) -> jax.Array:
    """Vectors [..., D] divided by their length or 0.01, the larger one; cos(a, b) = unit(a) . unit(b)."""
    squares = jnp.sum(jnp.square(vectors), axis=-1, keepdims=True)
    return vectors * jax.lax.rsqrt(jnp.maximum(squares, _SHORTEST**2))


def instance_discrimination(views: jax.Array, used: jax.Array, temperature: float) -> jax.Array:
    """SimCLR's loss of two views of a batch (Chen et al., ICML 2020, NT-Xent), float32 scalar:

        mean over views z of  -log [ exp(cos(z, z') / T) / sum_{v != z} exp(cos(z, v) / T) ]

    z' is the other view of the same example, v any other view.

    `views` are float32 [2 B, D], row i and row B + i those of example i; `used` is bool [B].
    """
    size = len(used)
    close = unit(views) @ unit(views).T / temperature
    number = jnp.arange(2 * size)
    is_other = number[None, :] == ((number + size) % (2 * size))[:, None]
    both = jnp.concatenate([used, used])
    counts = both[None, :] & (number[None, :] != number[:, None])
    every = jax.nn.logsumexp(jnp.where(counts, close, -jnp.inf), axis=-1)
    return mean_where(every - jnp.sum(jnp.where(is_other, close, 0), axis=-1), both)


def neighborhood_difference(one: jax.Array, other: jax.Array, used: jax.Array) -> jax.Array:
    """Mean over pairs i, j of (cos(a_i, a_j) - cos(b_i, b_j))^2, float32, of [B, D], [B, D'], bool [B]."""
    difference = unit(one) @ unit(one).T - unit(other) @ unit(other).T
    return mean_where(mean_where(jnp.square(difference), used), used)
