"""Attack surface of methods that average parameters: each client's model, and the mean.

    w_k = w + delta_k      as client k sends it in the round,         w' = the server's model after it

The round runs once more and records the deltas instead of taking the server's step. The same state, cohort
and key give the same updates, bit for bit. Other uploads that the server classifies by belong to the
client's model (`Classifier.of_client`). Answers are predictions by such a message. Gradients are those of
their cross-entropy by all numbers of the message: parameters, running statistics, prototypes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.federation.algorithm import Round
from jaxfed.federation.attack_surface import ANYBODY, View, Views
from jaxfed.federation.cohort import Cohort, arranged, chosen
from jaxfed.kernels.devices.padding import in_batches, rows_at_once
from jaxfed.training.round.server_hooks import Classifier
from jaxfed.training.server.aggregate import Aggregate
from jaxfed.training.server.clipped_mean import norm

_GRADIENTS = 20  # at a time; each is as large as the message
_TINY = 1e-37  # below it a probability has gradient 0


def _keep(model: nnx.State, deltas: nnx.State, weights: jax.Array, state: Any) -> tuple[Any, Any]:
    del weights, state
    return model, (model, deltas)


# A server that takes no step. The optimizer's state after a round is the model that clients received, and
# their deltas [K, ...].
RECORDING = Aggregate(lambda model: (), _keep)


def parameter_views(
    recorded: Callable[[], Round],
    classifier: Classifier,
    multiple: int,
    places_of: Callable[[Any, Cohort, jax.Array], np.ndarray] | None = None,
) -> Views:
    """Return the views of a method that averages parameters.

    Args:
        recorded: makes the method's round with the aggregate `RECORDING`; called at the first view.
        classifier: classification by a state, or by a client's upload.
        multiple: a cohort is padded to a multiple of this number of clients.
        places_of: state, cohort, key -> places of the clients that train; None: all.
    """
    made: list[Round] = []
    probabilities, norms = jax.jit(classifier.probabilities), jax.jit(_gradient_norms(classifier))

    def answers(seen: list[Any], x: np.ndarray) -> np.ndarray:
        each = [in_batches(partial(probabilities, one), x, rows_at_once()) for one in seen]
        return np.stack(each).astype(np.float32)

    def gradients(seen: list[Any], x: np.ndarray, y: np.ndarray) -> np.ndarray:
        def of_rows(one: Any, rows: np.ndarray) -> jax.Array:
            return norms(one, x[rows], y[rows])

        each = [in_batches(partial(of_rows, one), np.arange(len(x)), _GRADIENTS) for one in seen]
        return np.stack(each).astype(np.float32)

    def view(message: str, client: list[int], seen: list[Any]) -> View:
        return View(
            message,
            "parameters",
            np.asarray(client, np.int32),
            answers=lambda x: answers(seen, x),
            gradient_norms=lambda x, y: gradients(seen, x, y),
        )

    def views(before: Any, after: Any, cohort: Cohort, key: jax.Array) -> list[View]:
        if not made:
            made.append(recorded())
        received, deltas = made[0](before, cohort, key)[0].optimizer
        if places_of is not None:
            cohort = chosen(cohort, places_of(before, cohort, key))
        ids = np.asarray(arranged(cohort, multiple).client_id).tolist()
        there = [(row, client) for row, client in enumerate(ids) if client >= 0]
        uploads = [
            jax.tree.map(lambda start, change, row=row: start + change[row], received, deltas)
            for row, _ in there
        ]
        clients = [client for _, client in there]
        sent = [
            classifier.of_client(after, own, client)
            for own, client in zip(uploads, clients, strict=True)
        ]
        return [
            view("a client's model", clients, sent),
            view("the mean", [-1], [classifier.needed(after)])._replace(adversary=ANYBODY),
        ]

    return views


def _gradient_norms(classifier: Classifier) -> Callable[[Any, jax.Array, jax.Array], jax.Array]:
    """Return a function: message, x [n, ...], y int32 [n] -> float32 [n]; cost: one gradient per example."""

    def norms(needed: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        leaves, form = jax.tree.flatten(needed)
        is_number = [jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves]
        numbers = [leaf for leaf, moves in zip(leaves, is_number, strict=True) if moves]

        def loss(numbers: list[jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
            moving = iter(numbers)
            whole = [
                next(moving) if moves else leaf
                for leaf, moves in zip(leaves, is_number, strict=True)
            ]
            probability = classifier.probabilities(jax.tree.unflatten(form, whole), x[None])[0, y]
            return -jnp.log(jnp.maximum(probability, _TINY))

        def one(x: jax.Array, y: jax.Array) -> jax.Array:
            gradient = jax.grad(loss)(numbers, x, y)
            return norm([leaf.astype(jnp.float32) for leaf in gradient])

        return jax.vmap(one)(x, y)

    return norms
