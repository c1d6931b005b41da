"""Prototypes: means of a class's embeddings, and probabilities by the distance to them.

    c_k = mean of z over the examples of class k                                    (ProtoFSSL, eq. 2)
    p_k(z) = exp(-d(z, c_k)) / sum_k' exp(-d(z, c_k'))     over the classes there are   (eq. 6)
    sharpened_k = p_k^(1/T) / sum_k' p_k'^(1/T)                                        (eq. 5)

(Kim, Park, Sohn, Shu, Kim, arXiv 2205.13921; see `jaxfed.algorithms.protofssl`.) d is the
Euclidean distance; the authors' code has the mean over dimensions of squared differences instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.federation.clients import Federation
from jaxfed.training.aggregate import weighted_sum

if TYPE_CHECKING:
    from jaxfed.models import Model

Distance = Literal["euclidean", "mean_squared"]

_TINY = 1e-12  # under the root, whose slope at 0 is infinite


class Prototypes(NamedTuple):
    """One prototype for each class, or those of several clients stacked.

    Fields:
        center: float32 [..., C, D]; zeros for a class without one.
        is_present: bool [..., C], True for a class with a prototype.
    """

    center: jax.Array
    is_present: jax.Array


def class_means(
    embedding: jax.Array, label: jax.Array, used: jax.Array, num_classes: int
) -> Prototypes:
    """Means of the used rows of each class: embeddings [n, D], labels int [n], used bool [n]."""
    member = jnp.where(used[:, None], jax.nn.one_hot(label, num_classes), 0)
    count = member.sum(axis=0)
    return Prototypes(_sums(member, embedding) / jnp.maximum(count, 1)[:, None], count > 0)


@jax.custom_jvp
def _sums(member: jax.Array, embedding: jax.Array) -> jax.Array:
    """Sum of the embeddings of each class, [C, D], by class indicators 0 and 1 [n, C]."""
    return jnp.matmul(member.T, embedding, precision=jax.lax.Precision.HIGHEST)


@_sums.defjvp
def _derivative_of_sums(
    primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """The derivative of `_sums`, without a product.

    XLA:CPU (jaxlib 0.10) puts the product's derivative in one YNNPACK fusion with that of distances from
    other rows, which ends the process above 256 of these.
    """
    member, embedding = primals
    moved = jnp.where(member[..., None] > 0, tangents[1][:, None], 0)
    return _sums(member, embedding), jnp.sum(moved, axis=0)


def support_means(embedding: jax.Array, used: jax.Array, num_classes: int) -> Prototypes:
    """Means of the used rows [C n_S, D] of a support, in the order of classes.

    Equals `class_means` of the same rows; a row's position gives its class.
    """
    member = used.reshape(num_classes, -1)
    count = member.sum(axis=1)
    rows = embedding.reshape(*member.shape, -1)
    center = jnp.sum(jnp.where(member[..., None], rows, 0), axis=1)
    return Prototypes(center / jnp.maximum(count, 1).astype(jnp.float32)[:, None], count > 0)


def euclidean(embedding: jax.Array, center: jax.Array) -> jax.Array:
    """|z - c|, float32 [n, C], of [n, D] and [C, D]."""
    return jnp.sqrt(_squared(embedding, center) + _TINY)


def mean_squared(embedding: jax.Array, center: jax.Array) -> jax.Array:
    """|z - c|^2 / D, float32 [n, C]."""
    return _squared(embedding, center) / embedding.shape[-1]


def _squared(embedding: jax.Array, center: jax.Array) -> jax.Array:
    return jnp.sum(jnp.square(embedding[:, None] - center[None]), axis=-1)


DISTANCES: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "euclidean": euclidean,
    "mean_squared": mean_squared,
}


def log_probabilities(
    embedding: jax.Array, prototypes: Prototypes, distance: Distance = "euclidean"
) -> jax.Array:
    """log p_k(z), float32 [n, C]; -inf for classes without a prototype; uniform without any."""
    logits = -DISTANCES[distance](embedding, prototypes.center)
    anything = jnp.any(prototypes.is_present)
    logits = jnp.where(prototypes.is_present | ~anything, logits, -jnp.inf)
    return jax.nn.log_softmax(jnp.where(anything, logits, 0))


def mean_probabilities(
    embedding: jax.Array, helpers: Prototypes, distance: Distance = "euclidean"
) -> jax.Array:
    """p_k(z) averaged over the helpers that have any prototype (eq. 7), float32 [n, C]; zeros without one.

    `helpers` are stacked [H, C, D]. A helper gives probability 0 to a class that it lacks.
    """
    has_any = jnp.any(helpers.is_present, axis=-1)

    def one(prototypes: Prototypes) -> jax.Array:
        return jnp.exp(log_probabilities(embedding, prototypes, distance))

    by_each = jax.vmap(one)(helpers)  # [H, n, C]
    weights = has_any.astype(jnp.float32) / jnp.maximum(jnp.sum(has_any), 1).astype(jnp.float32)
    return weighted_sum(weights, by_each)


def sharpened(probability: jax.Array, temperature: float) -> jax.Array:
    """p^(1/T), normalized over the last axis; zeros stay zeros."""
    # Relative to the largest, or a small T would underflow all of them.
    largest = jnp.max(probability, axis=-1, keepdims=True)
    powered = (probability / jnp.where(largest > 0, largest, 1)) ** (1 / temperature)
    total = jnp.sum(powered, axis=-1, keepdims=True)
    return powered / jnp.where(total > 0, total, 1)


def completed(helpers: Prototypes) -> Prototypes:
    """Fill in each helper's missing prototypes by the others' mean; a helper without any stays empty."""
    joint = joint_means(helpers)
    center = jnp.where(helpers.is_present[..., None], helpers.center, joint.center[None])
    is_present = jnp.any(helpers.is_present, axis=-1, keepdims=True) & joint.is_present[None]
    return Prototypes(center, is_present)


def joint_means(helpers: Prototypes) -> Prototypes:
    """Mean prototype of each class, over the helpers [H, C, D] that have it."""
    count = jnp.sum(helpers.is_present, axis=0)
    total = jnp.sum(jnp.where(helpers.is_present[..., None], helpers.center, 0), axis=0)
    return Prototypes(total / jnp.maximum(count, 1).astype(jnp.float32)[:, None], count > 0)


def message_bytes(shown: Prototypes) -> jax.Array:
    """Bytes of each message of prototypes, int32 [...] of [..., C, D]: C bits mark the existing ones.

    Bits fill whole bytes, numbers are float32. A client without prototypes sends nothing.
    """
    *_, num_classes, dim = shown.center.shape
    number = jnp.sum(shown.is_present, axis=-1, dtype=jnp.int32)
    return jnp.where(number > 0, -(-num_classes // 8) + 4 * dim * number, 0)


def embedding_size(model: Model, state: nnx.State, federation: Federation) -> int:
    """Return D, the dimension of embeddings."""
    dtype = jax.dtypes.canonicalize_dtype(federation.x.dtype)
    example = jax.ShapeDtypeStruct((1, *federation.x.shape[1:]), dtype)
    return int(jax.eval_shape(model.features, state, example).shape[-1])


def nothing_shown(number: int, num_classes: int, dim: int) -> Prototypes:
    """Return the prototypes of `number` clients that have none, [number, C, D]."""
    center = jnp.zeros((number, num_classes, dim))
    return Prototypes(center, jnp.zeros((number, num_classes), bool))
