"""The config's network for a given example shape, and its initial weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from jaxfed.config.build.views import has_views
from jaxfed.config.methods import needs, uses_training, with_own_training
from jaxfed.errors import UsageError, section
from jaxfed.federation.clients import Federation
from jaxfed.federation.communication import num_bytes_of
from jaxfed.federation.execution.memory import require
from jaxfed.federation.feature_statistics import feature_sums, mean_and_deviation
from jaxfed.host.checkpoint import Checkpoint, Checkpoints
from jaxfed.host.location import location
from jaxfed.models import MODELS, Model
from jaxfed.models.efficientnet import NETWORKS, Network
from jaxfed.models.pretrained import find_weights, read_weights
from jaxfed.models.wrapping import DTYPES, in_precision, normalized, of_first_row
from jaxfed.random_streams import Stream
from jaxfed.settings import settings_of, takes_any
from jaxfed.training.local import augmentation

PRETRAINED = "pretrained"


def check_augmentation(config: ConfigDict, key: str, x: np.ndarray) -> None:
    """Check that `training.KEY` can augment examples of this shape and range, x [n, ...].

    Of examples with views the images are changed, before features are computed.
    """
    if has_views(config):
        return
    augment = augmentation.compose(config.training[key])
    if augment:
        examples = jax.ShapeDtypeStruct((1, *x.shape[1:]), jax.numpy.float32)
        with section("config.training", {"augmentation": key}):
            augmentation.check_levels(augment, x)
            jax.eval_shape(augment, jax.random.key(0), examples)


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
    if has_views(config):
        shape = shape[1:]
    num_classes = federation.num_classes if head or name in MODELS.from_outside() else None
    if "convolution" in settings_of(factory) or takes_any(factory):
        options["convolution"] = execution.convolution
    try:
        model = factory(shape, num_classes, **options)
    except UsageError as error:
        raise UsageError(str(error), key="config.model.name", value=name) from error
    if name in MODELS.from_outside():
        _check_outputs(model, name, shape, federation.num_classes)
    if execution.precision != "float32":
        model = in_precision(model, DTYPES[execution.precision])
    model = normalized(model, *_normalization(config, federation, private=private))
    return of_first_row(model) if has_views(config) else model


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


def _check_outputs(model: Model, name: str, shape: Sequence[int], num_classes: int) -> None:
    """Check that a network from outside has an output for each class."""
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
    if config.training.initial_model != PRETRAINED:
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
    network = _pretrained_network(config)
    mean, deviation = (np.asarray(rgb) / 255 for rgb in (network.mean, network.deviation))
    return mean, deviation


def _pretrained_network(config: ConfigDict) -> Network:
    if config.model.name not in NETWORKS:
        raise UsageError(
            f"there are no weights for model.name={config.model.name!r}",
            key="config.training.initial_model",
            value=PRETRAINED,
            allowed=f"set model.name to one of {', '.join(map(repr, NETWORKS))}",
        )
    return NETWORKS[config.model.name]


def starts_from_state(config: ConfigDict) -> bool:
    """True if training starts from a state that an earlier experiment saved."""
    return config.training.initial_model not in ("", PRETRAINED)


def repeats_that_differ(config: ConfigDict) -> range:
    """Return the repeats with different initial states; only the first if all repeats share one."""
    return range(config.num_repeats if "{repeat}" in config.training.initial_model else 1)


def initial_model(config: ConfigDict, model: Model, repeat: int) -> Any:
    """Return released ImageNet weights, or the state saved under DIR/states/NAME-REPEAT, or None."""
    if starts_from_state(config):
        template = jax.eval_shape(model.init, jax.random.key(0))
        with naming_initial_model(config):
            state = saved_model(config, repeat).state(template, part="model")
            _check_shapes(config, state, template)
        return state
    if config.training.initial_model != PRETRAINED:
        return None
    _pretrained_network(config)
    file = find_weights(
        config.model.name, config.preprocessing.weights or None, config.dataset.root or None
    )
    key = jax.random.fold_in(jax.random.key(config.seed + repeat), Stream.NEW_HEAD)
    start = model.init(key)
    return read_weights(file, start, new_head=True)


def saved_model(config: ConfigDict, repeat: int) -> Checkpoint:
    """Return the initial state that the config names for this repeat.

    Raises:
        UsageError: the state does not exist, or belongs to another network.
    """
    folder = location(config.training.initial_model.replace("{repeat}", str(repeat)), "folder")
    wanted = "give WORKDIR/states/NAME-{repeat}"
    if not folder.is_dir():
        raise UsageError(f"no such folder ({folder}); {wanted}")
    saved = Checkpoints(folder).latest()
    if saved is None:
        raise UsageError(f"{folder} holds no saved state; {wanted}")
    network = saved.progress.get("network", config.model.name)  # some states do not record it
    if network != config.model.name:
        raise UsageError(
            f"{folder} holds the network {network!r}, config.model.name is {config.model.name!r}"
        )
    return saved


@contextmanager
def naming_initial_model(config: ConfigDict) -> Iterator[None]:
    """Prefix errors of the enclosed code with `training.initial_model`."""
    try:
        yield
    except UsageError as error:
        raise UsageError(
            str(error), key="config.training.initial_model", value=config.training.initial_model
        ) from error


def _check_shapes(config: ConfigDict, state: Any, template: Any) -> None:
    """Raise a UsageError if a leaf's shape or dtype differs from the config's model."""
    wanted = jax.tree.leaves(template)
    for (path, leaf), expected in zip(
        jax.tree_util.tree_leaves_with_path(state), wanted, strict=True
    ):
        if (leaf.shape, leaf.dtype) != (expected.shape, expected.dtype):
            raise UsageError(
                f"{jax.tree_util.keystr(path, simple=True, separator='.')} is {leaf.dtype}"
                f"{list(leaf.shape)} there, {expected.dtype}{list(expected.shape)} in "
                f"config.model.name={config.model.name!r} for this data"
            )
