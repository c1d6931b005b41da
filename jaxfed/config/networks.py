"""The config's network: its inputs' scales, and the weights that it starts from.

`training.initial_model` is '' for new weights, 'pretrained' for released ImageNet weights, or the state of an
earlier experiment, WORKDIR/states/METHOD-{repeat}. An unfinished run resumes only if such files are unchanged
(`checksums`): otherwise later repeats would come from other weights than the existing results.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from jaxfed.config.keys import refused
from jaxfed.config.methods import (
    chosen,
    needs,
    training_key,
    uses_training,
    with_own_training,
)
from jaxfed.errors import UsageError, section
from jaxfed.federation.census import feature_sums, mean_and_deviation
from jaxfed.federation.clients import Federation
from jaxfed.federation.communication import num_bytes_of
from jaxfed.federation.execution.settings import require
from jaxfed.host.checkpoint import Checkpoint, Checkpoints
from jaxfed.host.location import location
from jaxfed.host.storage import file_checksum
from jaxfed.models import MODELS, Model
from jaxfed.models.efficientnet import NETWORKS
from jaxfed.models.encoders import Encoder, find_encoder
from jaxfed.models.model import DTYPES, in_precision, normalized, of_first_row
from jaxfed.models.trainable import partly_trained
from jaxfed.random_streams import Stream

PRETRAINED = "pretrained"
_INITIAL = "training.initial_model"


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
    shape = federation.x.shape[2 if config.preprocessing.views else 1 :]
    num_classes = federation.num_classes if head or name in MODELS.from_outside() else None
    try:
        model = MODELS[name](shape, num_classes, **options)
    except UsageError as error:
        if error.key.startswith("config."):
            raise
        raise refused(config, "model.name", str(error)) from error
    if num_classes and name in MODELS.from_outside():
        state = jax.eval_shape(model.init, jax.random.key(0))
        example = jax.ShapeDtypeStruct((1, *shape), jax.numpy.float32)
        if (outputs := jax.eval_shape(model.apply, state, example).shape[-1]) != num_classes:
            wrong = f"has {outputs} outputs for {num_classes} classes"
            raise refused(config, "model.name", wrong, "its factory receives num_classes")
    if config.execution.precision != "float32":
        model = in_precision(model, DTYPES[config.execution.precision])
    model = normalized(model, *_normalization(config, federation, private=private))
    return of_first_row(model) if config.preprocessing.views else model


def trained_network(
    config: ConfigDict,
    federation: Federation,
    repeat: int,
    *,
    head: bool = True,
    private: bool = False,
) -> tuple[Model, nnx.State | None]:
    """Return the model of the part that `training.trainable` trains, and the state it starts from, or None.

    The rest of the network is that of `training.initial_model`, else drawn by the seed of the repeat, which
    every party has. Arguments and errors as those of `make_model`.
    """
    model, wanted = make_model(config, federation, head=head, private=private), config.training
    check_size(config, model)
    start = initial_model(config, model, repeat) if head else None  # stored networks have one
    if wanted.trainable == "all":
        return model, start
    options = ("lora_rank", "lora_alpha", "lora_factors")
    draw = jax.random.fold_in(jax.random.key(config.seed + repeat), Stream.FROZEN_WEIGHTS)
    whole = jax.jit(model.init)(draw) if start is None else start
    with section("config.training", ("trainable", *options)), section("config.model", ("name",)):
        model, part = partly_trained(
            model, whole, wanted.trainable, key=draw, **{key: wanted[key] for key in options}
        )
    return model, None if start is None else part(start)


def check_size(config: ConfigDict, model: Model) -> None:
    """Refuse a model whose parameters exceed the memory; nothing is computed."""
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
        return _pretrained(config).scaling
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


def starts_from_state(config: ConfigDict) -> bool:
    """True if training starts from a state that an earlier experiment saved."""
    return config.training.initial_model not in ("", PRETRAINED)


def initial_model(config: ConfigDict, model: Model, repeat: int) -> Any:
    """Return the parameters that training starts from; None for new ones."""
    if config.training.initial_model == PRETRAINED:
        key = jax.random.fold_in(jax.random.key(config.seed + repeat), Stream.NEW_HEAD)
        return _pretrained(config).read(model.init(key), new_head=True)
    if not starts_from_state(config):
        return None
    template = jax.eval_shape(model.init, jax.random.key(0))
    try:
        state = _saved_model(config, repeat).state(template, part="model")
    except UsageError as error:
        raise refused(config, _INITIAL, str(error)) from error
    places = jax.tree_util.tree_leaves_with_path(state)
    for (path, leaf), form in zip(places, jax.tree.leaves(template), strict=True):
        if (leaf.shape, leaf.dtype) != (form.shape, form.dtype):
            where = jax.tree_util.keystr(path, simple=True, separator=".")
            here = f"config.model.name={config.model.name!r} for this data"
            of = (f"{one.dtype}{list(one.shape)}" for one in (leaf, form))
            raise refused(config, _INITIAL, "{} is {} there, {} in {}".format(where, *of, here))
    return state


def saved_models(config: ConfigDict) -> dict[int, Checkpoint]:
    """Return repeat -> state that its training starts from; {} for none, only 0 if all repeats share one."""
    if not starts_from_state(config):
        return {}
    number = config.num_repeats if "{repeat}" in config.training.initial_model else 1
    return {repeat: _saved_model(config, repeat) for repeat in range(number)}


def _saved_model(config: ConfigDict, repeat: int) -> Checkpoint:
    given = config.training.initial_model.replace("{repeat}", str(repeat))
    folder = location(given, f"config.{_INITIAL}")
    wanted = "give WORKDIR/states/NAME-{repeat}"
    if not folder.is_dir():
        raise refused(config, _INITIAL, f"no such folder ({folder})", wanted)
    try:
        saved = Checkpoints(folder).latest()
    except UsageError as error:
        raise refused(config, _INITIAL, str(error)) from error
    if saved is None:
        raise refused(config, _INITIAL, f"{folder} holds no saved state", wanted)
    network, own = saved.progress.get("network"), config.model.name
    if network not in (None, own):  # some states do not record it
        wrong = f"{folder} holds the network {network!r}, config.model.name is {own!r}"
        raise refused(config, _INITIAL, wrong)
    return saved


def _pretrained(config: ConfigDict) -> Encoder:
    """Return the released network that the config trains."""
    name = config.model.name
    folder = config.model.get("folder", "") if name == "vit" else ""
    if name not in NETWORKS and not folder:
        wrong = f"there are no weights for model.name={name!r}"
        names = ", ".join(map(repr, NETWORKS))
        allowed = f"set model.name to one of {names}, or to 'vit' with a model.folder"
        raise refused(config, _INITIAL, wrong, allowed)
    weights, root = config.preprocessing.weights or None, config.dataset.root or None
    key = "config.model.folder" if folder else f"config.{_INITIAL}"
    return find_encoder(folder or name, weights, root, key=key)


def checksums(config: ConfigDict) -> dict[str, str]:
    """Return config key (with the repeat, for states) -> size and checksum of each file in use."""
    files, models = dict[str, Path](), dict[str, ConfigDict]()
    for name in chosen(config):
        if uses_training(config, name):
            models[training_key(config, name, "initial_model")] = with_own_training(config, name)
    if config.preprocessing.kind == "federated_features":
        models[_INITIAL] = config
    if config.preprocessing.kind == "pretrained":
        wanted = config.preprocessing
        encoder = find_encoder(wanted.network, wanted.weights or None, config.dataset.root or None)
        files |= encoder.named_files("preprocessing.network", "preprocessing.weights")
    for key, seen in models.items():
        if seen.training.initial_model == PRETRAINED:
            files |= _pretrained(seen).named_files("model.folder", key)
        for repeat, saved in saved_models(seen).items():
            files[f"{key} of repeat {repeat}"] = saved.file
    return {key: file_checksum(file) for key, file in files.items()}
