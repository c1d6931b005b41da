"""Setup of a run, which every client receives with each request.

A client is a function of its folder and one message, so each request brings everything: the config without
its sections on a simulation's data, the method, numbers about all clients' examples (`Census`), and what the
client has said of itself in its first reply, the hello.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

import jaxfed
from jaxfed.config import base, methods
from jaxfed.config.keys import refused
from jaxfed.config.networks import PRETRAINED
from jaxfed.experiment.store.workdir import plain
from jaxfed.federation.census import Census
from jaxfed.flower.messages.records import BadMessage

# Sections that describe a simulation's data, or the server's own affairs.
NOT_SENT = ("dataset", "federation", "preprocessing", "deployment", "paper_table", "audit")
# Keys of `execution` that belong to a machine; they change no result.
OF_A_MACHINE = ("workers", "compilation_cache", "plots")


class Setup(NamedTuple):
    """Source of a client's side; before the hellos without `census` and `data`.

    Fields:
        config: its JSON text, without `NOT_SENT`.
        method: name of the method, in the config.
        num_clients: M.
        num_classes: C.
        census: of all clients, without the numbers of single ones.
        data: checksum of the client's data in its hello.
        jaxfed: the server's version.
    """

    config: str
    method: str
    num_clients: int
    num_classes: int
    census: Census = Census(0, 0, None)
    data: str = ""
    jaxfed: str = jaxfed.__version__


def config_text(config: ConfigDict) -> str:
    """Return the part of a config that is sent, as JSON.

    A run that starts from an earlier one's state names no file: clients receive the model itself.
    """
    for name in methods.chosen(config):
        training = methods.with_own_training(config, name).training
        if training.trainable != "all" and is_state("initial_model", training.initial_model):
            wrong = "on a network clients do not have the weights of an earlier run that stay as they are"
            allowed = "use 'all', or initial_model 'pretrained' or ''"
            raise refused(config, methods.training_key(config, name, "trainable"), wrong, allowed)
    if config.model.get("folder", ""):
        wrong = "on a network a server names no folder of its clients"
        raise refused(config, "model.folder", wrong, "give sizes, such as model.width")
    sent = {key: value for key, value in config.to_dict().items() if key not in NOT_SENT}
    own = sent["execution"].items()
    sent["execution"] = {key: value for key, value in own if key not in OF_A_MACHINE}
    return json.dumps(plain(_without_paths(sent)), sort_keys=True)


def config_of(text: str) -> ConfigDict:
    """Return the config of a client; sections and keys that are not sent have their defaults."""
    known = base.get_config().to_dict()
    try:
        given = _as_in_configs(json.loads(text))
        execution = given.get("execution", {})
        named = [name for name in NOT_SENT if name in given]
        named += [f"execution.{key}" for key in OF_A_MACHINE if key in execution]
        if any(type(known[name]) is dict is not type(given[name]) for name in known.keys() & given):
            raise TypeError
        found = ConfigDict(known | given | {"execution": known["execution"] | execution})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadMessage("the config of the setup is malformed") from error
    if named:
        raise BadMessage(f"the setup has config.{named[0]}, which is each machine's own")
    return found


def fingerprint(text: str) -> str:
    """Hash of a config's text, by which sites agree to it."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_state(key: str, value: Any) -> bool:
    """Return True for a dotted key, in any section, that has the path of an earlier run's state."""
    return key.rpartition(".")[2] == "initial_model" and value not in ("", PRETRAINED)


def _without_paths(value: Any, key: str = "") -> Any:
    """Replace the path of an initial model in any section, which the server alone reads."""
    if isinstance(value, Mapping):
        return {name: _without_paths(each, name) for name, each in value.items()}
    return "" if is_state(key, value) else value


def _as_in_configs(value: Any) -> Any:
    """JSON has lists where configs have tuples."""
    if isinstance(value, dict):
        return {key: _as_in_configs(part) for key, part in value.items()}
    return tuple(map(_as_in_configs, value)) if isinstance(value, list) else value
