"""Vision Transformers, and their weights from a local folder as Hugging Face lays it out.

A. Dosovitskiy et al. "An Image is Worth 16x16 Words". ICLR 2021. Patches of p x p pixels become tokens, d
numbers each, by a linear layer. With them go a class token and registers, if any; every block computes

    x = x + s_1 attention(norm(x)),    x = x + s_2 mlp(norm(x)),        s: LayerScale, or 1

A folder has config.json, model.safetensors and preprocessor_config.json. By the `model_type` of config.json:

    vit                              class token; learned positions
    vit_mae                          the same; features: mean of patches, as no loss trains the class token
    dinov2, dinov2_with_registers    LayerScale; SwiGLU in the largest
    dinov3_vit                       LayerScale, registers; rotary positions of patches, no learned ones
    clip (its image tower)           a norm before the first block; quick GELU
    siglip (its image tower)         no class token; features by attention from one learned query

Features are float32 [n, d], after the last norm: `pooler_output` of `transformers` for DINO, CLIP (before its
projection) and SigLIP, the class token of `last_hidden_state` for ViT. Learned positions are interpolated for
images of other sizes, as in `transformers`: bicubic (a = -0.75) without antialiasing; with it (a = -0.5) for
DINOv2 with registers. There is no dropout, stochastic depth or random rotary scale, also in training.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.host.location import location
from jaxfed.kernels.images import Images, resized_grid, rotary_angles, rotated
from jaxfed.models.layers import Activation, Layers, built, identity, image_shape
from jaxfed.models.model import Model
from jaxfed.models.pretrained import Tensor, pytorch_name, read_tensors
from jaxfed.settings import Count

CONFIG, WEIGHTS, PREPROCESSOR = "config.json", "model.safetensors", "preprocessor_config.json"
_ACTIVATIONS: dict[str, Activation] = {
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_pytorch_tanh": partial(jax.nn.gelu, approximate=True),
    "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "silu": jax.nn.silu,
}
_INIT = nnx.initializers.truncated_normal(0.02)
# Values of keys that a config.json leaves out.
_BASE: dict[str, Any] = {
    **{"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "image_size": 224},
    **{"intermediate_size": 3072, "num_channels": 3, "qkv_bias": True, "hidden_act": "gelu"},
}
_VIT = _BASE | {"patch_size": 16, "layer_norm_eps": 1e-12}
_DINOV2 = _BASE | {"mlp_ratio": 4, "layer_norm_eps": 1e-6, "patch_size": 14}
_DINOV3 = {
    **{"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536, "key_bias": False},
    **{"patch_size": 16, "layer_norm_eps": 1e-5, "rope_theta": 100.0},
}
_CLIP = _BASE | {"patch_size": 32, "layer_norm_eps": 1e-5, "hidden_act": "quick_gelu"}
_SIGLIP = _BASE | {"patch_size": 16, "layer_norm_eps": 1e-6, "hidden_act": "gelu_pytorch_tanh"}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "vit": _VIT,
    "vit_mae": _VIT,
    "dinov2": _DINOV2,
    "dinov2_with_registers": _DINOV2 | {"patch_size": 16, "num_register_tokens": 4},
    "dinov3_vit": _BASE | _DINOV3,
    "clip": _CLIP,
    "clip_vision_model": _CLIP,
    "siglip": _SIGLIP,
    "siglip_vision_model": _SIGLIP,
}
# Layer=tensor of a file; a whole model's file has a prefix ("vit.").
_OF_VIT = """patches=embeddings.patch_embeddings.projection class_token=embeddings.cls_token
    registers=embeddings.register_tokens positions=embeddings.position_embeddings last_norm=layernorm
    blocks=encoder.layer query=attention.attention.query key=attention.attention.key
    value=attention.attention.value out=attention.output.dense norm1=layernorm_before norm2=layernorm_after
    up=intermediate.dense down=output.dense"""
_OF_DINOV2 = f"""{_OF_VIT} norm1=norm1 norm2=norm2 up=mlp.fc1 down=mlp.fc2 scale1=layer_scale1.lambda1
    scale2=layer_scale2.lambda1"""
_OF_SWIGLU = " gate=mlp.weights_in up=mlp.weights_in down=mlp.weights_out"
_OF_DINOV3 = f"""{_OF_DINOV2} patches=embeddings.patch_embeddings last_norm=norm blocks=layer
    query=attention.q_proj key=attention.k_proj value=attention.v_proj out=attention.o_proj
    gate=mlp.gate_proj up=mlp.up_proj down=mlp.down_proj"""
_OF_CLIP = """patches=embeddings.patch_embedding class_token=embeddings.class_embedding
    positions=embeddings.position_embedding.weight first_norm=pre_layrnorm last_norm=post_layernorm
    blocks=encoder.layers query=self_attn.q_proj key=self_attn.k_proj value=self_attn.v_proj
    out=self_attn.out_proj norm1=layer_norm1 norm2=layer_norm2 up=mlp.fc1 down=mlp.fc2"""
_OF_POOLING = {"pooling": "head", "out": "attention.out_proj", "norm": "layernorm"}
_QKV = ("query", "key", "value")


class Form(NamedTuple):
    """Sizes and parts of a network; `biases` are those of query, key, value, output and MLP."""

    width: int
    depth: int
    heads: int
    hidden: int
    patch: int
    image_size: int
    channels: int = 3
    activation: str = "gelu"
    epsilon: float = 1e-6
    pool: str = "class"  # or "mean", "attention"
    has_class: bool = True
    registers: int = 0
    rotary: float = 0.0  # base of the frequencies; 0: learned positions
    biases: tuple[bool, ...] = (True,) * 5
    antialias: bool = False
    layer_scale: bool = False
    is_gated: bool = False
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
        with of_folder("folder", folder):
            form = read_form(location(folder, "folder"))
    height, _, channels = image_shape("vit", input_shape, form.patch if form else patch_size)
    if form is None:
        if width % (2 * heads):
            raise UsageError(f"width={width}: vit takes a multiple of 2 heads={2 * heads}")
        size = height // patch_size * patch_size
        form = Form(width, depth, heads, 4 * width, patch_size, size, channels)
    elif channels not in (1, form.channels):
        wrong = f"it takes images of {form.channels} channels, not of {channels}"
        raise UsageError(wrong, key="folder", value=folder)
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
    make = partial(_Transformer, form, num_classes)
    return built(make, by_example=True, kernel_init=_INIT, epsilon=form.epsilon)


class _Attention(nnx.Module):
    """Attention and an MLP."""

    def __init__(self, form: Form, layers: Layers):
        self.heads, self.activation = form.heads, _ACTIVATIONS[form.activation]
        self.query, self.key, self.value, self.out = (
            layers.linear(form.width, form.width, use_bias=bias) for bias in form.biases[:4]
        )
        self.up = layers.linear(form.width, form.hidden, use_bias=form.biases[4])
        self.down = layers.linear(form.hidden, form.width, use_bias=form.biases[4])
        if form.is_gated:
            self.gate = layers.linear(form.width, form.hidden, use_bias=form.biases[4])

    def attend(self, x: jax.Array, source: jax.Array, turn: Activation) -> jax.Array:
        """Attend from tokens x [n, t, d] to tokens [n, u, d]; `turn` rotates queries and keys."""
        q, k, v = (
            layer(tokens).reshape(*tokens.shape[:2], self.heads, -1)
            for layer, tokens in ((self.query, x), (self.key, source), (self.value, source))
        )
        return self.out(jax.nn.dot_product_attention(turn(q), turn(k), v).reshape(x.shape))

    def mlp(self, x: jax.Array) -> jax.Array:
        """W_2 act(W_1 x), or W_2 (act(W_g x) * W_1 x)."""
        if hasattr(self, "gate"):
            return self.down(self.activation(self.gate(x)) * self.up(x))
        return self.down(self.activation(self.up(x)))


class _Block(_Attention):
    def __init__(self, form: Form, layers: Layers):
        self.norm1, self.norm2 = layers.token_norm(form.width), layers.token_norm(form.width)
        super().__init__(form, layers)
        if form.layer_scale:
            self.scale1, self.scale2 = (nnx.Param(jnp.ones(form.width)) for _ in range(2))

    def __call__(self, x: jax.Array, turn: Activation) -> jax.Array:
        scaled = hasattr(self, "scale1")
        y = self.norm1(x)
        y = self.attend(y, y, turn)
        x = x + (y * self.scale1[...].astype(x.dtype)[None, None] if scaled else y)
        y = self.mlp(self.norm2(x))
        return x + (y * self.scale2[...].astype(x.dtype)[None, None] if scaled else y)


class _Pooling(_Attention):
    """SigLIP's: y = attention from a learned query; y + mlp(norm(y))."""

    def __init__(self, form: Form, layers: Layers):
        self.probe = nnx.Param(_INIT(layers.rngs.params(), (1, form.width), jnp.float32))
        self.norm = layers.token_norm(form.width)
        super().__init__(form, layers)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.attend(_repeated(self.probe, x), x, identity)
        return (y + self.mlp(self.norm(y)))[:, 0]


