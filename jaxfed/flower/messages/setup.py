"""Setup of a run, which every client receives with each request.

A client's process lives for one message, so each request brings everything: the config without its sections
on a simulation's data, the method, and numbers about all clients' examples (`Census`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from jaxfed.config import base, methods
from jaxfed.config.keys import refused
from jaxfed.config.networks import PRETRAINED
from jaxfed.experiment.store.workdir import plain
from jaxfed.federation.census import Census, FeatureSums
from jaxfed.flower.messages import records
from jaxfed.flower.messages.records import BadMessage, Record, Value

# Sections that describe a simulation's data, or the server's own affairs.
NOT_SENT = ("dataset", "federation", "preprocessing", "deployment", "paper_table", "audit")
# Keys of `execution` that belong to a machine; they change no result.
OF_A_MACHINE = ("workers", "compilation_cache", "plots")
_MOST_CLIENTS, _MOST_CLASSES = 1_000_000, 100_000


class Setup(NamedTuple):
    """Method, config and numbers from which a client makes its side.

    Fields:
        config: its JSON text, without `NOT_SENT`.
        method: name of the method, in the config.
        num_clients: M.
        num_classes: C.
        census: of all clients, without the numbers of single ones.
    """

    config: str
    method: str
    num_clients: int
    num_classes: int
    census: Census

    def to_record(self) -> Record:
        """Return it as the content of a message."""
        census, sums = self.census, self.census.sums or _NO_SUMS
        return {
            "config": self.config,
            "method": self.method,
            "num_clients": self.num_clients,
            "num_classes": self.num_classes,
            "capacity": census.capacity,
            "max_labels": census.max_labels,
            "total": sums.total,
            "square": sums.square,
            "values": sums.values,
        }


def from_record(content: Mapping[str, Value]) -> Setup:
    """Read a setup from the content of a message."""
    total, square = (content.get(name) for name in ("total", "square"))
    for part in (total, square):
        if not isinstance(part, np.ndarray) or part.dtype != np.float64 or part.ndim != 1:
            raise BadMessage("the setup has no sums of features")
    assert isinstance(total, np.ndarray)
    assert isinstance(square, np.ndarray)
    values = records.whole_number(content, "values")
    return Setup(
        records.text(content, "config", longest=1_000_000),
        records.text(content, "method", longest=100),
        records.whole_number(content, "num_clients", least=1, most=_MOST_CLIENTS),
        records.whole_number(content, "num_classes", least=2, most=_MOST_CLASSES),
        Census(
            records.whole_number(content, "capacity"),
            records.whole_number(content, "max_labels"),
            FeatureSums(total, square, values) if total.size else None,
        ),
    )


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


def shown(text: str) -> str:
    """Return a text of a message as an error shows it: quoted, on one line, not too long."""
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


_NO_SUMS = FeatureSums(np.zeros(0), np.zeros(0), 0)


def is_state(key: str, value: Any) -> bool:
    """Return True for a dotted key, in any section, that has the path of an earlier run's state."""
    return key.rpartition(".")[2] == "initial_model" and value not in ("", PRETRAINED)


def _without_paths(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the path of an initial model in any section, which the server alone reads."""
    return {
        key: _without_paths(value)
        if isinstance(value, Mapping)
        else ""
        if is_state(key, value)
        else value
        for key, value in settings.items()
    }


def _as_in_configs(value: Any) -> Any:
    """JSON has lists where configs have tuples."""
    if isinstance(value, dict):
        return {key: _as_in_configs(part) for key, part in value.items()}
    return tuple(map(_as_in_configs, value)) if isinstance(value, list) else value
