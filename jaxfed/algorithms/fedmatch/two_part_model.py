"""Models whose parameters are a sum of two parts, theta = sigma + psi, each trained in its own way.

A state {sigma, psi} holds a plain model's state, running statistics included, and a second set of its
parameters. FedMatch trains sigma by labels and psi, which is to be sparse, by unlabeled examples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.algorithms.fedmatch.sparse_message import (
    num_bytes_of_nonzero,
    where_changed,
    without_small,
)
from jaxfed.federation.communication import num_bytes_of
from jaxfed.models.model import compose
from jaxfed.training.server.server_state import together, with_statistics

if TYPE_CHECKING:
    from jaxfed.models import Model

_PSI_SCALE = 0.2  # psi / sigma at the start


def decompose(state: nnx.State) -> nnx.State:
    """{sigma: a model's state, psi: 0.2 of its parameters}."""
    parameters, _ = nnx.split_state(state, nnx.Param, ...)
    return together(sigma=state, psi=jax.tree.map(lambda w: _PSI_SCALE * w, parameters))


def divided(state: nnx.State) -> nnx.State:
    """A model's state as the sum of two parts, psi = s sigma: w / (1 + s) and s w / (1 + s), s = 0.2."""
    parameters, statistics = nnx.split_state(state, nnx.Param, ...)
    sigma = jax.tree.map(lambda w: w / (1 + _PSI_SCALE), parameters)
    return decompose(nnx.merge_state(sigma, statistics))


def composed(state: nnx.State) -> nnx.State:
    """The plain model's state: parameters sigma + psi, and sigma's running statistics."""
    sigma, statistics = nnx.split_state(state["sigma"], nnx.Param, ...)
    return nnx.merge_state(jax.tree.map(jnp.add, sigma, state["psi"]), statistics)


def sparse(state: nnx.State, psi_threshold: float) -> nnx.State:
    """{sigma, psi} with psi's entries of at most `psi_threshold` in absolute value set to 0."""
    return together(sigma=state["sigma"], psi=without_small(state["psi"], psi_threshold))


def changed(
    received: nnx.State, trained: nnx.State, threshold: float
) -> tuple[nnx.State, jax.Array]:
    """Return a client's model as the server receives it, from entries changed by more than `threshold`.

    Returns:
        {sigma, psi} at the server, with statistics as trained, and the bytes, int32, of one message for each
        part's parameters (`jaxfed.algorithms.fedmatch.sparse_message`).
    """
    before = nnx.filter_state(received, nnx.Param)
    after, statistics = nnx.split_state(trained, nnx.Param, ...)
    sigma, sigma_bytes = where_changed(before["sigma"], after["sigma"], threshold)
    psi, psi_bytes = where_changed(before["psi"], after["psi"], threshold)
    returned = nnx.merge_state(together(sigma=sigma, psi=psi), statistics)
    return returned, sigma_bytes + psi_bytes


def received_bytes(psi_threshold: float) -> Callable[[nnx.State], int]:
    """Return a function: parameters {sigma, psi} -> bytes of all of sigma and of a sparse psi's nonzeros."""

    @jax.jit
    def psi_bytes(psi: nnx.State) -> jax.Array:
        return num_bytes_of_nonzero(without_small(psi, psi_threshold))

    return lambda parameters: num_bytes_of(parameters["sigma"]) + int(psi_bytes(parameters["psi"]))


def log_probabilities(model: Model, sigma: nnx.State, psi: nnx.State, x: jax.Array) -> jax.Array:
    """log softmax(f_{sigma + psi_j}(x)), float32 [H, B, C], of one sigma and psi_j [H, ...].

    In evaluation mode, with sigma's statistics; no gradient flows through them.
    """

    def one(psi_j: nnx.State) -> jax.Array:
        logits = model.apply(composed(together(sigma=sigma, psi=psi_j)), x)
        return jax.nn.log_softmax(logits.astype(jnp.float32))

    return jax.lax.stop_gradient(jax.lax.map(one, psi))


def with_statistics_of(state: nnx.State, moved: nnx.State) -> nnx.State:
    """{sigma, psi} with the running statistics of a plain model's state."""
    statistics = nnx.split_state(moved, nnx.Param, ...)[1]
    return together(sigma=with_statistics(state["sigma"], statistics), psi=state["psi"])


def with_parts_of(before: nnx.State, after: nnx.State, part: str) -> nnx.State:
    """{sigma, psi} as `after`, with the parameters of one part as they were."""
    statistics = nnx.split_state(after[part], nnx.Param, ...)[1]
    parts = {"sigma": after["sigma"], "psi": after["psi"]}
    return together(**parts | {part: with_statistics(before[part], statistics)})


def two_part_model(model: Model, psi_threshold: float = 0.0) -> Model:
    """The model of states {sigma, psi}: evaluated with a sparse psi, trained with all of it."""

    def init(key: jax.Array) -> nnx.State:
        return decompose(model.init(key))

    def features(state: nnx.State, x: jax.Array) -> jax.Array:
        return model.features(composed(sparse(state, psi_threshold)), x)

    def head(state: nnx.State, features: jax.Array) -> jax.Array:
        return model.head(composed(sparse(state, psi_threshold)), features)

    def train_features(
        state: nnx.State, x: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, nnx.State]:
        trained, moved = model.train_features(composed(state), x, key)
        return trained, with_statistics_of(state, moved)

    return compose(init=init, features=features, head=head, train_features=train_features)
