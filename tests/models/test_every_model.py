import inspect
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.models import MODELS
from jaxfed.models.layers import (
    WeightNorm,
    dropout,
    max_pool,
    overlapping_max_pool,
    unit_vectors,
)
from jaxfed.models.wrapping import in_precision, normalized

pytestmark = pytest.mark.usefixtures("quick_compilation")

CIFAR, GREY, MINI = (32, 32, 3), (28, 28, 1), (84, 84, 3)

# name, input shape, classes, options, parameters, statistics, where the number is from
COUNTS = [
    ("mlp", GREY, 10, {}, 401_920 + 262_656 + 5_130, 0, "FedCT Table 9"),
    ("mlp", (30,), 2, {"hidden": ()}, 62, 0, "logistic regression: 30 * 2 + 2"),
    ("linear_mlp", GREY, 62, {}, 785 * 128 + 129 * 62, 0, "XCLP B.1, without a size: ours"),
    ("cnn", GREY, 10, {}, 160 + 4_640 + 1_569 * 128 + 1_290, 0, "ours"),
    ("resnet9", CIFAR, 10, {}, 6_568_640, 0, "ProtoFSSL Table 6, FedMatch"),
    ("resnet8", CIFAR, 10, {}, 6_563_520, 0, "ProtoFSSL Table 6"),
    ("resnet9", CIFAR, 10, {"use_bias": True}, 6_568_640 + 2_250, 0, "Table 6, biases of the code"),
    ("resnet9", (96, 96, 3), 10, {"pools": (3, 2, 4, 4)}, 6_568_640, 0, "the same on STL-10"),
    ("resnet8", CIFAR, 10, {"norm": "batch"}, 6_563_520 + 4_480, 4_480, "Table 6, 2 a channel"),
    ("resnet18", (224, 224, 3), 1000, {}, 11_689_512, 9_600, "He et al., as published since"),
    ("resnet18", MINI, 100, {}, 11_689_512 - 900 * 513, 9_600, "the same, 100 classes"),
    ("resnet18", CIFAR, 10, {"stem": "cifar"}, 11_173_962, 9_600, "CIFAR stem, as published since"),
    ("resnet17", CIFAR, 10, {}, 11_173_962 - 5_130, 9_600, "the same without the last layer"),
    # Convolutions and classifier 3,117,696; biases and gains 2 * 2,058; norms 2 * 2,048. No paper's.
    ("cnn13", CIFAR, 10, {}, 3_117_696 + 4_116 + 4_096, 4_096, "layer by layer"),
    ("cnn13", CIFAR, 100, {}, 3_125_908 + 90 * 130, 4_096, "layer by layer"),
    # The table's BatchNorms count statistics too: its sum is 552,874.
    ("fedct_cifar10", CIFAR, 10, {}, 552_874 - 1_152, 1_152, "FedCT Table 8"),
    # The table's sum with 18,496 for its misprint 18,464.
    ("fedct_svhn", CIFAR, 10, {}, 550_986 + 32, 448, "FedCT Table 12"),
    # Tables 10, 11 up to the last row, which fits no image: see the module.
    ("fedct_pneumonia", (224, 224, 3), 2, {}, 56_608 + 32 + 401_410, 320, "FedCT Table 10, code"),
    ("fedct_mri", (150, 150, 3), 2, {}, 56_608 + 32 + 175_234, 320, "FedCT Table 11, code"),
    (
        "fedct_mri",
        (150, 150, 3),
        2,
        {"released": True},
        194_818,
        192,
        "the code's two convolutions",
    ),
    ("efficientnet_b0", MINI, 1000, {}, 5_288_548, 42_016, "Tan and Le's released network"),
]

IMAGE_NETWORKS = ("cnn", "cnn13", "resnet9", "resnet18", "fedct_mri", "efficientnet_b0")
HEADLESS = ("resnet8", "resnet17")
HAS_DROPOUT = ("cnn13", "fedct_cifar10", "fedct_svhn")
NUM_CLASSES, BATCH = 5, 4


def _size(state):
    return sum(leaf.size for leaf in jax.tree.leaves(state))


def _template(model):
    return jax.eval_shape(model.init, jax.random.key(0))


