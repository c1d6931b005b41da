"""`training.trainable`: the part of a network that is trained, and that everything else is as it was."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import refusals
from flax import nnx
from small_networks import DeepHead
from small_training import federation_of, training_of

from jaxfed.algorithms.fedavg import fedavg
from jaxfed.federation.communication import num_bytes_of
from jaxfed.host.checkpoint import Checkpoints
from jaxfed.models import MODELS, from_flax
from jaxfed.models.head import dense_head, head_paths, leaf_of, with_leaf
from jaxfed.models.model import from_module
from jaxfed.models.trainable import partly_trained
from jaxfed.testing.method_checks import arranged, assert_equal, played, rounds_of, started
from jaxfed.training.local.batches import Batches
from jaxfed.training.round.round import server_optimizer

VIT = {"patch_size": 4, "width": 8, "depth": 1, "heads": 2}
LORA = (
    *("training.trainable=lora", "training.lora_rank=2", "preprocessing.kind=images"),
    *("model.name=vit", *(f"model.{key}={value}" for key, value in VIT.items())),
)
NUM_B = 2 * (4 * 8 + 32 + 8)  # numbers of B: query, key, value, output, and the MLP's two
NUM_LORA = 4 * (NUM_B + 2 * (4 * 8 + 8 + 32) + 8 * 10 + 10)  # bytes with A and the head


class Dense(nnx.Module):
    """A network of dense layers without biases: nothing but what a full low-rank update can train."""

    def __init__(self, rngs):
        self.first = nnx.Linear(4, 4, use_bias=False, rngs=rngs)
        self.second = nnx.Linear(4, 4, use_bias=False, rngs=rngs)
        self.last = nnx.Linear(4, 3, use_bias=False, rngs=rngs)

    def __call__(self, x):
        return self.head(self.features(x))

    def features(self, x):
        return jnp.tanh(self.second(jnp.tanh(self.first(x))))

    def head(self, features):
        return self.last(features)


def names(state):
    return {".".join(map(str, path)) for path, _ in nnx.to_flat_state(state)}


def of_rank(rank):
    return {"lora_rank": rank, "lora_alpha": 16.0, "lora_factors": "both"}


PARTS = {
    "head": {"head.kernel", "head.bias"},
    "norms": {f"units.{i}.norm.{leaf}" for i in (0, 1) for leaf in ("scale", "bias", "mean", "var")}
    | {"head.kernel", "head.bias"},
    "lora": {"dense.lora_a", "dense.lora_b", "head.kernel", "head.bias"}
    | {f"units.{i}.norm.{leaf}" for i in (0, 1) for leaf in ("mean", "var")},
}


@pytest.mark.parametrize("trainable", PARTS)
def test_a_part_is_trained_and_all_else_stays(trainable):
    whole = MODELS["cnn"]((8, 8, 1), 3, channels=(2, 3), hidden=5, norm="batch")
    start = whole.init(jax.random.key(0))
    model, part = partly_trained(whole, start, trainable, **of_rank(2))
    x = jax.random.uniform(jax.random.key(1), (6, 8, 8, 1))
    state = part(start)
    assert names(state) == names(model.init(jax.random.key(2))) == PARTS[trainable]
    np.testing.assert_allclose(
        jax.jit(model.apply)(state, x), jax.jit(whole.apply)(start, x), atol=1e-6
    )

    def loss(state):
        logits, moved = model.train_apply(state, x, jax.random.key(3))
        return jnp.square(logits - 1).sum(), moved

    gradient, moved = jax.jit(jax.grad(loss, has_aux=True))(state)
    assert jax.tree.structure(moved) == jax.tree.structure(state)
    learning = nnx.filter_state(gradient, nnx.Param)
    still = {path[-1] for path, leaf in nnx.to_flat_state(learning) if not np.any(leaf[...])}
    assert still <= {"lora_a"}  # its gradient is 0 as long as B is


def test_full_rank_with_a_fixed_factor_is_training_all():
    """SGD with momentum at clients and server, rounds of FedAvg, unequal clients."""
    federation, optimizer = federation_of((20, 10, 15)), partial(optax.sgd, momentum=0.7)
    whole = from_flax(Dense, (4,))
    start = whole.init(jax.random.key(0))
    made = {}
    for one in ("all", "lora"):
        model, part = partly_trained(
            whole, start, one, lora_rank=4, lora_alpha=4.0, lora_factors="b"
        )
        training = training_of(Batches("joint", size=4, epochs=2)).with_server(
            aggregate=server_optimizer(optax.sgd(0.9, momentum=0.5))
        )
        training = training.with_local(optimizer=optimizer, learning_rate=lambda count: 0.1)
        algorithm = fedavg(training=replace(training, model=model, initial_model=part(start)))
        state = algorithm.init(jax.random.key(0), federation)
        for number in range(1, 4):
            key = jax.random.fold_in(jax.random.key(0), number)
            state, _ = algorithm.round(state, federation.cohort([0, 1, 2]), key)
        made[one] = algorithm.predict(state, federation.x)
    moved = np.abs(made["all"] - jax.nn.softmax(whole.apply(start, federation.x))).max()
    assert moved > 0.05
    np.testing.assert_allclose(made["all"], made["lora"], atol=2e-5)


def test_the_mean_of_products_is_exact_with_a_fixed_factor_alone():
    whole = from_flax(Dense, (4,))
    start, x = whole.init(jax.random.key(0)), np.eye(4, dtype=np.float32)
    differences = {}
    for factors in ("b", "both"):
        model, part = partly_trained(
            whole, start, "lora", lora_rank=1, lora_alpha=1.0, lora_factors=factors
        )
        assert any("lora_a" in name for name in names(part(start))) == (factors == "both")
        states = [
            jax.tree.map(
                lambda leaf, seed=seed: leaf + jax.random.normal(jax.random.key(seed), leaf.shape),
                part(start),
            )
            for seed in (1, 2)
        ]
        mean = jax.tree.map(lambda a, b: (a + b) / 2, *states)
        first = [_first_layer(model, state, x) for state in (*states, mean)]
        differences[factors] = np.abs((first[0] + first[1]) / 2 - first[2]).max()
    assert differences["b"] < 1e-5
    assert differences["both"] > 0.1


def _first_layer(model, state, x):
    """The first layer's effect, read by a small x: tanh is nearly linear, the second layer's is not moved."""
    state = nnx.from_flat_state(
        (path, leaf.replace(jnp.zeros_like(leaf[...])) if path[0] == "second" else leaf)
        for path, leaf in nnx.to_flat_state(state)
    )
    return np.asarray(model.features(state, 1e-3 * x)) * 1e3


def test_a_run_resumes_bit_for_bit(tmp_path):
    """Its bytes are those of what is trained, and of a control variate of it."""
    config, federation, algorithm = arranged("scaffold", settings=LORA)
    first, second = rounds_of(algorithm, config, federation, started(algorithm, federation), 1, 2)
    assert first.metrics["communication"]["upload_bytes"] == 4 * 2 * NUM_LORA
    Checkpoints(tmp_path).save(2, second.after, {})
    saved = Checkpoints(tmp_path).latest().state(template=started(algorithm, federation))
    assert num_bytes_of(saved.model) == NUM_LORA
    _, _, again = arranged.__wrapped__("scaffold", settings=LORA)
    expected, found = (
        played(one, config, federation, start, 3, 4)
        for one, start in ((algorithm, second.after), (again, saved))
    )
    assert_equal(expected, found)


def made(name, shape, trainable, **options):
    def call():
        whole = MODELS[name](shape, 3, **options)
        start = jax.eval_shape(whole.init, jax.random.key(0))
        return partly_trained(whole, start, trainable, **of_rank(8))

    return call


def of(method, trainable, settings=LORA):
    return lambda: arranged(method, settings=(*settings, f"training.trainable={trainable}"))


test_refused = refusals.table(
    {
        "trainable='norms': the network has no norm; use another part, or 'all'": made(
            "mlp", (4,), "norms"
        ),
        "trainable='lora': the network has no dense layer below its head": made(
            "cifar_resnet8", (8, 8, 3), "lora"
        ),
        "lora_rank=8: a dense layer has 4 inputs; use at most 4": made("mlp", (4,), "lora"),
        "model: trainable='head' needs a network of a body and a head": made(
            "mlp", (4,), "head", hidden=()
        ),
        "config.training.lora_rank=99: a dense layer has 8 inputs; use at most 8": lambda: arranged(
            "fedavg", settings=(*LORA, "training.lora_rank=99")
        ),
        "model: fedper needs a network of a body and a head": of("fedper", "head"),
    }
)


BODY = {"hidden": (8,)}


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [("mlp", (4,), BODY), ("linear_mlp", (4,), {}), ("cnn", (28, 28, 1), {})],
)
def test_a_dense_head_is_found_by_what_it_reads(name, shape, options):
    model = MODELS[name](shape, 3, **options)
    assert head_paths(model, "m") == {("head", "kernel"), ("head", "bias")}
    assert dense_head(model, "m").kernel == ("head", "kernel")


def test_a_deep_head_is_read():
    model = from_module(DeepHead)
    assert {path[0] for path in head_paths(model, "m")} == {"b", "c"}


def test_a_leaf_is_read_and_replaced():
    state = MODELS["mlp"]((4,), 3, **BODY).init(jax.random.key(0))
    path = ("head", "kernel")
    changed = with_leaf(state, path, leaf_of(state, path) + 1)
    np.testing.assert_array_equal(changed["head"]["kernel"][...], state["head"]["kernel"][...] + 1)
    changed = with_leaf(changed, path, leaf_of(state, path))
    jax.tree.map(np.testing.assert_array_equal, changed, state)
