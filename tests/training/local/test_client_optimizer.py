"""What becomes of the state of clients' optimizers between rounds: dropped, or kept by each."""

import dataclasses
from functools import cache

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from on_demand import on_demand
from small_training import (
    RATE,
    assert_close,
    federation_of,
    rounds_of,
    training_of,
)

from jaxfed.algorithms.fedavg import fedavg
from jaxfed.training.local.batches import Batches

BATCH = Batches("joint", 16, 1)  # all that a client of these tests has: one step an epoch
OPTIMIZERS = {
    "rmsprop": lambda rate: optax.rmsprop(rate, momentum=0.5),
    "adam": optax.adam,
    "injected": lambda rate: optax.inject_hyperparams(optax.sgd)(rate, momentum=0.9),
}


def training(optimizer, kind="kept", epochs=2):
    batches = dataclasses.replace(BATCH, epochs=epochs)
    return training_of(batches, optimizer=OPTIMIZERS[optimizer], client_optimizer=kind)


@cache
def slope():
    """The gradient of the mean cross-entropy by the network's parameters, one program for all clients."""
    model = training_of(BATCH).model

    @jax.jit
    @jax.grad
    def program(parameters, x, y):
        logits = model.apply(parameters, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    return program


def by_optax(state, optimizer_state, federation, client, number, optimizer, steps=2):
    """One client's full-batch steps in round `number`, written with optax alone."""
    points = federation.points(client)
    x, y = federation.x[points], federation.y[points]
    rate = RATE / (1 + number)
    step = OPTIMIZERS[optimizer](rate)
    parameters = nnx.filter_state(state, nnx.Param)
    if optimizer_state is None:
        optimizer_state = step.init(parameters)
    if optimizer == "injected":
        optimizer_state = optimizer_state._replace(
            hyperparams={**optimizer_state.hyperparams, "learning_rate": jnp.float32(rate)}
        )

    for _ in range(steps):
        with jax.numpy_dtype_promotion("standard"):
            updates, optimizer_state = step.update(
                slope()(parameters, x, y), optimizer_state, parameters
            )
        parameters = optax.apply_updates(parameters, updates)
    return parameters, optimizer_state


@pytest.mark.parametrize("optimizer", on_demand(OPTIMIZERS, at_once=["adam", "injected"]))
@pytest.mark.parametrize("kind", ["fresh", "kept"])
@pytest.mark.sample(1)
def test_two_rounds_by_optax(optimizer, kind):
    """Client 0 takes part twice, 1 in round 1, 2 in round 2; the rate falls from round to round."""
    if optimizer == "adam":
        jax.config.update("jax_numpy_dtype_promotion", "standard")
    try:
        federation = federation_of([10, 10, 10])
        ingredients = training(optimizer, kind)
        cohorts = [[0, 1], [0, 2]]
        states = rounds_of(fedavg(training=ingredients), federation, 2, cohorts)
    finally:
        jax.config.update("jax_numpy_dtype_promotion", "strict")
    expected, kept = states[0].model, {}
    for number, cohort in enumerate(cohorts):
        trained = []
        for client in cohort:
            start = kept.get(client) if kind == "kept" else None
            own, kept[client] = by_optax(expected, start, federation, client, number, optimizer)
            trained.append(own)
        expected = jax.tree.map(lambda a, b: (a + b) / 2, *trained)
    assert_close(states[2].model, expected, rtol=1e-4, atol=1e-5)
    stored = states[2].client_optimizers
    if kind == "fresh":
        assert stored == ()
        return
    for client, state in kept.items():
        assert_close(jax.tree.map(lambda leaf, c=client: leaf[c], stored), state, 1e-3, 2e-5)
