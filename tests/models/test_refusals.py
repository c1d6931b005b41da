"""What models refuse: shapes, options, modules of users, files of weights."""

from functools import cache, partial
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import refusals
from efficientnet_weights import write_weights
from flax import nnx
from safetensors.numpy import load_file, save_file
from small_networks import DeepHead

from jaxfed.models import MODELS, from_flax
from jaxfed.models.efficientnet import efficientnet, find_weights, read_weights
from jaxfed.models.head import dense_head
from jaxfed.models.model import from_module

CIFAR, GREY = (32, 32, 3), (28, 28, 1)


def built(name, shape, **options):
    return partial(MODELS[name], shape, 10, **options)


IMAGES = ("cnn", "efficientnet_b0")
NETWORKS = {f"{name} takes images (H, W, c)": built(name, (30,)) for name in IMAGES} | {
    "...12 x 12": built("cnn13", (11, 32, 3)),
    "cnn.norm='layer': choose one of 'batch', 'group', 'none'": built(
        "cnn", (8, 8, 1), norm="layer"
    ),
    "mlp.hidden='wide': use lists of integers from 1 on": built("mlp", GREY, hidden="wide"),
    "fedct_svhn.norm=1: choose one of 'batch'": built("fedct_svhn", CIFAR, norm=1),
    "vit.heads=0: use integers from 1 on": built("vit", CIFAR, heads=0),
    "...8 groups do not divide 12 channels": built("cnn", (8, 8, 1), norm="group", channels=(12,)),
    "...32 x 32": built("resnet9", GREY),
    "...4 positive": built("resnet9", CIFAR, pools=(2, 2)),
}


class Net(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(4, 8, rngs=rngs)
        self.last = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.relu(self.first(x)))


class Cached(nn.Module):
    @nn.compact
    def __call__(self, x):
        self.variable("cache", "seen", lambda: jnp.zeros(()))
        return nn.Dense(3)(x)


class Masked(Net):
    def __call__(self, x, mask):
        return super().__call__(x * mask)


class Buffered(nnx.Module):
    def __init__(self, rngs):
        self.inner = nnx.Linear(4, 3, rngs=rngs)
        self.scale = np.ones((1, 4), np.float32)

    def __call__(self, x):
        return self.inner(x * self.scale)


class OtherHead(Net):
    def __call__(self, x):
        return 2 * super().__call__(x)

    def features(self, x):
        return self.first(x)

    def head(self, features):
        return self.last(features) + 1


def module(given, shape=(4,)):
    return partial(from_flax, given, shape)


def head(model):
    return lambda: dense_head(model, "m")


MODULES = {
    "from_flax(input_shape=4): use tuples": module(Net, 4),
    "...Buffered: scale is of type ShapeDtypeStruct; use nnx.Param": module(Buffered),
    "...OtherHead: head(features(x)) differs from __call__(x)": module(OtherHead),
    "...Linear cannot be made from its nnx.Rngs: ...'out_features'": module(nnx.Linear),
    "from_flax(Cached): is a class": module(Cached),
    "...Cached: seen is of type Cache; use nnx.Param": module(Cached()),
    "...Masked.__call__: requires the argument 'mask'": module(Masked),
    "...Linear does not take examples of (4,)": module(lambda rngs: nnx.Linear(5, 3, rngs=rngs)),
    "from_flax(int): use": module(7),
    "...m needs a head of one dense layer...b.bias, b.kernel": head(from_module(DeepHead)),
    "model: m needs ...no head with parameters": head(MODELS["mlp"]((4,), None, hidden=(8,))),
    "model: m needs ...nothing below its head": head(MODELS["mlp"]((4,), 3, hidden=())),
    "model: m needs ...one dense layer: ...head.gain": head(MODELS["cnn13"](CIFAR, 3)),
}


@cache
def template():
    return jax.eval_shape(efficientnet("efficientnet_b0").init, jax.random.key(0))


def changed(change):
    def call():
        state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), template())
        write_weights(Path("w.safetensors"), state)
        tensors = load_file("w.safetensors")
        change(tensors)
        save_file(tensors, "w.safetensors")
        read_weights(Path("w.safetensors"), template())

    return call


def read(content):
    def call():
        if content:
            Path("noise").write_bytes(content)
        read_weights(Path("noise"), template())

    return call


def transposed(tensors):
    tensors["_fc.weight"] = np.ascontiguousarray(tensors["_fc.weight"].T)


WEIGHTS = {
    "...1 missing tensors ... _conv_head.weight": changed(lambda t: t.pop("_conv_head.weight")),
    "...1 unexpected tensors ... _blocks.99.bias": changed(
        lambda t: t.update({"_blocks.99.bias": np.zeros(3, np.float32)})
    ),
    "..._fc.weight has shape (1280, 1000), expected (1000, 1280)": changed(transposed),
    "...noise": read(b"\xff" * 100),
    "...noise...": read(b""),
    "...no weights of efficientnet_b1...root...save_file": partial(
        find_weights, "efficientnet_b1", root="root"
    ),
    "...elsewhere": partial(find_weights, "efficientnet_b0", "elsewhere"),
}

test_refused = refusals.table(NETWORKS | MODULES | WEIGHTS)
