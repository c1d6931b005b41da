"""A client: some epochs of SGD on its labeled examples, from the server's weights."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


def loss_of(weights: list[jax.Array], x: jax.Array, y: jax.Array, mask: jax.Array) -> jax.Array:
    """Return the mean cross-entropy of a batch; rows without mask do not count."""
    first, first_bias, second, second_bias = weights
    logits = jax.nn.relu(x @ first + first_bias) @ second + second_bias
    losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1)[:, 0]
    return (losses * mask).sum() / mask.sum()


@jax.jit
def epochs_of(
    weights: list[jax.Array], x: jax.Array, y: jax.Array, mask: jax.Array, rate: jax.Array
) -> list[jax.Array]:
    """Make one step for each batch of x [steps, B, ...]."""

    def step(
        weights: list[jax.Array], batch: tuple[jax.Array, ...]
    ) -> tuple[list[jax.Array], None]:
        gradients = jax.grad(loss_of)(weights, *batch)
        return [w - rate * g for w, g in zip(weights, gradients, strict=True)], None

    return jax.lax.scan(step, weights, (x, y, mask))[0]


@app.train()
def train(message: Message, context: Context) -> Message:
    """Return the weights after the epochs, and the number of examples."""
    with np.load(Path(str(context.node_config["data"]), "train.npz")) as arrays:
        labeled = arrays["y"] >= 0
        x = arrays["x"][labeled].reshape(labeled.sum(), -1).astype(np.float32)
        x = (x - context.run_config["mean"]) / context.run_config["deviation"]
        y = arrays["y"][labeled]
    size = int(str(context.run_config["batch-size"]))
    epochs, steps = int(str(context.run_config["epochs"])), -(-len(y) // size)
    draw = np.random.default_rng()
    order = np.concatenate(
        [np.resize(draw.permutation(len(y)), steps * size) for _ in range(epochs)]
    )
    mask = np.tile((np.arange(steps * size) < len(y)).astype(np.float32), epochs)
    steps *= epochs
    received = message.content["arrays"]
    assert isinstance(received, ArrayRecord)
    weights = epochs_of(
        [jnp.asarray(array) for array in received.to_numpy_ndarrays()],
        x[order].reshape(steps, size, -1).astype(np.float32),
        y[order].reshape(steps, size),
        mask.reshape(steps, size),
        jnp.float32(context.run_config["learning-rate"]),
    )
    content = RecordDict(
        {
            "arrays": ArrayRecord([np.asarray(w) for w in weights]),
            "metrics": MetricRecord({"num-examples": len(y)}),
        }
    )
    return Message(content=content, reply_to=message)