def _state(model, seed=0):
    """Every leaf random, so that no bias, gain or statistic can be left out unnoticed."""
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        shape = leaf.shape
        if path[-1] == "kernel":
            values = rng.normal(size=shape) * np.sqrt(2 / np.prod(shape[:-1]))
        elif path[-1] in ("scale", "var", "gain"):
            values = rng.uniform(0.5, 1.5, shape)
        else:
            values = rng.uniform(-0.3, 0.3, shape)
        return leaf.replace(jnp.asarray(values, jnp.float32))

    leaves = nnx.to_flat_state(_template(model))
    return nnx.from_flat_state([(path, draw(path, leaf)) for path, leaf in leaves])


def _inputs(shape, num=BATCH, seed=1):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(num, *shape)), jnp.float32)


# --- the same networks in float64, written down once more ------------------------------------------


def _conv(x, layer, stride=1, padding=None):
    kernel = layer["kernel"]
    window = len(kernel)
    edge = window // 2 if padding is None else padding
    x = np.pad(x, ((0, 0), (edge, edge), (edge, edge), (0, 0)))
    views = np.lib.stride_tricks.sliding_window_view(x, (window, window), axis=(1, 2))
    out = np.einsum("nyxcij,ijco->nyxo", views[:, ::stride, ::stride], kernel, optimize=True)
    return out + layer.get("bias", 0)


def _batch_norm(x, layer):
    return (x - layer["mean"]) / np.sqrt(layer["var"] + 1e-5) * layer["scale"] + layer["bias"]


def _group_norm(x, layer, groups, epsilon):
    grouped = x.reshape(len(x), -1, groups, x.shape[-1] // groups)
    mean, var = (f(grouped, axis=(1, 3), keepdims=True) for f in (np.mean, np.var))
    normal = ((grouped - mean) / np.sqrt(var + epsilon)).reshape(x.shape)
    return normal * layer["scale"] + layer["bias"]


def _weight_norm(layer):
    """The kernel g v / |v|."""
    v = layer["layer"]["kernel"]
    norms = np.sqrt((v**2).sum(axis=tuple(range(v.ndim - 1))))
    return {"kernel": v * layer["gain"] / norms, "bias": layer["layer"]["bias"]}


def _pool(x, size):
    _, height, width, _ = x.shape
    x = x[:, : height // size * size, : width // size * size]
    views = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(1, 2))
    return views[:, ::size, ::size].max(axis=(4, 5))


def _dense(x, layer):
    return x @ layer["kernel"] + layer.get("bias", 0)


def _relu(x):
    return np.maximum(x, 0)


def _cnn13(w, x, normalize_features=False):
    def unit(x, w, padding):
        z = _batch_norm(_conv(x, _weight_norm(w["linear"]), padding=padding), w["norm"])
        return np.where(z > 0, z, 0.1 * z)

    for stage in ("wide", "middle"):
        for i in range(3):
            x = unit(x, w[stage][i], 1)
        x = _pool(x, 2)
    for i in range(3):
        x = unit(x, w["narrow"][i], 0)
    x = x.mean((1, 2))
    if normalize_features:
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
    return x, _dense(x, _weight_norm(w["head"]))


def _resnet9(w, x, pools=(2, 2, 2, 1), norm="none"):
    def unit(x, w):
        x = _conv(x, w["linear"])
        return _relu(x if norm == "none" else _group_norm(x, w["norm"], 32, 1e-3))

    x = _pool(unit(unit(x, w["stem"]), w["widen"][0]), pools[0])
    x = x + unit(unit(x, w["residual_128"][0]), w["residual_128"][1])
    x = _pool(unit(x, w["widen"][1]), pools[1])
    x = _pool(unit(x, w["widen"][2]), pools[2])
    x = x + unit(unit(x, w["residual_512"][0]), w["residual_512"][1])
    x = _pool(x, pools[3]).reshape(len(x), -1)
    return x, _dense(x, w["head"]) if "head" in w else x


def _resnet18(w, x, stem="imagenet", pool="mean", normalize_features=False):
    def unit(x, w, stride=1):
        return _batch_norm(_conv(x, w["linear"], stride), w["norm"])

    x = _relu(unit(x, w["stem"], 2 if stem == "imagenet" else 1))
    if stem == "imagenet":
        x = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
        views = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))
        x = views[:, ::2, ::2].max(axis=(4, 5))
    for i in range(8):
        block, stride = w["blocks"][i], 2 if i in (2, 4, 6) else 1
        h = unit(_relu(unit(x, block["first"], stride)), block["second"])
        x = _relu(h + (unit(x, block["shortcut"], stride) if stride == 2 else x))
    x = x.max((1, 2)) if pool == "max" else x.mean((1, 2))
    if normalize_features:
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
    return x, _dense(x, w["head"]) if "head" in w else x


