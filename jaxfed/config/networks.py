"""The config's network, for examples of a shape, and the weights that it starts from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from jaxfed.config.memory_demand import Demand, refuse_beyond
from jaxfed.config.model_options import check_options, takes_convolution
from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation
from jaxfed.federation.communication import num_bytes_of
from jaxfed.host.checkpoint import Checkpoint, Checkpoints
from jaxfed.host.location import location
from jaxfed.models import MODELS, Model
from jaxfed.models.efficientnet import NETWORKS, Network
from jaxfed.models.pretrained import find_weights, read_weights
from jaxfed.models.wrapping import DTYPES, in_precision, normalized
from jaxfed.training import augmentation

PRETRAINED = "pretrained"


_HEAD = 0x68656164  # sets a new head's weights apart from the rounds, which the same key counts


@contextmanager
def in_section(name: str, *keys: str) -> Iterator[None]:
    """Say by its key in the config what a library's error calls by its own name.

    `KEY=...`, or `ANYTHING.KEY=...`, becomes `config.NAME.KEY=...` for the keys given, and
    `augmentation 'x'` names the only key.
    """
    try:
        yield
    except UsageError as error:
        message = str(error)
        found = re.match(r"(?:\w+\.)?(\w+)(?==|:)", message)
        if found and found[1] in keys:
            message = f"config.{name}.{message[found.start(1) :]}"
        elif message.startswith("augmentation "):
            message = f"config.{name}.{keys[0]}: {message}"
        raise UsageError(message) from error


def check_model(config: ConfigDict, federation: Federation) -> Model:
    """The model for examples of this shape, which fits into memory and can be trained on them.

    Raises:
        UsageError: a model that is too large or does not take such examples, or augmentation of examples
            that are no images.
    """
    shape = federation.x.shape[1:]
    augment = augmentation.compose(config.training.augmentation)
    if augment:  # the strong ones are for some methods only, which find out when they use them
        examples = jax.ShapeDtypeStruct((1, *shape), jax.numpy.float32)
        with in_section("training", "augmentation"):
            jax.eval_shape(augment, jax.random.key(0), examples)
    model = make_model(config, federation)
    parameters = jax.eval_shape(model.init, jax.random.key(0))
    num_bytes = num_bytes_of(parameters)
    given = {key: value for key, value in config.model.items() if key != "name"}
    options = ", ".join(f"{key}={value}" for key, value in given.items())
    what = f"with {options or 'its own options'} the parameters alone"
    refuse_beyond(Demand("model.name", config.model.name, num_bytes, what))
    return model


def check_models(config: ConfigDict, federation: Federation) -> None:
    """Whether training can start, in every repeat: from scratch, or from `training.initial_model`.

    Args:
        config: of the experiment.
        federation: examples of the shape that the model takes; any number.

    Raises:
        UsageError: as `check_model`; a state that is missing, damaged, or of a model of other leaves or
            shapes.
    """
    model = check_model(config, federation)
    if starts_from_state(config):
        for repeat in repeats_that_differ(config):
            initial_model(config, model, repeat)


def make_model(config: ConfigDict, federation: Federation, *, head: bool = True) -> Model:
    """The config's network for the federation's examples, which it normalizes inside.

    Without a head it ends with its features; a network from outside (`MODELS.register`) keeps its own.

    Raises:
        UsageError: an option that the network does not take, or examples of a shape it does not take.
    """
    options = config.model.to_dict()
    name = options.pop("name")
    factory, execution = MODELS[name], config.execution
    check_options(name, factory, options)
    shape = federation.x.shape[1:]
    num_classes = federation.num_classes if head or name in MODELS.from_outside() else None
    if takes_convolution(factory):
        options["convolution"] = execution.convolution
    try:
        model = factory(shape, num_classes, **options)
    except UsageError as error:
        raise UsageError(f"config.model.name={name!r}: {error}") from error
    if name in MODELS.from_outside():
        _check_outputs(model, name, shape, federation.num_classes)
    if execution.precision != "float32":
        model = in_precision(model, DTYPES[execution.precision])
    return normalized(model, *_normalization(config, federation))


def _check_outputs(model: Model, name: str, shape: Sequence[int], num_classes: int) -> None:
    """A network from outside has an output for each class."""
    state = jax.eval_shape(model.init, jax.random.key(0))
    example = jax.ShapeDtypeStruct((1, *shape), jax.numpy.float32)
    outputs = jax.eval_shape(model.apply, state, example).shape[-1]
    if outputs != num_classes:
        raise UsageError(
            f"config.model.name={name!r}: has {outputs} outputs for {num_classes} classes; its factory is "
            "given num_classes"
        )


def _normalization(config: ConfigDict, federation: Federation) -> tuple[np.ndarray, np.ndarray]:
    """The clients' mean and deviation, or what released weights were trained with."""
    if config.training.initial_model != PRETRAINED:
        return federation.normalization
    network = _pretrained_network(config)
    mean, deviation = (np.asarray(rgb) / 255 for rgb in (network.mean, network.deviation))
    return mean, deviation


def _pretrained_network(config: ConfigDict) -> Network:
    if config.model.name not in NETWORKS:
        raise UsageError(
            f"config.training.initial_model='{PRETRAINED}': there are weights for model.name out of "
            f"{', '.join(NETWORKS)}; it is {config.model.name!r}"
        )
    return NETWORKS[config.model.name]


def starts_from_state(config: ConfigDict) -> bool:
    """Whether training starts from a state that an experiment left."""
    return config.training.initial_model not in ("", PRETRAINED)


def repeats_that_differ(config: ConfigDict) -> range:
    """The repeats whose training starts from a state of their own; the first where all start alike."""
    return range(config.num_repeats if "{repeat}" in config.training.initial_model else 1)


def initial_model(config: ConfigDict, model: Model, repeat: int) -> Any:
    """Weights released for ImageNet, or the state that an experiment left under DIR/states/NAME-REPEAT."""
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
    key = jax.random.fold_in(jax.random.key(config.seed + repeat), _HEAD)
    start = model.init(key)
    return read_weights(file, start, new_head=True)


def saved_model(config: ConfigDict, repeat: int) -> Checkpoint:
    """The state that the config names for this repeat.

    Raises:
        UsageError: there is none, or it is of another network.
    """
    folder = location(config.training.initial_model.replace("{repeat}", str(repeat)), "folder")
    wanted = "give WORKDIR/states/NAME-{repeat}"
    if not folder.is_dir():
        raise UsageError(f"no such folder ({folder}); {wanted}")
    saved = Checkpoints(folder).latest()
    if saved is None:
        raise UsageError(f"{folder} holds no saved state; {wanted}")
    network = saved.progress.get("network", config.model.name)  # not all that leave states say it
    if network != config.model.name:
        raise UsageError(
            f"{folder} holds the network {network!r}, config.model.name is {config.model.name!r}"
        )
    return saved


@contextmanager
def naming_initial_model(config: ConfigDict) -> Iterator[None]:
    """Say of a library's error that it is about `training.initial_model`."""
    try:
        yield
    except UsageError as error:
        raise UsageError(
            f"config.training.initial_model={config.training.initial_model}: {error}"
        ) from error


def _check_shapes(config: ConfigDict, state: Any, template: Any) -> None:
    """Raise a UsageError if a leaf of the state is not as the config's model has it."""
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
