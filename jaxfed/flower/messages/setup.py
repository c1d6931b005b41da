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

from jaxfed.config import base
from jaxfed.experiment.store.workdir import plain
from jaxfed.federation.census import Census
from jaxfed.federation.feature_statistics import FeatureSums
from jaxfed.flower.messages import records
from jaxfed.flower.messages.records import BadMessage, Record, Value

# Sections that describe a simulation's data, or the server's own affairs.
NOT_SENT = ("dataset", "federation", "preprocessing", "deployment", "paper_table", "audit")


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

    @property
    def fingerprint(self) -> str:
        """Hash of the config and the method."""
        return fingerprint(self.config, self.method)

    def to_record(self) -> Record:
        """Return it as the content of a message."""
        census = self.census
        return {
            "config": self.config,
            "method": self.method,
            "num_clients": self.num_clients,
            "num_classes": self.num_classes,
            "capacity": census.capacity,
            "max_labels": census.max_labels,
            "max_labels_of_a_class": census.max_labels_of_a_class,
            "total": census.sums.total,
            "square": census.sums.square,
            "values": census.sums.values,
        }


def from_record(content: Mapping[str, Value]) -> Setup:
    """Read a setup from the content of a message.

    Raises:
        BadMessage: it is malformed.
    """
    total, square = (content.get(name) for name in ("total", "square"))
    for part in (total, square):
        if not isinstance(part, np.ndarray) or part.dtype != np.float64 or part.ndim != 1:
            raise BadMessage("the setup has no sums of features")
    assert isinstance(total, np.ndarray)
    assert isinstance(square, np.ndarray)
    census = Census(
        records.whole_number(content, "capacity"),
        records.whole_number(content, "max_labels"),
        records.whole_number(content, "max_labels_of_a_class"),
        FeatureSums(total, square, records.whole_number(content, "values")),
    )
    return Setup(
        records.text(content, "config", longest=1_000_000),
        records.text(content, "method", longest=100),
        records.whole_number(content, "num_clients", least=1),
        records.whole_number(content, "num_classes", least=2),
        census,
    )


def config_text(config: ConfigDict) -> str:
    """Return the part of a config that is sent, as JSON."""
    sent = {key: value for key, value in config.to_dict().items() if key not in NOT_SENT}
    return json.dumps(plain(sent), sort_keys=True)


def config_of(text: str) -> ConfigDict:
    """Return the config of a client; sections that are not sent have their defaults.

    Raises:
        BadMessage: the text is no config's.
    """
    try:
        given = json.loads(text)
    except ValueError as error:
        raise BadMessage("the config of the setup is malformed") from error
    if not isinstance(given, dict):
        raise BadMessage("the config of the setup is malformed")
    known = base.get_config().to_dict()
    return ConfigDict(known | {key: _as_in_configs(value) for key, value in given.items()})


def fingerprint(text: str, method: str) -> str:
    """Hash of a config's text and a method's name."""
    return hashlib.sha256(json.dumps([text, method]).encode()).hexdigest()[:16]


def _as_in_configs(value: Any) -> Any:
    """JSON has lists where configs have tuples."""
    if isinstance(value, dict):
        return {key: _as_in_configs(part) for key, part in value.items()}
    return tuple(map(_as_in_configs, value)) if isinstance(value, list) else value