def _fedct(w, x, every_norm, norm_last, released=False):
    sizes = (1, 1) if released else (2, 1) if "dense" not in w else (2, 2, 2)
    for stage, size in enumerate(sizes):
        for i in range(size):
            unit = w["stages"][stage][i]
            x = _conv(x, unit["linear"])
            if norm_last:
                x = _relu(x)
                x = _batch_norm(x, unit["norm"]) if every_norm or i == 0 else x
            else:
                x = _relu(_batch_norm(x, unit["norm"]))
        x = _pool(x, 2)
    x = x.reshape(len(x), -1)
    if "dense" in w:
        x = _relu(_dense(x, w["dense"]["linear"]))
        x = _batch_norm(x, w["dense"]["norm"]) if every_norm else x
    return x, _dense(x, w["head"])


def _mlp(w, x):
    x = x.reshape(len(x), -1)
    for i in range(2):
        x = _relu(_dense(x, w["hidden"][i]))
    return x, _dense(x, w["head"])


def _linear_mlp(w, x):
    x = _dense(x.reshape(len(x), -1), w["hidden"][0])
    return x, _dense(x, w["head"])


def _cnn(w, x, norm="none"):
    for i in range(2):
        x = _conv(x, w["units"][i]["linear"])
        x = _batch_norm(x, w["units"][i]["norm"]) if norm == "batch" else x
        x = _pool(_relu(x), 2)
    x = _relu(_dense(x.reshape(len(x), -1), w["dense"]))
    return x, _dense(x, w["head"])


# name, input shape, options, float64 network and its own options
SMALL = [
    ("mlp", (5, 4, 1), {"hidden": (6, 7)}, _mlp, {}),
    ("linear_mlp", (9,), {"embedding": 4}, _linear_mlp, {}),
    ("cnn", (9, 10, 2), {"channels": (4, 8), "hidden": 6}, _cnn, {}),
    ("cnn", (8, 8, 1), {"channels": (4, 8), "hidden": 6, "norm": "batch"}, _cnn, {"norm": "batch"}),
    ("cnn13", (13, 12, 1), {"normalize_features": True}, _cnn13, {"normalize_features": True}),
    ("resnet9", (8, 9, 3), {"pools": (2, 2, 2, 1)}, _resnet9, {}),
    ("resnet8", (8, 8, 1), {"pools": (2, 2, 2, 1), "norm": "group"}, _resnet9, {"norm": "group"}),
    ("resnet18", (21, 20, 3), {}, _resnet18, {}),
    ("fedct_cifar10", (9, 8, 3), {}, _fedct, {"every_norm": True, "norm_last": True}),
    ("fedct_mri", (10, 7, 3), {}, _fedct, {"every_norm": True, "norm_last": False}),
]
MORE = [
    ("cnn13", (14, 13, 3), {}, _cnn13, {}),
    ("resnet9", (12, 12, 3), {"pools": (3, 2, 1, 2)}, _resnet9, {"pools": (3, 2, 1, 2)}),
    (
        "resnet18",
        (9, 8, 3),
        {"stem": "cifar", "normalize_features": True},
        _resnet18,
        {"stem": "cifar", "normalize_features": True},
    ),
    ("resnet17", (16, 16, 3), {}, _resnet18, {"stem": "cifar", "pool": "max"}),
    ("fedct_svhn", (8, 8, 3), {}, _fedct, {"every_norm": False, "norm_last": True}),
    (
        "fedct_mri",
        (8, 8, 3),
        {"released": True},
        _fedct,
        {"every_norm": True, "norm_last": False, "released": True},
    ),
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

    return request.param, model, _state(model), _inputs(shape), compute


@pytest.mark.parametrize(
    ("name", "shape", "num_classes", "options", "parameters", "statistics", "source"), COUNTS
)
def test_number_of_parameters(name, shape, num_classes, options, parameters, statistics, source):
    state = _template(MODELS[name](shape, num_classes, **options))
    trained, running = nnx.split_state(state, nnx.Param, nnx.BatchStat)
    assert (_size(trained), _size(running)) == (parameters, statistics), source


def test_logits_are_the_head_of_the_features(small):
    (name, *_), model, state, x, compute = small
    out = compute(state, x, jax.random.key(3))
    width = out["features"].shape[1] if name in HEADLESS else NUM_CLASSES
    assert out["logits"].shape == out["train_logits"].shape == (len(x), width)
    for mode in ("", "train_"):
        head = model.head(state, out[f"{mode}features"])
        np.testing.assert_allclose(out[f"{mode}logits"], head, rtol=1e-5, atol=1e-5)
    for array in jax.tree.leaves(out):
        assert array.dtype == jnp.float32
        assert np.all(np.isfinite(array))


def test_agrees_with_a_float64_network(small):
    (*_, oracle, known), _, state, x, compute = small
    weights = jax.tree.map(lambda leaf: np.asarray(leaf[...], np.float64), nnx.to_pure_dict(state))
    expected = oracle(weights, np.asarray(x, np.float64), **known)
    assert np.std(expected[0]) > 0.01  # a live network
    out = compute(state, x, jax.random.key(3))
    for ours, theirs in zip((out["features"], out["logits"]), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5 * np.abs(theirs).max())


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


def test_clients_with_weights_of_their_own_need_no_convolution(small):
    (name, shape, *_), model, state, _, _ = small
    parameters, statistics = nnx.split_state(state, nnx.Param, ...)

    def loss(parameters, x, key):
        logits, _ = model.train_apply(nnx.merge_state(parameters, statistics), x, key)
        return jnp.sum(jnp.sin(logits))

    clients = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), parameters)
    keys = jax.random.split(jax.random.key(0), 2)
    x = jnp.stack([_inputs(shape, seed=seed) for seed in (1, 2)])
    lowered = jax.jit(jax.vmap(jax.grad(loss))).lower(clients, x, keys)
    assert "stablehlo.convolution" not in lowered.as_text()
    assert "reduce_window" not in lowered.as_text()
    if name not in ("cnn", "linear_mlp"):
        return
    gradients = lowered.compile()(clients, x, keys)
    for path, leaf in nnx.to_flat_state(gradients):
        assert np.all(np.isfinite(leaf[...]))
        # A bias before a BatchNorm shifts what is centered again.
        assert np.abs(leaf[...]).max() > 0 or "bias" in path


