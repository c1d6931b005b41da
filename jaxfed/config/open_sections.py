"""Sections with keys defined elsewhere: candidates of methods' settings, and plugins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import methods
from jaxfed.config.overrides import nearest_keys, unknown_key
from jaxfed.data import SCHEMES
from jaxfed.data.loading import READERS
from jaxfed.errors import UsageError, did_you_mean
from jaxfed.settings import allowed_text, check_each, check_value, settings_of
from jaxfed.training.pseudo_labels.label_sources import PSEUDO_LABELS

CANDIDATES = "selection.candidates."  # METHOD.KEY follows


def check_candidates(config: ConfigDict, key: str, values: Any) -> None:
    """Check that candidates have the type of the given value: numbers or switches.

    The method's factory checks the values.
    """
    setting = key.removeprefix(CANDIDATES)
    name, _, word = setting.partition(".")
    names = [*ALGORITHMS, *methods.variants(config)]
    if name in names and name not in config:
        wrong = f"the section is missing; config.{key} has values for it"
        raise UsageError(wrong, key=f"config.{name}")
    own = methods.keywords(config, name) if name in names else {}
    if word not in own:
        known = {f"{n}.{word}" for n in names for word in methods.keywords(config, n)}
        meant = did_you_mean(nearest_keys(setting, known))
        raise UsageError(f"no method has a key {setting}{meant}", key=f"config.{key}")
    if methods.trains(config, name):
        raise UsageError(
            f"{name!r} trains a model",
            key=f"config.{key}",
            allowed="use a sweep, whose points its validation split chooses among",
        )
    kind = type(own[word])
    if kind not in (bool, int, float):
        raise UsageError(f"{word} is no number or switch", key=f"config.{key}")
    if type(values) is not tuple:
        raise UsageError(
            key=f"config.{key}", value=values, allowed=f"use a list of {allowed_text(kind)}"
        )
    for value in values:
        check_value(f"config.{key}", value, kind)


def plugged_in() -> dict[str, Callable[..., Any]]:
    """Return label sources, readers and partition schemes from outside; each has a section of its name."""
    return {
        name: registry[name]
        for registry in (PSEUDO_LABELS, READERS, SCHEMES)
        for name in registry.from_outside()
    }


def check_plugin(name: str, factory: Callable[..., Any], section: Mapping[str, Any]) -> None:
    """Check that the section's keys are keywords of the factory, and their values by its hints."""
    known = settings_of(factory)
    for key in section:
        if key not in known:
            raise unknown_key(f"{name}.{key}", {f"{name}.{word}" for word in known})
    check_each(known, section, f"config.{name}")
