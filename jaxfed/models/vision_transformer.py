"""Vision Transformers, and their weights from a local folder as Hugging Face lays it out.

A. Dosovitskiy et al. "An Image is Worth 16x16 Words". ICLR 2021. Patches of p x p pixels become tokens, d
numbers each, by a linear layer. With them go a class token and registers, if any; every block computes

    x = x + s_1 attention(norm(x)),    x = x + s_2 mlp(norm(x)),        s: LayerScale, or 1

A folder has config.json, model.safetensors and preprocessor_config.json. By the `model_type` of config.json:

    vit                              class token; learned positions
    dinov2, dinov2_with_registers    LayerScale
    clip (its image tower)           a norm before the first block; quick GELU

Features are float32 [n, d], the class token after the last norm: `pooler_output` of `transformers` for DINOv2
and CLIP (before its projection). Learned positions are interpolated for images of other sizes, as in
`transformers`: bicubic (a = -0.75) without antialiasing; with it (a = -0.5) for DINOv2 with registers. There
is no dropout or stochastic depth, also in training.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.host.location import location
from jaxfed.models.layers import Activation, Layers, image_shape
from jaxfed.models.model import Model, from_module
from jaxfed.models.pretrained import read_tensors
from jaxfed.settings import Count

CONFIG, WEIGHTS, PREPROCESSOR = "config.json", "model.safetensors", "preprocessor_config.json"
_ACTIVATIONS: dict[str, Activation] = {
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_pytorch_tanh": partial(jax.nn.gelu, approximate=True),
    "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
}
_INIT = nnx.initializers.truncated_normal(0.02)
# Values of keys that a config.json leaves out.
_BASE: dict[str, Any] = {
    **{"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "image_size": 224},
    **{"intermediate_size": 3072, "num_channels": 3, "qkv_bias": True, "hidden_act": "gelu"},
}
_DINOV2 = _BASE | {"mlp_ratio": 4, "layer_norm_eps": 1e-6, "patch_size": 14}
_CLIP = _BASE | {"patch_size": 32, "layer_norm_eps": 1e-5, "hidden_act": "quick_gelu"}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "vit": _BASE | {"patch_size": 16, "layer_norm_eps": 1e-12},
    "dinov2": _DINOV2,
    "dinov2_with_registers": _DINOV2 | {"patch_size": 16, "num_register_tokens": 4},
    "clip": _CLIP,
    "clip_vision_model": _CLIP,
}
# Layer=tensor of a file; a whole model's file has a prefix ("vit.").
_OF_VIT = """patches=embeddings.patch_embeddings.projection class_token=embeddings.cls_token
    registers=embeddings.register_tokens positions=embeddings.position_embeddings last_norm=layernorm
    blocks=encoder.layer query=attention.attention.query key=attention.attention.key
    value=attention.attention.value out=attention.output.dense norm1=layernorm_before norm2=layernorm_after
    up=intermediate.dense down=output.dense"""
_OF_DINOV2 = f"""{_OF_VIT} norm1=norm1 norm2=norm2 up=mlp.fc1 down=mlp.fc2 scale1=layer_scale1.lambda1
    scale2=layer_scale2.lambda1"""
_OF_CLIP = """patches=embeddings.patch_embedding class_token=embeddings.class_embedding
    positions=embeddings.position_embedding.weight first_norm=pre_layrnorm last_norm=post_layernorm
    blocks=encoder.layers query=self_attn.q_proj key=self_attn.k_proj value=self_attn.v_proj
    out=self_attn.out_proj norm1=layer_norm1 norm2=layer_norm2 up=mlp.fc1 down=mlp.fc2"""


class Form(NamedTuple):
    """Sizes and parts of a network."""

    width: int
    depth: int
    heads: int
    hidden: int
    patch: int
    image_size: int
    channels: int = 3
    activation: str = "gelu"
    epsilon: float = 1e-6
    registers: int = 0
    qkv_bias: bool = True
    antialias: bool = False
    layer_scale: bool = False
    is_clip: bool = False


def vit(
    input_shape: Sequence[int],
    num_classes: int | None,
    *,
    folder: str = "",
    patch_size: Count = 4,
    width: Count = 64,
    depth: Count = 4,
    heads: Count = 4,
) -> Model:
    """A Vision Transformer, small by default; with a folder as its config.json says.

    `training.initial_model='pretrained'` starts from the folder's weights.

    Images have a patch or more; one channel is repeated over RGB with a folder, whose sizes come before the
    options. `width` is D, a multiple of twice the `heads`; `depth` is the number of blocks.
    """
    form: Form | None = None
    if folder:
        with of_folder("config.model.folder", folder):
            form = read_form(location(folder, "config.model.folder"))
    height, _, channels = image_shape("vit", input_shape, form.patch if form else patch_size)
    if form is None:
        if width % (2 * heads):
            raise UsageError(f"width={width}: vit takes a multiple of 2 heads={2 * heads}")
        size = height // patch_size * patch_size
        form = Form(width, depth, heads, 4 * width, patch_size, size, channels)
    elif channels not in (1, form.channels):
        raise UsageError(f"{folder} takes images of {form.channels} channels, not of {channels}")
    return network(form, num_classes)


@contextmanager
def of_folder(key: str, folder: str) -> Iterator[None]:
    """Let errors of the enclosed code begin with the key that names the folder."""
    try:
        yield
    except UsageError as error:
        raise UsageError(error.wrong, key=key, value=folder) from error


def network(form: Form, num_classes: int | None) -> Model:
    """Build the network of a form, for images [n, H, W, c] of any size."""

    def build(rngs: nnx.Rngs) -> _Transformer:
        return _Transformer(form, num_classes, Layers(rngs, _INIT, epsilon=form.epsilon))

    return from_module(build, by_example=True)


class _Block(nnx.Module):
    def __init__(self, form: Form, layers: Layers):
        self.heads, self.activation = form.heads, _ACTIVATIONS[form.activation]
        self.norm1, self.norm2 = layers.token_norm(form.width), layers.token_norm(form.width)
        self.query, self.key, self.value = (
            layers.linear(form.width, form.width, use_bias=form.qkv_bias) for _ in range(3)
        )
        self.out = layers.linear(form.width, form.width)
        self.up = layers.linear(form.width, form.hidden)
        self.down = layers.linear(form.hidden, form.width)
        if form.layer_scale:
            self.scale1, self.scale2 = (nnx.Param(jnp.ones(form.width)) for _ in range(2))

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.norm1(x)
        q, k, v = (
            layer(y).reshape(*y.shape[:2], self.heads, -1)
            for layer in (self.query, self.key, self.value)
        )
        y = self.out(jax.nn.dot_product_attention(q, k, v).reshape(x.shape))
        scaled = hasattr(self, "scale1")
        x = x + (y * self.scale1[...].astype(x.dtype)[None, None] if scaled else y)
        y = self.down(self.activation(self.up(self.norm2(x))))
        return x + (y * self.scale2[...].astype(x.dtype)[None, None] if scaled else y)


class _Transformer(nnx.Module):
    def __init__(self, form: Form, num_classes: int | None, layers: Layers):
        self.form = form
        stride, grid = form.patch, form.image_size // form.patch

        def tokens(number: int) -> nnx.Param:
            return nnx.Param(_INIT(layers.rngs.params(), (number, form.width), jnp.float32))

        self.patches = layers.conv(
            form.channels, form.width, stride, stride, padding=0, use_bias=not form.is_clip
        )
        self.class_token = tokens(1)
        if form.registers:
            self.registers = tokens(form.registers)
        self.positions = tokens(1 + grid**2)
        if form.is_clip:
            self.first_norm = layers.token_norm(form.width)
        self.blocks = nnx.List(_Block(form, layers) for _ in range(form.depth))
        self.last_norm = layers.token_norm(form.width)
        self.head = layers.classifier(form.width, num_classes)

    def features(self, x: jax.Array, rngs: nnx.Rngs | None = None) -> jax.Array:
        """The class token."""
        form = self.form
        x = self.patches(jnp.repeat(x, form.channels // x.shape[-1], axis=-1))
        n, height, width, d = x.shape

        def repeated(tokens: nnx.Param) -> jax.Array:
            return jnp.broadcast_to(tokens[...].astype(x.dtype)[None], (n, *tokens.shape))

        places = resized_positions(form, self.positions[...].astype(jnp.float32), height, width)
        x = jnp.concatenate([repeated(self.class_token), x.reshape(n, -1, d)], axis=1)
        x = x + places.astype(x.dtype)[None]
        if form.registers:
            x = jnp.concatenate([x[:, :1], repeated(self.registers), x[:, 1:]], axis=1)
        if form.is_clip:
            x = self.first_norm(x)
        for block in self.blocks:
            x = block(x)
        return self.last_norm(x[:, 0]).astype(jnp.float32)


def resized_positions(form: Form, places: jax.Array, height: int, width: int) -> jax.Array:
    """Positions of the class token and of height x width patches."""
    grid = form.image_size // form.patch
    if height == width == grid:
        return places
    first, rest = places[:1], places[1:].reshape(grid, grid, -1)
    if form.antialias:
        rest = jax.image.resize(rest, (height, width, rest.shape[-1]), "cubic")
    else:
        rest = jnp.einsum("hi,wj,ijd->hwd", _cubic(grid, height), _cubic(grid, width), rest)
    return jnp.concatenate([first, rest.reshape(height * width, -1)])


def _cubic(old: int, new: int, a: float = -0.75) -> np.ndarray:
    """PyTorch's bicubic weights [new, old]; the border is repeated."""
    place = (np.arange(new) + 0.5) * old / new - 0.5
    weights = np.zeros((new, old))
    for tap in range(-1, 3):
        index = np.floor(place).astype(int) + tap
        t = np.abs(place - index)
        near, far = ((a + 2) * t - (a + 3)) * t * t + 1, ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
        np.add.at(weights, (np.arange(new), index.clip(0, old - 1)), np.where(t <= 1, near, far))
    return weights.astype(np.float32)


