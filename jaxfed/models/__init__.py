"""Flax models by name, each built for a shape of inputs and a number of classes.

    model = MODELS[name](input_shape, num_classes, **options)
    state = model.init(jax.random.key(0))
    logits = model.apply(state, x)

Options are documented in each network's function. `from_flax` converts any other Flax network;
`MODELS.register(name)` makes it available in configs (`jaxfed.registry`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from jaxfed.registry import LazyFactory, Registry, imported_on_use
from jaxfed.settings import Setting, hinted, settings_of

if TYPE_CHECKING:
    from jaxfed.models.flax_modules import from_flax
    from jaxfed.models.model import Model

__all__ = ["MODELS", "Model", "from_flax", "options_of"]


def _in(file: str, name: str = "") -> LazyFactory:
    return LazyFactory(f"{__name__}.{file}", name or file)


_BUILT_IN: dict[str, LazyFactory] = {
    "mlp": _in("mlp"),
    "linear_mlp": _in("mlp", "linear_mlp"),
    "vit": _in("vision_transformer", "vit"),
    **{
        name: _in("convolutional", name)
        for name in ("cnn", "cnn13", "resnet9", "resnet18", "cifar_resnet8", "fedct_cifar10")
    },
    "fedct_fashion_mnist": _in("mlp"),
    "fedct_svhn": _in("convolutional", "fedct_svhn"),
    "fedct_pneumonia": _in("convolutional", "fedct_scans"),
    "fedct_mri": _in("convolutional", "fedct_scans"),
    **{name: _in("efficientnet", name) for name in ("efficientnet_b0", "efficientnet_lite0")},
}
MODELS: Registry[Callable[..., Model]] = Registry("network", _BUILT_IN, decorator=hinted)


def options_of(name: str) -> Mapping[str, Setting]:
    """Return option -> setting of a network."""
    return settings_of(MODELS[name])


_FILES = {"Model": "model", "from_flax": "flax_modules"}
__getattr__ = imported_on_use(__name__, _FILES)
