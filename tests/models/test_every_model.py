"""Every network: its size, its features and logits in float64, what training moves, what is refused."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from float64_networks import cnn, cnn13, fedct, linear_mlp, mlp, resnet9, resnet18
from small_networks import (
    CIFAR,
    GREY,
    MINI,
    NUM_CLASSES,
    inputs_of,
    random_state,
    size_of,
    template,
)

from jaxfed.models import MODELS

# name, input shape, classes, options, parameters, statistics, where the number is from
COUNTS = [
    ("mlp", GREY, 10, {}, 401_920 + 262_656 + 5_130, 0, "FedCT Table 9"),
    ("resnet9", CIFAR, 10, {}, 6_568_640, 0, "ProtoFSSL Table 6, FedMatch"),
    ("resnet9", CIFAR, None, {}, 6_563_520, 0, "ProtoFSSL Table 6"),
    ("resnet9", CIFAR, None, {"norm": "batch"}, 6_563_520 + 4_480, 4_480, "Table 6, 2 a channel"),
    ("resnet18", (224, 224, 3), 1000, {}, 11_689_512, 9_600, "He et al., as published since"),
    ("resnet18", CIFAR, 10, {"stem": "cifar"}, 11_173_962, 9_600, "CIFAR stem, as published since"),
    ("cifar_resnet8", CIFAR, 10, {}, 1_227_594, 2_688, "SAGE's and ProxyFL's released code"),
    # Convolutions and classifier 3,117,696; biases and gains 2 * 2,058; norms 2 * 2,048. No paper's.
    ("cnn13", CIFAR, 10, {}, 3_117_696 + 4_116 + 4_096, 4_096, "layer by layer"),
    # The table's BatchNorms count statistics too: its sum is 552,874.
    ("fedct_cifar10", CIFAR, 10, {}, 552_874 - 1_152, 1_152, "FedCT Table 8"),
    # The table's sum with 18,496 for its misprint 18,464.
    ("fedct_svhn", CIFAR, 10, {}, 550_986 + 32, 448, "FedCT Table 12"),
    # Tables 10, 11 up to the last row, which fits no image: see the module.
    ("fedct_pneumonia", (224, 224, 3), 2, {}, 56_608 + 32 + 401_410, 320, "FedCT Table 10, code"),
    ("fedct_mri", (150, 150, 3), 2, {}, 56_608 + 32 + 175_234, 320, "FedCT Table 11, code"),
    ("efficientnet_b0", MINI, 1000, {}, 5_288_548, 42_016, "Tan and Le's released network"),
]

DEEP = ("resnet18", "efficientnet_b0")  # traced in a second
HAS_DROPOUT = ("cnn13", "fedct_cifar10", "fedct_svhn")


# name, input shape, options, float64 network and its own options
SMALL = [
    ("mlp", (5, 4, 1), {"hidden": (6, 7)}, mlp, {}),
    ("linear_mlp", (9,), {"embedding": 4}, linear_mlp, {}),
    ("cnn", (8, 9, 1), {"channels": (3, 4), "hidden": 0}, cnn, {}),
    ("cnn", (9, 10, 2), {"channels": (4, 8), "hidden": 6}, cnn, {}),
    ("cnn", (8, 8, 1), {"channels": (4, 8), "hidden": 6, "norm": "batch"}, cnn, {"norm": "batch"}),
    ("cnn13", (13, 12, 1), {"normalize_features": True}, cnn13, {"normalize_features": True}),
    ("resnet9", (8, 8, 1), {"pools": (2, 2, 2, 1), "norm": "group"}, resnet9, {"norm": "group"}),
    ("resnet9", (8, 9, 3), {"pools": (2, 2, 2, 1)}, resnet9, {}),
    ("resnet18", (21, 20, 3), {}, resnet18, {}),
    ("cifar_resnet8", (9, 8, 3), {}, resnet18, {"stem": "cifar"}),
    ("fedct_cifar10", (9, 8, 3), {}, fedct, {"every_norm": True, "norm_last": True}),
    ("fedct_mri", (10, 7, 3), {}, fedct, {"every_norm": True, "norm_last": False}),
]
MORE = [
    (
        "resnet18",
        (16, 16, 3),
        {"stem": "cifar", "pool": "max", "normalize_features": True},
        resnet18,
        {"stem": "cifar", "pool": "max", "normalize_features": True},
    ),
    ("fedct_svhn", (8, 8, 3), {}, fedct, {"every_norm": False, "norm_last": True}),
]


def _networks():
    for case in SMALL + MORE:
        name, shape, options, *_ = case
        label = " ".join([name, "x".join(map(str, shape)), *map(str, options.values())])
        yield pytest.param(case, id=label, marks=pytest.mark.slow if case in MORE else ())


@pytest.fixture(scope="module", params=_networks())
def small(request):
    """A network, a state, inputs, and a function of (state, inputs, key) compiled once."""
    name, shape, options, *_ = request.param
    model = MODELS[name](shape, NUM_CLASSES, **options)

    @jax.jit
    def compute(state, x, key):
        train_logits, moved = model.train_apply(state, x, key)
        return {
            "features": model.features(state, x),
            "logits": model.apply(state, x),
            "train_features": model.train_features(state, x, key)[0],
            "train_logits": train_logits,
            "moved": moved,
        }

    return request.param, model, random_state(model), inputs_of(shape), compute


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    ("name", "shape", "num_classes", "options", "parameters", "statistics", "source"),
    [pytest.param(*row, marks=pytest.mark.slow if row[0] in DEEP else ()) for row in COUNTS],
)
def test_number_of_parameters(name, shape, num_classes, options, parameters, statistics, source):
    state = template(MODELS[name](shape, num_classes, **options))
    trained, running = nnx.split_state(state, nnx.Param, nnx.BatchStat)
    assert (size_of(trained), size_of(running)) == (parameters, statistics), source


@pytest.mark.sample(4)  # as two more tests have: the same networks
def test_logits_are_the_head_of_the_features(small):
    _, model, state, x, compute = small
    out = compute(state, x, jax.random.key(3))
    assert out["logits"].shape == out["train_logits"].shape == (len(x), NUM_CLASSES)
    for mode in ("", "train_"):
        head = model.head(state, out[f"{mode}features"])
        np.testing.assert_allclose(out[f"{mode}logits"], head, rtol=1e-5, atol=1e-5)
    for array in jax.tree.leaves(out):
        assert array.dtype == jnp.float32
        assert np.all(np.isfinite(array))


@pytest.mark.sample(4)
def test_agrees_with_a_float64_network(small):
    (*_, oracle, known), _, state, x, compute = small
    weights = jax.tree.map(lambda leaf: np.asarray(leaf[...], np.float64), nnx.to_pure_dict(state))
    expected = oracle(weights, np.asarray(x, np.float64), **known)
    assert np.std(expected[0]) > 0.01  # a live network
    out = compute(state, x, jax.random.key(3))
    for ours, theirs in zip((out["features"], out["logits"]), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5 * np.abs(theirs).max())


@pytest.mark.sample(4)
def test_training_moves_statistics_alone_and_draws_dropout_from_the_key(small):
    (name, _, options, *_), _, state, x, compute = small
    first, again, other = (compute(state, x, jax.random.key(k)) for k in (3, 3, 4))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    differs = not np.array_equal(first["train_logits"], other["train_logits"])
    assert differs == (name in HAS_DROPOUT)
    parameters, statistics = nnx.split_state(state, nnx.Param, nnx.BatchStat)
    same, moved = nnx.split_state(first["moved"], nnx.Param, nnx.BatchStat)
    jax.tree.map(np.testing.assert_array_equal, parameters, same)
    assert jax.tree.structure(first["moved"]) == jax.tree.structure(state)
    for old, new in zip(jax.tree.leaves(statistics), jax.tree.leaves(moved), strict=True):
        assert not np.array_equal(old, new)
    if name == "fedct_cifar10":  # drops 0.8 before the head: part of the features in training
        assert 0.7 < np.mean(first["train_features"] == 0) < 1
    if name not in HAS_DROPOUT and not jax.tree.leaves(statistics):
        np.testing.assert_allclose(first["train_logits"], first["logits"], rtol=1e-4, atol=1e-5)
    if options.get("normalize_features"):
        np.testing.assert_allclose(np.linalg.norm(first["features"], axis=1), 1, rtol=1e-5)


@pytest.mark.sample(2)
def test_clients_with_weights_of_their_own_need_no_convolution(small):
    (name, shape, *_), model, state, _, _ = small
    parameters, statistics = nnx.split_state(state, nnx.Param, ...)

    def loss(parameters, x, key):
        logits, _ = model.train_apply(nnx.merge_state(parameters, statistics), x, key)
        return jnp.sum(jnp.sin(logits))

    clients = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), parameters)
    keys = jax.random.split(jax.random.key(0), 2)
    x = jnp.stack([inputs_of(shape, seed=seed) for seed in (1, 2)])
    lowered = jax.jit(jax.vmap(jax.grad(loss))).lower(clients, x, keys)
    assert "stablehlo.convolution" not in lowered.as_text()
    assert "select_and_scatter" not in lowered.as_text()
    if name not in ("cnn", "linear_mlp"):
        return
    gradients = lowered.compile()(clients, x, keys)
    for path, leaf in nnx.to_flat_state(gradients):
        assert np.all(np.isfinite(leaf[...]))
        # A bias before a BatchNorm shifts what is centered again.
        assert np.abs(leaf[...]).max() > 0 or "bias" in path


@pytest.mark.parametrize("name", MODELS)
def test_every_factory_is_called_in_one_way(name):
    first, second, *options = inspect.signature(MODELS[name]).parameters.values()
    assert (first.name, second.name) == ("input_shape", "num_classes")
    assert {o.kind for o in options} <= {inspect.Parameter.KEYWORD_ONLY}
