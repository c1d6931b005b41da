"""Predictions of clients' networks: all clients in one program, and the check that scores are finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.federation.cohort import Array
from jaxfed.federation.execution.client_map import jitted
from jaxfed.kernels.devices.padding import in_batches
from jaxfed.learners.learner import LearnerError, Predict
from jaxfed.training.server.client_rows import gather
from jaxfed.training.specification import Training

NAME = "network"
SPOILED = -2  # no class: marks scores that are NaN or infinite
_BATCH = 500  # examples at a time in prediction


def answering(
    training: Training,
    of_logits: Callable[[jax.Array], jax.Array],
    without: int,
    spoiled: float,
) -> Predict:
    """Return the prediction by this function of logits; it is `without` for clients without a network.

    A state has the fields `model` and `fits` of `jaxfed.learners.networks.NetworkState`. For logits that are
    NaN or infinite the prediction is `spoiled` on the device, and an error on the host.

    Raises:
        LearnerError: in the prediction, logits that are NaN or infinite; it has the others' answers.
    """

    @jitted
    def answers(models: nnx.State, is_there: jax.Array, x: jax.Array) -> jax.Array:
        logits = training.execution.map_clients(lambda x, one: training.model.apply(one, x))(
            x, models
        )
        logits = logits.astype(jnp.float32)
        answer = of_logits(logits)
        is_whole = (
            jnp.isfinite(logits).all(axis=-1).reshape(*logits.shape[:2], *(1,) * (answer.ndim - 2))
        )
        answer = jnp.where(is_whole, answer, jnp.asarray(spoiled, answer.dtype))
        is_there = is_there.reshape(-1, *(1,) * (answer.ndim - 1))
        return jnp.moveaxis(jnp.where(is_there, answer, without), 0, 1)

    def predict(state: Any, client_id: Array, x: Array) -> np.ndarray:
        ids = np.asarray(client_id)
        missing = -len(ids) % training.execution.clients_multiple
        rows = np.concatenate([ids, np.full(missing, -1, ids.dtype)])
        models, fits = gather((state.model, state.fits), rows)
        is_there = (fits > 0) | (training.initial_model is not None)
        answer = in_batches(lambda batch: answers(models, is_there, batch), x, _BATCH)
        answer = np.ascontiguousarray(np.moveaxis(answer, 1, 0)[: len(ids)])
        _check_whole(answer, ids, spoiled)
        return answer

    return predict


def _check_whole(answer: np.ndarray, ids: np.ndarray, spoiled: float) -> None:
    """Check that no client's answers are `spoiled`.

    Raises:
        LearnerError: those of some clients are; it has the others' answers.
    """
    is_spoiled = np.isnan(answer) if np.isnan(spoiled) else answer == spoiled
    is_spoiled = is_spoiled.reshape(len(ids), -1).any(axis=1) & (ids >= 0)
    if is_spoiled.any():
        failed = dict.fromkeys(ids[is_spoiled].tolist(), "scores that are nan or infinite")
        client, why = next(iter(failed.items()))
        raise LearnerError(client, NAME, why, failed=failed, answers=answer)