@pytest.mark.parametrize("name", ["cnn", "cnn13", "resnet9", "resnet18", "fedct_cifar10"])
def test_the_native_form_keeps_its_convolutions_on_a_gpu(name):
    native, matmul = (
        MODELS[name](CIFAR, NUM_CLASSES, convolution=form) for form in ("native", "matmul")
    )
    state, x = _template(native), jax.ShapeDtypeStruct((BATCH, *CIFAR), jnp.float32)
    assert jax.tree.structure(state) == jax.tree.structure(_template(matmul))
    lowered = jax.jit(native.apply).trace(state, x).lower(lowering_platforms=("cuda",))
    assert "stablehlo.convolution" in lowered.as_text()


def test_the_form_of_convolution_does_not_change_results():
    native, matmul = (
        MODELS["cnn13"]((12, 12, 3), NUM_CLASSES, convolution=form) for form in ("native", "matmul")
    )
    state, x = _state(native), _inputs((12, 12, 3))
    logits = jax.jit(native.apply)(state, x)
    scale = np.abs(logits).max()
    np.testing.assert_allclose(jax.jit(matmul.apply)(state, x), logits, atol=1e-4 * scale)


# --- layers and wrapping ---------------------------------------------------------------------------


def test_batch_norm_moves_by_its_momentum_towards_the_batch():
    model = MODELS["resnet9"](
        (8, 8, 3), NUM_CLASSES, norm="batch", momentum=0.75, pools=(2, 2, 2, 1)
    )
    state, x = _state(model), _inputs((8, 8, 3))
    _, moved = jax.jit(model.train_apply)(state, x, jax.random.key(0))
    kernel = np.asarray(state["stem"]["linear"]["kernel"][...], np.float64)
    batch = _conv(np.asarray(x, np.float64), {"kernel": kernel})
    for statistic, value in (("mean", batch.mean((0, 1, 2))), ("var", batch.var((0, 1, 2)))):
        old, new = (np.asarray(s["stem"]["norm"][statistic][...]) for s in (state, moved))
        np.testing.assert_allclose(new, 0.75 * old + 0.25 * value, rtol=1e-4, atol=1e-5)


