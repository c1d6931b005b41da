import jax
import jax.numpy as jnp
import numpy as np
import pytest
from efficientnet_weights import write_weights
from PIL import Image
from safetensors.numpy import load_file, save_file
from small_networks import random_state, template

from jaxfed.kernels.images import squares
from jaxfed.models.efficientnet import (
    NETWORKS,
    efficientnet,
    find_weights,
    read_weights,
)


@pytest.fixture(
    scope="module",
    params=[pytest.param("efficientnet_lite0", marks=pytest.mark.slow), "efficientnet_b0"],
)
def pretrained(request, tmp_path_factory):
    """A network, a state in which every tensor is random, and that state as a file."""
    model = efficientnet(request.param)
    state = random_state(model)
    path = tmp_path_factory.mktemp("weights") / f"{request.param}.safetensors"
    write_weights(path, state)
    return request.param, model, state, path


def _convolve(x, kernel, stride, groups):
    """NCHW, OIHW, TensorFlow's SAME: the odd pixel of padding goes after."""
    extent = kernel.shape[-1]
    padding = []
    for size in x.shape[2:]:
        total = max((-(-size // stride) - 1) * stride + extent - size, 0)
        padding.append((total // 2, total - total // 2))
    x = np.pad(x, ((0, 0), (0, 0), *padding))
    windows = np.lib.stride_tricks.sliding_window_view(x, (extent, extent), axis=(2, 3))
    windows = windows[:, :, ::stride, ::stride]
    if groups == 1:
        return np.einsum("ncyxij,ocij->noyx", windows, kernel, optimize=True)
    return np.einsum("ncyxij,cij->ncyx", windows, kernel[:, 0], optimize=True)


def _oracle(tensors, images, lite):
    """Features and logits in float64 straight from the tensors, layer by layer."""
    t = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    def act(x):
        return np.clip(x, 0, 6) if lite else x * sigmoid(x)

    def conv(x, name, stride=1, groups=1):
        out = _convolve(x, t[f"{name}.weight"], stride, groups)
        return out + t[f"{name}.bias"][:, None, None] if f"{name}.bias" in t else out

    def norm(x, name):
        scale = t[f"{name}.weight"] / np.sqrt(t[f"{name}.running_var"] + 1e-3)
        shift = t[f"{name}.bias"] - t[f"{name}.running_mean"] * scale
        return x * scale[:, None, None] + shift[:, None, None]

    x = images.astype(np.float64).transpose(0, 3, 1, 2)
    x = act(norm(conv(x, "_conv_stem", 2), "_bn0"))
    strides = [1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1]
    for index, stride in enumerate(strides):
        block, h = f"_blocks.{index}.", x
        if index > 0:
            h = act(norm(conv(h, block + "_expand_conv"), block + "_bn0"))
        h = conv(h, block + "_depthwise_conv", stride, groups=h.shape[1])
        h = act(norm(h, block + "_bn1"))
        if not lite:
            squeezed = act(conv(h.mean((2, 3), keepdims=True), block + "_se_reduce"))
            h = h * sigmoid(conv(squeezed, block + "_se_expand"))
        h = norm(conv(h, block + "_project_conv"), block + "_bn2")
        x = x + h if h.shape == x.shape else h
    features = act(norm(conv(x, "_conv_head"), "_bn1")).mean((2, 3))
    return features, features @ t["_fc.weight"].T + t["_fc.bias"]


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 64, 64, 3), (1, 75, 50, 3)])
def test_agrees_with_a_float64_network_built_from_the_file(pretrained, shape):
    name, _, state, path = pretrained
    images = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    model = efficientnet(name)
    features, logits, logits_of_features = jax.jit(
        lambda state, images: (
            features := model.features(state, images),
            model.apply(state, images),
            model.head(state, features),
        )
    )(state, images)
    expected_features, expected_logits = _oracle(load_file(path), images, NETWORKS[name].lite)
    assert np.std(expected_features) > 0.1  # a live network: activations neither die nor saturate
    assert features.shape == (shape[0], 1280)
    for ours, theirs in ((features, expected_features), (logits, expected_logits)):
        np.testing.assert_allclose(ours, theirs, atol=1e-4 * np.abs(theirs).max())
    np.testing.assert_allclose(logits_of_features, logits, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_weights_survive_the_file_bit_for_bit(pretrained):
    _, model, state, path = pretrained
    read = read_weights(path, template(model))
    assert jax.tree.structure(read) == jax.tree.structure(state)
    jax.tree.map(np.testing.assert_array_equal, read, state)


def test_step_counters_are_passed_over_and_half_precision_is_widened(pretrained, tmp_path):
    _, model, state, path = pretrained
    tensors = {name: tensor.astype(np.float16) for name, tensor in load_file(path).items()}
    tensors["_bn0.num_batches_tracked"] = np.array(7)
    save_file(tensors, tmp_path / "half.safetensors")
    read = read_weights(tmp_path / "half.safetensors", template(model))
    jax.tree.map(lambda r, s: np.testing.assert_allclose(r, s, rtol=1e-3, atol=1e-5), read, state)
    assert {leaf.dtype for leaf in jax.tree.leaves(read)} == {np.dtype(np.float32)}


@pytest.mark.parametrize("folder", [".", "weights", "../weights"])
def test_weights_are_found_in_the_data_root(tmp_path, monkeypatch, folder):
    root = tmp_path / "data" / "root"
    root.mkdir(parents=True)
    place = (root / folder).resolve()
    place.mkdir(exist_ok=True)
    (place / "efficientnet_b0.safetensors").touch()
    monkeypatch.delenv("JAXFED_DATA", raising=False)
    expected = place / "efficientnet_b0.safetensors"
    assert find_weights("efficientnet_b0", root=str(root)) == expected
    monkeypatch.setenv("JAXFED_DATA", str(root))
    assert find_weights("efficientnet_b0") == expected


@pytest.mark.parametrize(("size", "target"), [(8, 21), (40, 16)])
def test_prepare_resizes_as_pillow_does(size, target):
    image = np.random.default_rng(0).integers(0, 256, (size, size, 3)).astype(np.uint8)
    expected = np.stack(
        [
            Image.fromarray(image[..., c].astype(np.float32)).resize(
                (target, target), Image.Resampling.BICUBIC
            )
            for c in range(3)
        ],
        axis=-1,
    )
    lite = squares(jnp.asarray(image)[None], target, *NETWORKS["efficientnet_lite0"][:2])
    np.testing.assert_allclose(lite[0], (expected - 127) / 128, atol=1e-4)
    b0 = squares(jnp.asarray(image)[None], target, *NETWORKS["efficientnet_b0"][:2])
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    np.testing.assert_allclose(b0[0], (expected / 255 - mean) / deviation, atol=1e-4)
