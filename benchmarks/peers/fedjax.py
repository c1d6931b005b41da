"""FedJAX (Ro, Suresh, Wu, 2021): its FedAvg over in-memory clients, as in its first tutorial.

It was written for JAX 0.3; an alias that JAX has removed since is restored.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.peers.jax_network import accuracy, mean_loss
from benchmarks.peers.played import Diary
from benchmarks.peers.task import Task

if not hasattr(jax, "tree_map"):
    jax.tree_map = jax.tree.map  # type: ignore[attr-defined]
import fedjax


def averaging(
    learning_rate: float,
    batch_size: int,
    *,
    normalized: Callable[[Any], Any] = lambda x: x,
    seed: int = 0,
) -> Any:
    """Its FedAvg of one epoch of SGD, over a task's network, whose images are normalized in the loss."""

    def loss(parameters: Any, batch: Any, key: Any) -> jax.Array:
        del key
        return mean_loss(parameters, normalized(batch["x"]), batch["y"])

    return fedjax.algorithms.fed_avg.federated_averaging(
        jax.jit(jax.grad(loss)),
        fedjax.optimizers.sgd(learning_rate),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=batch_size, num_epochs=1, seed=seed),
    )


def play(task: Task, diary: Diary, folder: Path) -> None:
    """Play the experiment."""
    del folder
    settings = task.settings
    x, y = task.x, task.labels.astype("int32")
    federated_data = fedjax.InMemoryFederatedData(
        {str(client): {"x": x[rows], "y": y[rows]} for client, rows in enumerate(task.clients)}
    )

    algorithm = averaging(settings.learning_rate, settings.batch_size)
    sampler = fedjax.client_samplers.UniformGetClientSampler(
        federated_data, num_clients=settings.cohort_size, seed=0
    )
    state = algorithm.init(jax.tree.map(jnp.asarray, task.start))
    for number in range(1, settings.rounds + 1):
        state, _diagnostics = algorithm.apply(state, sampler.sample())
        if settings.is_evaluated(number):
            diary.measured(accuracy(state.params, task.x_test, task.test_labels))
        jax.block_until_ready(state.params)
        diary.round_ended()