def test_momentum_0_keeps_the_last_batch_whatever_came_before():
    model = MODELS["resnet8"]((8, 8, 3), norm="batch", momentum=0.0, pools=(2, 2, 2, 1))
    parameters, statistics = nnx.split_state(_state(model), nnx.Param, ...)
    x, train = _inputs((8, 8, 3)), jax.jit(model.train_apply)
    one, other = (
        train(nnx.merge_state(parameters, before), x, jax.random.key(0))[1]
        for before in (statistics, jax.tree.map(lambda r: 3 * r, statistics))
    )
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_weight_norm_is_g_v_over_norm_v_in_value_and_derivatives():
    layer, x = nnx.Linear(7, 3, rngs=nnx.Rngs(0)), _inputs((7,))
    graph, state = nnx.split(WeightNorm(layer))
    np.testing.assert_allclose(nnx.merge(graph, state)(x), layer(x), rtol=1e-5, atol=1e-6)

    def ours(v, g):
        module = nnx.merge(graph, state, copy=True)
        module.layer.kernel[...], module.gain[...] = v, g
        return module(x)

    def by_hand(v, g):
        norms = jnp.sqrt((v * v).sum(axis=0, keepdims=True))
        return x @ (v * g[None] / norms)

    weights = 2 * layer.kernel[...], jnp.array([0.5, -1.0, 2.0])
    out, pull = jax.vjp(ours, *weights)
    expected, expected_pull = jax.vjp(by_hand, *weights)
    for a, b in zip((out, *pull(out)), (expected, *expected_pull(expected)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_dropout_of_channels_zeroes_whole_maps():
    x = jnp.ones((50, 3, 3, 20))
    maps = dropout(x, 0.25, nnx.Rngs(0), channels=True)
    np.testing.assert_array_equal(maps, np.broadcast_to(maps[:, :1, :1], x.shape))
    np.testing.assert_allclose(np.mean(maps == 0), 0.25, atol=0.05)
    np.testing.assert_allclose(np.max(maps), 1 / 0.75, rtol=1e-6)
    assert 0 < np.mean(dropout(x, 0.25, nnx.Rngs(0))[:, 0, 0] != maps[:, 0, 0]) < 1
    assert dropout(x, 0.25, None) is x


@pytest.mark.parametrize(("height", "width", "size"), [(6, 6, 2), (7, 9, 2), (9, 8, 3), (4, 4, 4)])
def test_max_pool(height, width, size):
    x = _inputs((height, width, 2))
    np.testing.assert_array_equal(max_pool(x, size), _pool(np.asarray(x), size))


@pytest.mark.parametrize(("height", "width"), [(1, 2), (42, 7)])
def test_overlapping_max_pool_is_the_windowed_one(height, width):
    def windowed(x):
        return nnx.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))

    out, pull = jax.vjp(overlapping_max_pool, _inputs((height, width, 2)))
    expected, expected_pull = jax.vjp(windowed, _inputs((height, width, 2)))
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_allclose(pull(jnp.cos(out)), expected_pull(jnp.cos(out)), rtol=1e-5)


def test_unit_vectors_of_zero_are_zero_with_a_finite_gradient():
    x = jnp.array([[0.0, 0.0], [3.0, 4.0]])
    np.testing.assert_allclose(unit_vectors(x), [[0, 0], [0.6, 0.8]], rtol=1e-6)
    assert np.all(np.isfinite(jax.grad(lambda x: jnp.sum(unit_vectors(x)))(x)))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cnn13", {"normalize_features": True}),
        ("cnn", {"norm": "group"}),
        ("resnet9", {}),
        ("resnet18", {}),
        ("fedct_cifar10", {}),
        ("efficientnet_b0", {}),
        ("mlp", {}),
    ],
)
def test_bfloat16_reaches_every_layer_but_no_result(name, options):
    short = in_precision(MODELS[name](CIFAR, NUM_CLASSES, **options), jnp.bfloat16)
    inputs = _template(short), jax.ShapeDtypeStruct((BATCH, *CIFAR), jnp.float32)
    traced, out = jax.make_jaxpr(short.train_features, return_shape=True)(
        *inputs, jax.random.key(0)
    )
    dtypes = {
        operand.aval.dtype
        for equation in _equations(traced.jaxpr)
        if equation.primitive.name in ("conv_general_dilated", "dot_general")
        for operand in equation.invars
    }
    assert dtypes == {jnp.dtype(jnp.bfloat16)}
    assert {leaf.dtype for leaf in jax.tree.leaves(out)} == {jnp.dtype(jnp.float32)}