def _repeated(tokens: nnx.Param, x: jax.Array) -> jax.Array:
    """Tokens [t, d] for each of x [n, ...], of its dtype."""
    return jnp.broadcast_to(tokens[...].astype(x.dtype)[None], (len(x), *tokens.shape))


class _Transformer(nnx.Module):
    def __init__(self, form: Form, num_classes: int | None, layers: Layers):
        self.form = form
        stride, grid = form.patch, form.image_size // form.patch

        def tokens(number: int) -> nnx.Param:
            return nnx.Param(_INIT(layers.rngs.params(), (number, form.width), jnp.float32))

        self.patches = layers.conv(
            form.channels, form.width, stride, stride, padding=0, use_bias=not form.is_clip
        )
        if form.has_class:
            self.class_token = tokens(1)
        if form.registers:
            self.registers = tokens(form.registers)
        if not form.rotary:
            self.positions = tokens(form.has_class + grid**2)
        if form.is_clip:
            self.first_norm = layers.token_norm(form.width)
        self.blocks = nnx.List(_Block(form, layers) for _ in range(form.depth))
        self.last_norm = layers.token_norm(form.width)
        if form.pool == "attention":
            self.pooling = _Pooling(form, layers)
        self.head = layers.classifier(form.width, num_classes)

    def features(self, x: jax.Array, rngs: nnx.Rngs | None = None) -> jax.Array:
        """The class token, the mean of patches, or the pooled tokens."""
        form, turn = self.form, identity
        x = self.patches(jnp.repeat(x, form.channels // x.shape[-1], axis=-1))
        n, height, width, d = x.shape
        x = x.reshape(n, -1, d)
        if form.has_class:
            x = jnp.concatenate([_repeated(self.class_token, x), x], axis=1)
        if form.rotary:
            turn = partial(rotated, *rotary_angles(height, width, d // form.heads, form.rotary))
        else:
            positions = self.positions[...].astype(jnp.float32)
            x = x + resized_positions(form, positions, height, width).astype(x.dtype)[None]
        if form.registers:
            x = jnp.concatenate([x[:, :1], _repeated(self.registers, x), x[:, 1:]], axis=1)
        if form.is_clip:
            x = self.first_norm(x)
        for block in self.blocks:
            x = block(x, turn)
        x = self.last_norm(x[:, 0] if form.pool == "class" else x)
        if form.pool == "attention":
            x = self.pooling(x)
        if form.pool == "mean":
            return jnp.mean(x[:, form.has_class + form.registers :], axis=1, dtype=jnp.float32)
        return x.astype(jnp.float32)


def resized_positions(form: Form, positions: jax.Array, height: int, width: int) -> jax.Array:
    """Positions of the class token, if any, and of height x width patches."""
    grid = form.image_size // form.patch
    if height == width == grid:
        return positions
    first, rest = positions[: form.has_class], positions[form.has_class :].reshape(grid, grid, -1)
    rest = resized_grid(rest, height, width, antialias=form.antialias)
    return jnp.concatenate([first, rest.reshape(height * width, -1)])


def read_form(folder: str | Path) -> Form:
    """Read config.json. Raises a UsageError of one line: no such file, or another kind of model."""
    config = _json(Path(folder), CONFIG)
    kind = config.get("model_type")
    if kind not in _DEFAULTS:
        allowed = ", ".join(_DEFAULTS)
        raise UsageError(f"model_type={kind!r} cannot be read; readable: {allowed}")
    settings = _DEFAULTS[kind] | config.get("vision_config", config)
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "patch_size", "image_size")
    width, depth, heads, patch, image = (
        one[0] if isinstance(one := settings[key], list) and len(set(one)) == 1 else one
        for key in sizes
    )
    hidden, act = settings["intermediate_size"], settings["hidden_act"]
    is_gated = settings.get("use_gated_mlp") or settings.get("use_swiglu_ffn") or False
    if kind.startswith("dinov2"):
        hidden = int(width * settings["mlp_ratio"])
        if is_gated:
            hidden, act = (int(hidden * 2 / 3) + 7) // 8 * 8, "silu"
    numbers = (width, depth, heads, hidden, patch, image, settings["num_channels"])
    if not all(isinstance(one, int) and one > 0 for one in numbers) or act not in _ACTIVATIONS:
        raise UsageError(f"sizes {numbers} and hidden_act={act!r} cannot be read")
    if width % heads or (kind == "dinov3_vit" and width % (4 * heads)) or image < patch:
        raise UsageError(f"{heads} heads, width {width}, patches {patch} of {image} do not fit")
    is_siglip, pool = "siglip" in kind, "mean" if kind == "vit_mae" else "class"
    if is_siglip:
        pool = "attention" if settings.get("vision_use_head", True) else "mean"
    biases = (settings.get(f"{name}_bias", settings["qkv_bias"]) for name in _QKV)
    return Form(
        *numbers,
        activation=act,
        epsilon=settings["layer_norm_eps"],
        pool=pool,
        has_class=not is_siglip,
        registers=settings.get("num_register_tokens", 0),
        rotary=settings.get("rope_theta", 0.0),
        biases=(*biases, settings.get("proj_bias", True), settings.get("mlp_bias", True)),
        antialias=kind == "dinov2_with_registers",
        layer_scale="dino" in kind,
        is_gated=is_gated,
        is_clip="clip" in kind,
    )


def names_of(form: Form) -> dict[str, str]:
    """Return layer -> its name in the file of a folder of this form."""
    table = _OF_DINOV3 if form.rotary else _OF_DINOV2 if form.layer_scale else _OF_VIT
    if form.is_clip or not form.has_class:
        table = _OF_CLIP
    elif form.is_gated and not form.rotary:
        table += _OF_SWIGLU
    return dict(entry.split("=") for entry in table.split())


def tensor_of(form: Form, leaf: tuple[Any, ...]) -> Tensor:
    """Return the tensor of a leaf; some files have several leaves in one tensor."""
    names = names_of(form)
    if leaf[0] == "pooling":
        end = pytorch_name(leaf[-1:], {})
        if leaf[1] in _QKV:
            return Tensor(f"head.attention.in_proj_{end}", _QKV.index(leaf[1]), 3)
        names |= _OF_POOLING
    name = pytorch_name(leaf, names)
    is_half = names.get("gate") == names["up"] and not {"gate", "up"}.isdisjoint(leaf)
    return Tensor(name, int("up" in leaf), 2) if is_half else Tensor(name)  # gate above up


def read_state(folder: str | Path, template: nnx.State, *, new_head: bool = False) -> nnx.State:
    """Read the weights of a folder into a state like the template (`read_tensors`).

    Tensors of a text tower, a decoder or a classifier are left out. `new_head` keeps the template's head.
    """
    form = read_form(folder)
    return read_tensors(
        Path(folder) / WEIGHTS,
        template,
        partial(tensor_of, form),
        without="head" if new_head else "",
        prefix_of=f"{names_of(form)['patches']}.weight",
    )


def _json(folder: Path, name: str) -> dict[str, Any]:
    try:
        content = json.loads((folder / name).read_text())
    except FileNotFoundError as error:
        needed = f"{CONFIG}, {WEIGHTS} and {PREPROCESSOR}"
        raise UsageError(f"has no {name}; use a folder with {needed}") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{name}: cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise UsageError(f"{name}: is no object of keys and values")
    return content


def read_images(folder: str | Path) -> Images:
    """Read preprocessor_config.json. Raises a UsageError of one line."""
    try:
        return Images.of_settings(_json(Path(folder), PREPROCESSOR))
    except (KeyError, TypeError, ValueError) as error:
        wrong = f"{type(error).__name__} {error}"
        raise UsageError(f"{PREPROCESSOR}: cannot be read: {wrong}") from error
