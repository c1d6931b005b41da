"""Config files: a Python file with `get_config(variant)`.

    config = load("ml_collections_configs/xclp_digits.py:smoke", ["xclp.alpha=0.9", "seed=3"])

A file that is not in the current folder is looked up among the shipped configs, by its name or as
`ml_collections_configs/NAME.py`; those that start with an underscore are parts of others. A config file may
also define `sweep(add)`. One's own can build on a shipped one: `shipped("fedct").get_config(variant)`.

An exception inside a file is a bug in it and keeps its traceback.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from ml_collections import ConfigDict

from jaxfed.config.overrides import with_overrides
from jaxfed.errors import UsageError, suggestion
from jaxfed.host.location import location

_CONFIGS = "ml_collections_configs"


def load(spec: str, overrides: Sequence[str] = ()) -> ConfigDict:
    """Return the config that `FILE.py[:VARIANT]` describes, with overrides applied, resolved and locked."""
    return with_overrides(read(spec), overrides)


def read(spec: str) -> ConfigDict:
    """Return the config of a file as its `get_config` makes it, with references between keys."""
    path, variant = split_variant(spec)
    get_config = getattr(load_module(path), "get_config", None)
    if not callable(get_config):
        raise UsageError(f"--config={spec}: {path} defines no get_config(variant)")
    config = get_config(variant) if variant else get_config()
    if not isinstance(config, ConfigDict):
        raise UsageError(f"--config={spec}: get_config returned no ml_collections.ConfigDict")
    return config


def split_variant(spec: str) -> tuple[str, str]:
    """Split `FILE.py:VARIANT` into path and variant; the extension may be left out."""
    head, ending, tail = spec.partition(".py")
    name, _, variant = spec.partition(":")
    return (head + ending, tail.removeprefix(":")) if ending else (f"{name}.py", variant)


def load_module(path: str) -> ModuleType:
    """Import a config file by its path; it may import modules of its own folder."""
    file = _find(path)
    if not file.is_file():
        nearest = suggestion(file.stem, {f.stem for f in _shipped_configs().glob("[!_]*.py")})
        raise UsageError(f"--config={path}: no such file{nearest}")
    spec = importlib.util.spec_from_file_location(f"config_file_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    folder = file.parent.resolve()
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # last, so that nothing installed is hidden
    try:
        spec.loader.exec_module(module)
    except (OSError, SyntaxError) as error:
        if error.filename != str(file):
            raise
        raise UsageError(f"--config={path}: {error}") from error
    return module


def _find(text: str) -> Path:
    path = location(text, "--config")
    if path.is_file() or path.parent not in (Path(), Path(_CONFIGS)):
        return path
    shipped = _shipped_configs() / path.name
    return shipped if shipped.is_file() else path


def shipped(name: str) -> ModuleType:
    """Import the shipped config of this name, such as "fedct"."""
    return load_module(str(_shipped_configs() / f"{name}.py"))


def _shipped_configs() -> Path:
    package = Path(__file__).parents[1]  # installed, it has them within; in the repository beside
    folders = (package / _CONFIGS, package.parent / _CONFIGS)
    return next(filter(Path.is_dir, folders), folders[0])