def test_bfloat16_is_near_float32_and_leaves_the_parameters_alone():
    model = MODELS["cnn"]((8, 8, 3), NUM_CLASSES, norm="batch")
    short, state, x = in_precision(model, jnp.bfloat16), _state(model), _inputs((8, 8, 3))
    logits, moved = jax.jit(short.train_apply)(state, x, jax.random.key(0))
    exact, _ = jax.jit(model.train_apply)(state, x, jax.random.key(0))
    assert not np.array_equal(logits, exact)
    np.testing.assert_allclose(logits, exact, atol=0.03 * np.abs(exact).max())
    parameters, same = (nnx.split_state(s, nnx.Param, ...)[0] for s in (state, moved))
    jax.tree.map(np.testing.assert_array_equal, parameters, same)


def _equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(list(equation.params.values())):
            if hasattr(inner, "jaxpr"):
                yield from _equations(inner.jaxpr)


def test_normalized_reads_bytes_and_floats_alike():
    model = MODELS["cnn"]((8, 8, 3), NUM_CLASSES)
    state = _state(model)
    mean, deviation = np.array([0.5, 0.4, 0.3]), np.array([0.2, 0.3, 0.1])
    pixels = np.random.default_rng(0).integers(0, 256, (BATCH, 8, 8, 3)).astype(np.uint8)
    wrapped = normalized(model, mean, deviation)
    by_hand = jnp.asarray((pixels / 255 - mean) / deviation, jnp.float32)

    def outputs(model, x):
        def compute(state, x, key):
            return model.features(state, x), model.train_apply(state, x, key)[0]

        features, train_logits = jax.jit(compute)(state, x, jax.random.key(0))
        return features, model.head(state, features), train_logits

    for x in (pixels, (pixels / np.float32(255))):
        jax.tree.map(
            partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5),
            outputs(wrapped, jnp.asarray(x)),
            outputs(model, by_hand),
        )


# --- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "options", "message"),
    [
        ("cnn13", (11, 32, 3), {}, "12 x 12"),
        ("cnn", (3, 8, 1), {}, "4 x 4"),
        *((name, (30,), {}, r"images \(H, W, c\)") for name in IMAGE_NETWORKS),
        ("cnn", (8, 8, 1), {"norm": "layer"}, "batch, group, none"),
        ("cnn", (8, 8, 1), {"norm": "group", "groups": 3}, "groups=3 does not divide 16"),
        ("cnn", (8, 8, 1), {"convolution": "fast"}, "auto, matmul, native"),
        ("resnet9", (28, 28, 1), {}, "32 x 32"),
        ("resnet9", CIFAR, {"pools": (2, 2)}, "4 positive"),
        ("resnet18", CIFAR, {"stem": "mnist"}, "imagenet, cifar"),
        ("resnet18", CIFAR, {"pool": "sum"}, "mean, max"),
        ("fedct_svhn", (7, 8, 3), {}, "8 x 8"),
        ("efficientnet_b0", GREY, {}, "3 channels"),
    ],
)
def test_what_cannot_be_built_is_refused(name, shape, options, message):
    with pytest.raises(UsageError, match=message):
        MODELS[name](shape, NUM_CLASSES, **options)


@pytest.mark.parametrize("name", MODELS)
def test_every_factory_is_called_in_one_way(name):
    first, second, *options = inspect.signature(MODELS[name]).parameters.values()
    assert (first.name, second.name) == ("input_shape", "num_classes")
    assert {o.kind for o in options} == {inspect.Parameter.KEYWORD_ONLY}
    assert next(o for o in options if o.name == "convolution").default == "auto"


def test_init_is_repeatable_and_of_the_promised_spread():
    model = MODELS["cnn"]((12, 12, 3), NUM_CLASSES)
    one, same, other = (jax.jit(model.init)(jax.random.key(k)) for k in (0, 0, 1))
    jax.tree.map(np.testing.assert_array_equal, one, same)
    for path, leaf in nnx.to_flat_state(one):
        if path[-1] == "kernel":
            assert not np.array_equal(leaf[...], dict(nnx.to_flat_state(other))[path][...])
            fan_in = np.prod(leaf.shape[:-1])
            np.testing.assert_allclose(np.std(leaf[...]), np.sqrt(1 / 3 / fan_in), rtol=0.1)
