"""Points of XCLP's graph: a cohort's embedded examples, or prototypes in place of the labeled ones.

    v_i = f(x_i)                                                          every example is a point
    c_kc = mean of f(x) over client k's labels of class c                 a point with the label c,
                                                                          in place of those examples

f is the network that the round starts from, with the client's own running statistics if it keeps some.
With prototypes (ProtoFSSL: `jaxfed.training.pseudo_labels.prototypes`) a client has at most C labeled points,
however many labels it has. It sends fewer codes, and they depend on fewer single examples.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxfed.federation.clients import UNLABELED
from jaxfed.federation.cohort import Cohort
from jaxfed.training.pseudo_labels.prototypes import class_means
from jaxfed.training.pseudo_labels.pseudo_label import Embed, Points
from jaxfed.training.server.server_state import ServerState


def all_examples(embed: Embed) -> Points:
    """Every example, embedded."""

    def points(state: ServerState, cohort: Cohort, key: jax.Array) -> Cohort:
        return cohort._replace(x=embed(state, cohort, key))

    return points


def with_prototypes(embed: Embed, num_classes: int) -> Points:
    """Unlabeled examples, embedded, and each client's prototypes.

    A prototype takes the row of the first label in its mean; rows of the others are padding. If a client has
    at most one label of each class, its points are those of `all_examples`.
    """

    @jax.jit
    def in_place(
        features: jax.Array, y: jax.Array, mask: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        is_labeled = mask & (y >= 0)
        means = class_means(features, y, is_labeled, num_classes)
        of_class = is_labeled[:, None] & jax.nn.one_hot(y, num_classes, dtype=bool)
        is_first = jnp.any(of_class & (jnp.cumsum(of_class, axis=0) == 1), axis=1)
        own = means.center[jnp.maximum(y, 0)]
        return (
            jnp.where(is_first[:, None], own, features),
            jnp.where(is_first | (y < 0), y, UNLABELED),
            mask & (is_first | (y < 0)),
        )

    def points(state: ServerState, cohort: Cohort, key: jax.Array) -> Cohort:
        y, mask = jnp.asarray(cohort.y), jnp.asarray(cohort.mask)
        x, y, mask = jax.vmap(in_place)(jnp.asarray(embed(state, cohort, key)), y, mask)
        return cohort._replace(x=x, y=y, mask=mask)

    return points
