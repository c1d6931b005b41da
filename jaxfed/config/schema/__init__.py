"""Shared settings of all configs: default, rule and meaning in one place.

`jaxfed.config.base.get_config()`, the checks of a config, `launch.run --help_keys` and
`docs/keys.md` are generated from these tables. The settings of one method are keywords of its factory in
`jaxfed.algorithms`, documented there (`jaxfed.config.schema.docstrings`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config.methods import own_keywords
from jaxfed.config.schema.data import DATASET, FEDERATION, PREPROCESS
from jaxfed.config.schema.experiment import (
    AUDIT,
    CLOCK,
    DEPLOYMENT,
    EXECUTION,
    EXPERIMENT,
    SELECTION,
)
from jaxfed.config.schema.setting import Setting
from jaxfed.config.schema.training import LEARNER, MODEL, PSEUDO_LABEL, TRAINING
from jaxfed.xclp import Parameters

_DATA = {**EXPERIMENT, **DATASET, **PREPROCESS, **FEDERATION}
_METHODS = {**SELECTION, **MODEL, **TRAINING, **LEARNER, **PSEUDO_LABEL}
_RUN = {**CLOCK, **AUDIT, **EXECUTION, **DEPLOYMENT}
SHARED: dict[str, Setting] = _DATA | _METHODS | _RUN


def defaults() -> dict[str, Any]:
    """Return all defaults, nested by section: shared settings and those of one-shot methods."""
    config: dict[str, Any] = {}
    _put(config, _DATA)
    # Methods that train use this section for pseudo-labels too, so it has the fields of `Parameters` alone.
    config["xclp"] = {key: own_keywords(ALGORITHMS["xclp"])[key] for key in xclp_fields()}
    for name in ("per_client_lp", "pooled_lp", "client_knn"):
        config[name] = own_keywords(ALGORITHMS[name])
    _put(config, _METHODS | _RUN)
    return config


def xclp_fields() -> list[str]:
    """Return the fields of `jaxfed.xclp.Parameters` that a config contains."""
    return [field.name for field in fields(Parameters) if field.name not in ("num_classes", "seed")]


def _put(config: dict[str, Any], settings: Mapping[str, Setting]) -> None:
    for key, setting in settings.items():
        section, _, leaf = key.rpartition(".")
        (config.setdefault(section, {}) if section else config)[leaf] = setting.default
