"""Setup of a run, which every client receives with each request.

A client is a function of its folder and one message, so each request brings everything: the config without
its sections on a simulation's data, the method, and numbers about all clients' examples (`Census`).
"""

from __future__ import annotations

import hashlib
import json
from typing import NamedTuple

import jax
from ml_collections import ConfigDict

import jaxfed
from jaxfed.config import base
from jaxfed.config.stored import with_tuples
from jaxfed.experiment.store.workdir import plain
from jaxfed.federation.census import Census
from jaxfed.flower.messages.records import BadMessage

# Sections that describe a simulation's data, or the server's own affairs.
NOT_SENT = ("dataset", "federation", "preprocessing", "deployment", "paper_table", "audit")
# Keys of `execution` that belong to a machine; they change no result.
OF_A_MACHINE = ("workers", "compilation_cache", "plots")


class Setup(NamedTuple):
    """Source of a client's side: the server's config, as JSON without `NOT_SENT`, and its versions.

    `census` is of all clients, without the numbers of single ones, and empty before the registrations.
    """

    config: str
    method: str
    num_clients: int
    num_classes: int
    census: Census = Census(0, 0, None)
    jaxfed: str = jaxfed.__version__
    jax: str = jax.__version__


class Form(NamedTuple):
    """Form of everybody's examples, which a client compares with its own at its registration.

    `public` is the checksum of the public examples, "" without them.
    """

    dtype: str
    shape: tuple[int, ...]
    columns: tuple[str, ...] = ()
    public: str = ""


def config_text(config: ConfigDict) -> str:
    """Return the part of a config that is sent, as JSON."""
    sent = {key: value for key, value in config.to_dict().items() if key not in NOT_SENT}
    entries = sent["execution"].items()
    sent["execution"] = {key: value for key, value in entries if key not in OF_A_MACHINE}
    return json.dumps(plain(sent), sort_keys=True)


def config_of(text: str) -> ConfigDict:
    """Return the config of a client; sections and keys that are not sent have their defaults."""
    known = base.get_config().to_dict()
    try:
        whole = known | with_tuples(json.loads(text)) | {name: known[name] for name in NOT_SENT}
        if any(type(value) is dict is not type(whole[name]) for name, value in known.items()):
            raise TypeError
        local = {key: known["execution"][key] for key in OF_A_MACHINE}
        return ConfigDict(whole | {"execution": known["execution"] | whole["execution"] | local})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BadMessage("the config of the setup is malformed") from error


def fingerprint(text: str) -> str:
    """Hash of a config's text, by which sites agree to it."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
