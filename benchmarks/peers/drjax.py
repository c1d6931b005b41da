"""DrJAX (Rush et al., 2024): a round is one program of `map_fn` over the clients and `reduce_mean`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import drjax
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peers.jax_network import accuracy, mean_loss
from benchmarks.peers.played import Diary
from benchmarks.peers.task import Task


def play(task: Task, diary: Diary, folder: Path) -> None:
    """Play the experiment."""
    del folder
    settings, rng = task.settings, np.random.default_rng(0)
    x, y = task.x, task.labels.astype("int32")

    def client_update(parameters: Any, batches: Any) -> Any:
        def step(parameters: Any, batch: Any) -> tuple[Any, None]:
            slope = jax.grad(mean_loss)(parameters, *batch)
            rate = settings.learning_rate
            return jax.tree.map(lambda p, g: p - rate * g, parameters, slope), None

        return jax.lax.scan(step, parameters, batches)[0]

    @jax.jit
    @drjax.program(clients=settings.cohort_size)
    def play_round(parameters: Any, batches: Any) -> Any:
        sent = drjax.broadcast(parameters)
        return drjax.reduce_mean(drjax.map_fn(client_update, (sent, batches)))

    parameters = jax.tree.map(jnp.asarray, task.start)
    for number in range(1, settings.rounds + 1):
        clients = rng.choice(len(task.clients), settings.cohort_size, replace=False)
        orders = np.stack([rng.permutation(task.clients[client]) for client in clients])
        rows = orders.reshape(settings.cohort_size, -1, settings.batch_size)
        parameters = jax.block_until_ready(play_round(parameters, (x[rows], y[rows])))
        if settings.is_evaluated(number):
            diary.measured(accuracy(parameters, task.x_test, task.test_labels))
        diary.round_ended()
