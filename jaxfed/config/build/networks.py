"""The config's network for a given example shape, and the numbers that scale its inputs."""

from __future__ import annotations

import jax
import numpy as np
from ml_collections import ConfigDict

from jaxfed.config.build.initial_model import PRETRAINED, pretrained_network
from jaxfed.config.methods import needs, uses_training, with_own_training
from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation
from jaxfed.federation.communication import num_bytes_of
from jaxfed.federation.execution.memory import require
from jaxfed.federation.feature_statistics import feature_sums, mean_and_deviation
from jaxfed.models import MODELS, Model
from jaxfed.models.wrapping import DTYPES, in_precision, normalized, of_first_row
from jaxfed.settings import settings_of, takes_any


def make_model(
    config: ConfigDict, federation: Federation, *, head: bool = True, private: bool = False
) -> Model:
    """Build the config's network for the federation's examples; it normalizes its inputs.

    Without a head it ends with its features; a network from outside (`MODELS.register`) keeps its head. A
    `private` model normalizes by public examples only.

    Raises:
        UsageError: the network does not take an option, or examples of this shape.
    """
    options = config.model.to_dict()
    name = options.pop("name")
    factory, execution = MODELS[name], config.execution
    shape = federation.x.shape[1:]
    if config.preprocessing.views:
        shape = shape[1:]
    num_classes = federation.num_classes if head or name in MODELS.from_outside() else None
    if "convolution" in settings_of(factory) or takes_any(factory):
        options["convolution"] = execution.convolution
    try:
        model = factory(shape, num_classes, **options)
    except UsageError as error:
        raise UsageError(str(error), key="config.model.name", value=name) from error
    if name in MODELS.from_outside():
        state = jax.eval_shape(model.init, jax.random.key(0))
        example = jax.ShapeDtypeStruct((1, *shape), jax.numpy.float32)
        outputs = jax.eval_shape(model.apply, state, example).shape[-1]
        if outputs != num_classes:
            raise UsageError(
                f"has {outputs} outputs for {num_classes} classes",
                key="config.model.name",
                value=name,
                allowed="its factory receives num_classes",
            )
    if execution.precision != "float32":
        model = in_precision(model, DTYPES[execution.precision])
    model = normalized(model, *_normalization(config, federation, private=private))
    return of_first_row(model) if config.preprocessing.views else model


def check_size(config: ConfigDict, model: Model) -> None:
    """Refuse a model whose parameters exceed the memory; nothing is computed.

    Raises:
        UsageError: as described.
    """
    num_bytes = num_bytes_of(jax.eval_shape(model.init, jax.random.key(0)))
    given = {key: value for key, value in config.model.items() if key != "name"}
    options = ", ".join(f"{key}={value}" for key, value in given.items())
    what = f"with {options or 'its own options'} the parameters alone"
    require(num_bytes, what, key="config.model.name", value=config.model.name)


def scales_by_clients(config: ConfigDict, name: str) -> bool:
    """True if the networks of a method normalize their inputs by the data of all clients."""
    if with_own_training(config, name).training.initial_model == PRETRAINED:
        return False  # by the numbers that the weights were trained with
    return uses_training(config, name) and not needs(config, name).private


def _normalization(
    config: ConfigDict, federation: Federation, *, private: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and deviation of the clients' data, or those that released weights were trained with.

    `private`: those of the public examples. Without any, they are 1/2 and 1/2 for images, else 0 and 1.
    """
    if config.training.initial_model == PRETRAINED:
        network = pretrained_network(config)
        return np.asarray(network.mean) / 255, np.asarray(network.deviation) / 255
    x = federation.x
    if private and len(federation.public):
        public_sums = feature_sums(x, federation.public)
        return mean_and_deviation(public_sums, of_bytes=x.dtype == np.uint8)
    if private:
        is_image = config.preprocessing.kind == "images"
        zeros = np.zeros(x.shape[-1], np.float32)
        return (zeros + 0.5, zeros + 0.5) if is_image else (zeros, zeros + 1)
    mean, deviation = federation.normalization
    if config.preprocessing.components:  # the last ones are mostly noise: one scale for all
        deviation = np.full_like(deviation, np.sqrt(np.mean(deviation**2)))
    return mean, deviation