def read_form(folder: str | Path) -> Form:
    """Read config.json. Raises a UsageError of one line: no such file, or another kind of model."""
    given = _json(Path(folder), CONFIG)
    kind = given.get("model_type")
    if kind not in _DEFAULTS:
        allowed = ", ".join(_DEFAULTS)
        raise UsageError(f"model_type={kind!r} cannot be read; readable: {allowed}")
    own = _DEFAULTS[kind] | given.get("vision_config", given)
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "patch_size", "image_size")
    width, depth, heads, patch, image = (own[key] for key in sizes)
    hidden, act = own["intermediate_size"], own["hidden_act"]
    if kind.startswith("dinov2"):
        hidden = int(width * own["mlp_ratio"])
        act = "swiglu" if own.get("use_swiglu_ffn") else act
    numbers = (width, depth, heads, hidden, patch, image, own["num_channels"])
    if not all(isinstance(one, int) and one > 0 for one in numbers) or act not in _ACTIVATIONS:
        raise UsageError(f"sizes {numbers} and hidden_act={act!r} cannot be read")
    if width % heads or image < patch:
        raise UsageError(f"{heads} heads, width {width}, patches {patch} of {image} do not fit")
    return Form(
        *numbers,
        activation=act,
        epsilon=own["layer_norm_eps"],
        registers=own.get("num_register_tokens", 0),
        qkv_bias=own["qkv_bias"],
        antialias=kind == "dinov2_with_registers",
        layer_scale="dino" in kind,
        is_clip="clip" in kind,
    )


