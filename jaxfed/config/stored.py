"""A config from the config.json of a workdir."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from jaxfed.config.keys import ADDED, GONE

_WHOLE = "selection.candidates"  # section without defaults of its own, once a config has it


def restored(stored: Mapping[str, Any]) -> ConfigDict:
    """Return the config that was written as JSON: lists are tuples, references between keys are resolved.

    Keys that an older version did not write have the values that its runs had: `ADDED`, else their defaults
    (`jaxfed.config.sections`). Sections of XCLP's baselines have XCLP's values, as in a config file.
    """
    from jaxfed.config import base  # methods and their settings; a workdir is read without them

    config = base.get_config()
    config.update_from_flattened_dict(ADDED)
    with config.unlocked(), config.ignore_type():
        _put(config, stored, "")
    resolved = config.copy_and_resolve_references()
    resolved.lock()
    return resolved


def without_gone(config: Any) -> Any:
    """Delete the keys that are gone from the content of a config.json, and return it."""
    for key, only in GONE.items():
        section, _, name = key.rpartition(".")
        own = (config.get(section) if section else config) if isinstance(config, dict) else None
        if isinstance(own, dict) and own.get(name) == only:
            del own[name]
            if not own:
                del config[section]
    return config


def _put(section: ConfigDict, stored: Mapping[str, Any], prefix: str) -> None:
    for key, value in stored.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            if not isinstance(section.get(key), ConfigDict) or name == _WHOLE:
                section[key] = ConfigDict()
            _put(section[key], value, f"{name}.")
        else:
            section[key] = _with_tuples(value)


def _with_tuples(value: Any) -> Any:
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value
