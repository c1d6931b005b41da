"""Flax models by name, each built for a shape of inputs and a number of classes.

    model = MODELS[name](input_shape, num_classes, convolution="auto", **options)
    state = model.init(jax.random.key(0))
    logits = model.apply(state, x)

Options are each network's own; see the functions. Any other Flax network becomes one by `from_flax`, and
has a name in configs by `MODELS.register(name)` (`jaxfed.registry`).
"""

from collections.abc import Callable

from jaxfed.models.cnn import cnn
from jaxfed.models.cnn13 import cnn13
from jaxfed.models.efficientnet import NETWORKS, factory
from jaxfed.models.fedct import fedct_cifar10, fedct_scans, fedct_svhn
from jaxfed.models.flax_modules import from_flax
from jaxfed.models.mlp import linear_mlp, mlp
from jaxfed.models.model import Model
from jaxfed.models.resnet9 import resnet8, resnet9
from jaxfed.models.resnet18 import resnet17, resnet18
from jaxfed.registry import Registry

__all__ = ["MODELS", "Model", "from_flax"]

_OWN: dict[str, Callable[..., Model]] = {
    "mlp": mlp,
    "linear_mlp": linear_mlp,
    "cnn": cnn,
    "cnn13": cnn13,
    "resnet8": resnet8,
    "resnet9": resnet9,
    "resnet17": resnet17,
    "resnet18": resnet18,
    "fedct_cifar10": fedct_cifar10,
    "fedct_fashion_mnist": mlp,
    "fedct_svhn": fedct_svhn,
    "fedct_pneumonia": fedct_scans,
    "fedct_mri": fedct_scans,
    **{name: factory(name) for name in NETWORKS},
}
MODELS = Registry("network", _OWN, num_given=2)