def names_of(form: Form) -> dict[str, str]:
    """Return layer -> its name in the file of a folder of this form."""
    table = _OF_CLIP if form.is_clip else _OF_DINOV2 if form.layer_scale else _OF_VIT
    return dict(entry.split("=") for entry in table.split())


def read_state(folder: str | Path, template: nnx.State, *, new_head: bool = False) -> nnx.State:
    """Read the weights of a folder into a state like the template (`read_tensors`).

    Tensors of a text tower or a classifier are left out. `new_head` keeps the template's head.
    """
    names = names_of(read_form(folder))
    return read_tensors(
        Path(folder) / WEIGHTS,
        template,
        names,
        without="head" if new_head else "",
        prefix_of=f"{names['patches']}.weight",
    )


def _json(folder: Path, name: str) -> dict[str, Any]:
    try:
        found = json.loads((folder / name).read_text())
    except FileNotFoundError as error:
        needed = f"{CONFIG}, {WEIGHTS} and {PREPROCESSOR}"
        raise UsageError(f"has no {name}; use a folder with {needed}") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{name}: cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f"{name}: is no object of keys and values")
    return found


_METHODS = {0: "nearest", 1: "lanczos3", 2: "bilinear", 3: "bicubic"}  # of Pillow, by number


class Images(NamedTuple):
    """Preparation of images by preprocessor_config.json.

    size: height and width, or the shorter side alone; () leaves images as they are. crop: height and width of
    the middle, () for none. Mean and deviation are of values from 0 to 1.
    """

    size: tuple[int, ...]
    crop: tuple[int, ...]
    method: str
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def prepared(self, images: jax.Array, image_size: int | None = None) -> jax.Array:
        """Resize, crop and normalize images [n, h, w, c] of values from 0 to 255.

        Resampling is Pillow's, with antialiasing, rounded to whole values. With `image_size` whole images are
        resized to squares of this many pixels a side instead, without a crop.
        """
        x = jnp.asarray(images, jnp.float32)
        n, height, width, channels = x.shape
        size, crop = ((image_size,) * 2, ()) if image_size else (self.size, self.crop)
        if len(size) == 1:
            short = min(height, width)
            size = tuple(size[0] * side // short for side in (height, width))
        if size and size != (height, width):
            for sides in ((height, size[1]), size):  # columns, then rows; whole values after each
                x = jax.image.resize(x, (n, *sides, channels), self.method)
                x = jnp.clip(jnp.round(x), 0, 255)
        if crop:
            top, left = ((have - want) // 2 for have, want in zip(x.shape[1:3], crop, strict=True))
            if min(top, left) < 0:
                raise UsageError(
                    f"{PREPROCESSOR}: crop {crop} is larger than images {x.shape[1:3]}"
                )
            x = x[:, top : top + crop[0], left : left + crop[1]]
        mean, deviation = (
            np.asarray(of, np.float32).reshape(1, 1, 1, -1) for of in (self.mean, self.deviation)
        )
        return (x * np.float32(1 / 255) - mean) / deviation


def read_images(folder: str | Path) -> Images:
    """Read preprocessor_config.json. Raises a UsageError of one line."""
    given = _json(Path(folder), PREPROCESSOR)
    try:
        if not (given.get("do_rescale", True) and given.get("do_normalize", True)):
            raise ValueError("images that are not scaled and normalized")
        crop = _sides(given.get("crop_size", 224)) if given.get("do_center_crop") else ()
        size = _sides(given["size"]) if given.get("do_resize", True) else ()
        if crop and isinstance(given["size"], int):
            size = size[:1]  # earlier files of CLIP: the shorter side
        mean, deviation = (tuple(map(float, given[f"image_{of}"])) for of in ("mean", "std"))
        return Images(size, crop, _METHODS[given.get("resample", 2)], mean, deviation)
    except (KeyError, TypeError, ValueError) as error:
        wrong = f"{type(error).__name__} {error}"
        raise UsageError(f"{PREPROCESSOR}: cannot be read: {wrong}") from error


def _sides(size: int | Mapping[str, int]) -> tuple[int, ...]:
    if isinstance(size, int):
        return size, size
    return (size["shortest_edge"],) if "shortest_edge" in size else (size["height"], size["width"])
