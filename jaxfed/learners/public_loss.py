"""The loss of a network on its own labels and on the targets of public examples.

    mean_{i in B} l(f(x_i), y_i)  +  lambda  sum_{u in P} w_u d(f(u), L_u) / sum_{u in P} w_u

B is a batch of the client's own labeled examples, P one of public examples, drawn at random (with
replacement) in every step among those that have a label and a weight above 0. With d the cross-entropy of
consensus labels this is a step of FedCT (arXiv 2310.05696, Algorithm 1, line 3, with mini-batches for D u P;
B and P as large as each other and lambda = 1 are its authors' later code); with d the squared distance of
softmax f(u) to the clients' mean answer it is one of distributed distillation (Bistritz, Mann, Bambos,
NeurIPS 2020); with d a distance of scores it is FedMD's digestion (Li, Wang, arXiv 1910.03581).

Both batches go through the network together: BatchNorm's statistics cover both, as in that code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.learners.learner import Taught
from jaxfed.training.local.consistency import soft_cross_entropy
from jaxfed.training.local.losses import (
    Augment,
    Batch,
    Loss,
    Pointwise,
    augmented_logits,
    mean_where,
    softmax_cross_entropy,
    taken,
)

if TYPE_CHECKING:
    from jaxfed.models import Model

SoftDistance = Callable[[jax.Array, jax.Array], jax.Array]  # logits, targets [B, C] -> [B]


def squared_distance(logits: jax.Array, target: jax.Array) -> jax.Array:
    """|softmax(logits) - z|^2, float32 [B], of logits and probabilities z [B, C]."""
    return jnp.sum(jnp.square(jax.nn.softmax(logits.astype(jnp.float32)) - target), axis=-1)


def score_l1(logits: jax.Array, target: jax.Array) -> jax.Array:
    """Mean over the classes of |logits - z|, float32 [B], of logits and scores z [B, C]."""
    return jnp.mean(jnp.abs(logits.astype(jnp.float32) - target), axis=-1)


SOFT_DISTANCES: dict[str, SoftDistance] = {
    "soft_cross_entropy": soft_cross_entropy,
    "squared_distance": squared_distance,
    "score_l1": score_l1,
}
PUBLIC_LOSSES = ("label", *SOFT_DISTANCES)


def public_rows(
    public: Taught, *, batch_size: int, public_loss: str = "label"
) -> Callable[[jax.Array], jax.Array]:
    """Return the draw of P: a step's key -> rows of U, int32 [|P|], with replacement among `counts`.

    Cost: log U comparisons for each row.
    """
    # Draws are ranks among the examples with a target and a weight.
    rank = jnp.cumsum(public.counts(public_loss), dtype=jnp.int32)

    def rows(key: jax.Array) -> jax.Array:
        draw_key, _ = jax.random.split(key)
        drawn = jax.random.randint(draw_key, (batch_size,), 0, jnp.maximum(rank[-1], 1))
        return jnp.searchsorted(rank, drawn, side="right").astype(jnp.int32)

    return rows


def taught_loss(
    model: Model,
    public: Taught,
    *,
    pseudo_weight: float,
    public_loss: str = "label",
    augment: Augment | None = None,
    pointwise: Pointwise = softmax_cross_entropy,
) -> Loss:
    """The loss above for one client, on the batches of its own examples from `train`.

    `Batch.beside` is P, drawn by `public_rows`.

    A client without own labels has the second term alone, and a client without public targets the first. For
    BatchNorm, rows of the other batch then replace the missing ones.

    Args:
        model: f.
        public: U and its targets.
        pseudo_weight: lambda.
        public_loss: d; "label" is `pointwise` of labels, others are in `SOFT_DISTANCES`.
        augment: random changes of both batches.
        pointwise: l.

    Cost: a pass over |B| + |P| examples; U is never copied.
    """
    has_public = jnp.any(public.counts(public_loss))

    def loss(
        state: nnx.State, anchor: nnx.State, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, nnx.State]:
        del anchor
        _, pass_key = jax.random.split(key)  # the other is for `public_rows`
        rows, has_own = batch.beside, jnp.any(batch.used)
        x = jax.lax.cond(
            has_own & has_public,
            lambda own, theirs: jnp.concatenate([own, theirs]),
            lambda own, theirs: jnp.concatenate(
                [
                    jnp.where(has_own, own, _as_many(theirs, len(own))),
                    jnp.where(has_public, theirs, _as_many(own, len(rows))),
                ]
            ),
            batch.x,
            taken(jnp.asarray(public.x), rows),
        )
        logits, state = augmented_logits(model, state, x, pass_key, augment)
        on_own, on_public = logits[: len(batch.x)], logits[len(batch.x) :]
        if public_loss == "label":
            distance = pointwise(on_public, jnp.maximum(public.label[rows], 0))
        else:
            assert public.soft is not None
            distance = SOFT_DISTANCES[public_loss](on_public, public.soft[rows])
        weight = jnp.where(has_public, public.weight[rows], 0)
        weighted = jnp.sum(weight * distance) / jnp.maximum(jnp.sum(weight), 1e-12)
        own = mean_where(pointwise(on_own, batch.label), batch.used)
        return own + pseudo_weight * weighted, state

    return loss


def _as_many(x: jax.Array, number: int) -> jax.Array:
    """Repeat the rows of x up to `number` rows."""
    return x[jnp.arange(number) % len(x)]
