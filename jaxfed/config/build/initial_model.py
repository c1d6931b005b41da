"""`training.initial_model`: the model that training starts from, and the files that results depend on.

It is '' for new weights, 'pretrained' for released ImageNet weights, or the state of an earlier experiment,
WORKDIR/states/METHOD-{repeat}. Weights that features are computed with, and a table of availability, are such
files too: an unfinished run resumes only if they are unchanged (`Simulation.data_checksums`). Otherwise
features computed again, or later repeats, would come from other weights than the existing results.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from jaxfed.config import methods
from jaxfed.errors import UsageError
from jaxfed.federation.clock.settings import BUILT_IN
from jaxfed.host.checkpoint import Checkpoint, Checkpoints
from jaxfed.host.location import location
from jaxfed.host.storage import file_checksum
from jaxfed.models import Model
from jaxfed.models.efficientnet import NETWORKS, Network
from jaxfed.models.pretrained import find_weights, read_weights
from jaxfed.random_streams import Stream

PRETRAINED = "pretrained"


def starts_from_state(config: ConfigDict) -> bool:
    """True if training starts from a state that an earlier experiment saved."""
    return config.training.initial_model not in ("", PRETRAINED)


def initial_model(config: ConfigDict, model: Model, repeat: int) -> Any:
    """Return the parameters that training starts from; None for new ones.

    Raises:
        UsageError: a file does not exist, or belongs to another network.
    """
    if starts_from_state(config):
        template = jax.eval_shape(model.init, jax.random.key(0))
        try:
            state = saved_model(config, repeat).state(template, part="model")
        except UsageError as error:
            raise _refused(config, str(error)) from error
        _check_shapes(config, state, template)
        return state
    if config.training.initial_model != PRETRAINED:
        return None
    pretrained_network(config)
    file = _released_weights(config, config.model.name)
    key = jax.random.fold_in(jax.random.key(config.seed + repeat), Stream.NEW_HEAD)
    return read_weights(file, model.init(key), new_head=True)


def saved_models(config: ConfigDict) -> dict[int, Checkpoint]:
    """Return repeat -> state that its training starts from; {} for none, only 0 if all repeats share one.

    Raises:
        UsageError: a state does not exist, or belongs to another network.
    """
    if not starts_from_state(config):
        return {}
    differ = "{repeat}" in config.training.initial_model
    return {
        repeat: saved_model(config, repeat) for repeat in range(config.num_repeats if differ else 1)
    }


def saved_model(config: ConfigDict, repeat: int) -> Checkpoint:
    """Return the state that the config names for this repeat.

    Raises:
        UsageError: it does not exist, or belongs to another network.
    """
    given = config.training.initial_model.replace("{repeat}", str(repeat))
    folder = location(given, "config.training.initial_model")
    wanted = "give WORKDIR/states/NAME-{repeat}"
    if not folder.is_dir():
        raise _refused(config, f"no such folder ({folder}); {wanted}")
    try:
        saved = Checkpoints(folder).latest()
    except UsageError as error:
        raise _refused(config, str(error)) from error
    if saved is None:
        raise _refused(config, f"{folder} holds no saved state; {wanted}")
    network, own = saved.progress.get("network"), config.model.name
    if network not in (None, own):  # some states do not record it
        raise _refused(
            config, f"{folder} holds the network {network!r}, config.model.name is {own!r}"
        )
    return saved


def pretrained_network(config: ConfigDict) -> Network:
    """Return the description of the network that there are released weights for.

    Raises:
        UsageError: the config's network has no released weights.
    """
    if config.model.name not in NETWORKS:
        raise UsageError(
            f"there are no weights for model.name={config.model.name!r}",
            key="config.training.initial_model",
            value=PRETRAINED,
            allowed=f"set model.name to one of {', '.join(map(repr, NETWORKS))}",
        )
    return NETWORKS[config.model.name]


def initial_models(config: ConfigDict) -> dict[str, ConfigDict]:
    """Return each dotted key that holds an initial model of the run -> the config as its methods see it."""
    found = {
        methods.training_key(config, name, "initial_model"): methods.with_own_training(config, name)
        for name in methods.chosen(config)
        if methods.uses_training(config, name)
    }
    if config.preprocessing.kind == "federated_features":
        found["training.initial_model"] = config
    return found


def checksums(config: ConfigDict) -> dict[str, str]:
    """Return config key (with the repeat, for states) -> size and checksum of each file in use.

    Raises:
        UsageError: a file is missing.

    Cost: each file is read once, 1 GB/s.
    """
    return {key: file_checksum(file) for key, file in _files(config)}


def _files(config: ConfigDict) -> Iterator[tuple[str, Path]]:
    if config.clock.availability not in BUILT_IN:
        key = "config.clock.availability"
        table = location(config.clock.availability, key)
        if not table.is_file():
            raise UsageError("no such file", key=key, value=config.clock.availability)
        yield "clock.availability", table
    if config.preprocessing.kind == "pretrained":
        yield "preprocessing.weights", _released_weights(config, config.preprocessing.network)
    for key, seen in initial_models(config).items():
        if seen.training.initial_model == PRETRAINED:
            yield key, _released_weights(config, config.model.name)
        for repeat, saved in saved_models(seen).items():
            yield f"{key} of repeat {repeat}", saved.file


def _released_weights(config: ConfigDict, network: str) -> Path:
    return find_weights(network, config.preprocessing.weights or None, config.dataset.root or None)


def _check_shapes(config: ConfigDict, state: Any, template: Any) -> None:
    """Check that shapes and dtypes of all leaves are those of the config's model."""
    wanted = jax.tree.leaves(template)
    for (path, leaf), expected in zip(
        jax.tree_util.tree_leaves_with_path(state), wanted, strict=True
    ):
        if (leaf.shape, leaf.dtype) != (expected.shape, expected.dtype):
            raise _refused(
                config,
                f"{jax.tree_util.keystr(path, simple=True, separator='.')} is {leaf.dtype}"
                f"{list(leaf.shape)} there, {expected.dtype}{list(expected.shape)} in "
                f"config.model.name={config.model.name!r} for this data",
            )


def _refused(config: ConfigDict, wrong: str) -> UsageError:
    given = config.training.initial_model
    return UsageError(wrong, key="config.training.initial_model", value=given)
