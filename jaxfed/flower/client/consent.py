"""Checks of a server's setup by a client, before anything is built from it.

A setup describes a method, and nothing of the client's machine. It names no file, no folder and no class to
be imported, sets no number of processes, and has known keys and allowed values alone. One run has one config:
the run's name begins with its hash. A site that has agreed to one config writes that hash into client.toml.

What is left to a server is what the method itself does to the client: its model, its number of steps, and so
its time and memory (docs/threat-model-network.md).
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from ml_collections import ConfigDict

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import methods
from jaxfed.config.keys import flatten
from jaxfed.config.sections import shared_settings
from jaxfed.errors import UsageError
from jaxfed.federation.method import method_settings
from jaxfed.flower.client.client_data import ClientSettings
from jaxfed.flower.client.client_step import StepRefused
from jaxfed.flower.messages import setup
from jaxfed.flower.messages.records import BadMessage
from jaxfed.settings import check_each, check_value

_CLASS = "learner.estimator."


def accepted(settings: ClientSettings, text: str, method: str, run: str) -> ConfigDict:
    """Return the config of a setup."""
    found = setup.fingerprint(text)
    if not run.startswith(f"{found}-"):
        raise BadMessage(f"run {run} is not of the config {found} that came with it")
    if settings.config not in ("", found):
        raise StepRefused(f"the config is {found}; client.toml has config = {settings.config!r}")
    config = setup.config_of(text)
    if method not in methods.chosen(config):
        raise BadMessage(f"the config has no method {method[:60]!r}")
    try:
        _check(config, settings.estimators)
        given = methods.keywords(config, method)
        check_each(method_settings(methods.factory_of(config, method)), given, f"config.{method}")
    except UsageError as error:  # its text is of the server's config alone
        raise StepRefused(str(error)) from error
    return config


def _check(config: ConfigDict, estimators: Collection[str]) -> None:
    """Check keys and values, and that none of them names a file or a class."""
    names = {*ALGORITHMS, *methods.variants(config)}
    for name in methods.chosen(config):
        if name not in names:
            raise UsageError("there is no such method", key="config.algorithm", value=name)
    known = shared_settings()
    for key, value in flatten(config.to_dict()):
        if key.partition(".")[0] in setup.NOT_SENT:
            continue  # defaults
        if setup.is_state(key, value) or (key == "model.folder" and value):
            raise UsageError("a server sends no path", key=f"config.{key}", value=value)
        refused = partial(UsageError, key=f"config.{key}", value=value)
        if key == f"{_CLASS}estimator" and value and value not in estimators:
            raise refused(f"client.toml has estimators = {list(estimators)}")
        if key == f"{_CLASS}derived_from" and value:
            raise refused("a server names no package")
        if key in known and key not in ("algorithm", "baselines") and not key.startswith(_CLASS):
            check_value(f"config.{key}", value, known[key].hint)
