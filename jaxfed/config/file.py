"""Config files: a Python file with `get_config(variant)`, and overrides of single keys.

    config = load("ml_collections_configs/xclp_digits.py:smoke", ["xclp.alpha=0.9", "seed=3"])

A file that is not in the current folder is looked up among the shipped configs, by its name or as
`ml_collections_configs/NAME.py`. They are beside this package in the repository, and within it where it is
installed; those that start with an underscore are parts of others. A config file may also define
`sweep(add)`; `load_module` returns the module itself. `shipped` does so for a shipped config, on which one's
own can build:

    config = shipped("fedct").get_config(variant)

Errors that the user can fix (no such file, variant or key; a value of another type) are a `UsageError` of one
line. An exception inside the file is a bug in it and keeps its traceback.
"""

from __future__ import annotations

import ast
import copy
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from ml_collections import ConfigDict

from jaxfed.config.keys import flatten, remember_values, remembered_values, unknown_key
from jaxfed.errors import UsageError, suggestion
from jaxfed.host.location import location

_CONFIGS = "ml_collections_configs"


def load(spec: str, overrides: Sequence[str] = ()) -> ConfigDict:
    """Build the config that `FILE.py[:VARIANT]` describes, with overrides applied in order.

    Args:
        spec: path of the config file; after a colon the argument of its `get_config`.
        overrides: `KEY=VALUE` strings; KEY is the dotted path of an existing key, VALUE is parsed as
            the type of the current value. Some keys need not exist in the config. `model.name` is applied
            first: another network replaces the config's options by its own, and each may be set. So may a
            method's own settings (`jaxfed.config.methods`): its keywords, `NAME.training.KEY`, and
            `NAME.algorithm`, applied before the others, which defines a variant of that algorithm. Another
            `dataset.name` resets the sizes that the file sets for its own data set (`_reset_sizes`).

    Returns:
        A new ConfigDict with references between keys resolved and keys locked.

    Raises:
        UsageError: the file cannot be read or has no `get_config`, or a key or value does not fit.
    """
    path, variant = split_variant(spec)
    get_config = getattr(load_module(path), "get_config", None)
    if not callable(get_config):
        raise UsageError(f"--config={spec}: {path} defines no get_config(variant)")
    given = (variant,) if variant else ()
    try:
        signature = inspect.signature(get_config)
        signature.bind(*given)
    except TypeError as error:
        raise UsageError(
            f"--config={spec}: {path} has get_config{signature}, which does not take {given} ({error}); "
            "an experiment's is get_config(variant='')"
        ) from None
    config = get_config(*given)
    if not isinstance(config, ConfigDict):
        raise UsageError(
            f"--config={spec}: get_config of {path} returned {type(config).__name__}; a "
            "ml_collections.ConfigDict is needed"
        )
    remember_values(config)
    return with_overrides(config, overrides)


def _reset_sizes(
    config: ConfigDict, overrides: Sequence[str], of_file: Mapping[str, Any] | None
) -> None:
    """Reset the sizes that the config sets for its data set if an override changes `dataset.name`, in place.

    The new values are `SIZES_OF_A_SET` in `jaxfed.config.base`. Sizes that are not those of the file have
    been set since, and stay; `of_file` are its values, None if they are not known.
    """
    given = dict(text.partition("=")[::2] for text in overrides)
    name = given.get("dataset.name")
    if name is None or name == config.get("dataset", {}).get("name"):
        return
    # Imported here, because it imports methods, which take a second; only this needs them.
    from jaxfed.config import base

    there = dict(flatten(config.to_dict()))
    of_file = there if of_file is None else of_file
    stay = given.keys() | {key for key, value in there.items() if value != of_file.get(key)}
    sizes = dict(base.SIZES_OF_A_SET)
    if there.get("federation.public_size") and "federation.public_size" not in stay:
        sizes["federation.public_fraction"] = base.PUBLIC_FRACTION
    for key in there.keys() & sizes.keys() - stay:
        config.update_from_flattened_dict({key: sizes[key]})


def with_overrides(config: ConfigDict, overrides: Sequence[str]) -> ConfigDict:
    """Return a copy of the config with `KEY=VALUE` strings applied, references resolved and keys locked.

    The given config is unchanged. Another `dataset.name` resets the sizes of its data set (`_reset_sizes`),
    but not those that were set in place after `load` or after a file's `get_config`. A copy of a config does
    not know its file's values: all its sizes are reset.

    Raises:
        UsageError: a key or value does not fit.
    """
    changed = copy.deepcopy(config)  # with its references, so overrides propagate along them
    changed.unlock()
    of_file = remembered_values(config)
    _reset_sizes(changed, overrides, of_file)
    for text in sorted(overrides, key=_comes_later):
        override(changed, text)
    resolved = changed.copy_and_resolve_references()
    resolved.lock()
    if of_file is not None:
        remember_values(resolved, of_file)
    return resolved


def _comes_later(text: str) -> bool:
    """True if an override is applied after those that determine which keys exist."""
    return re.match(r"(model\.name|\w+\.algorithm)=", text) is None


def as_text(key: str, value: Any) -> str:
    """Return `KEY=VALUE` in the form that `override` parses."""
    if hasattr(value, "tolist"):  # of NumPy
        value = value.tolist()
    if isinstance(value, bool):
        return f"{key}={str(value).lower()}"
    if isinstance(value, list | tuple):
        value = [each.tolist() if hasattr(each, "tolist") else each for each in value]
    return f"{key}={tuple(value)!r}" if isinstance(value, list | tuple) else f"{key}={value}"


def split_variant(spec: str) -> tuple[str, str]:
    """Split `FILE.py:VARIANT` into the path and the variant ('' if there is none).

    The extension may be omitted for a config in the current folder or a shipped one.
    """
    head, ending, tail = spec.partition(".py")
    if ending:
        return head + ending, tail.removeprefix(":")
    name, _, variant = spec.partition(":")
    if _find(f"{name}.py").is_file():
        return f"{name}.py", variant
    return (name, variant) if _find(name).is_file() else (spec, "")


def load_module(path: str) -> ModuleType:
    """Import a config file by its path; it may import modules of its own folder.

    Raises:
        UsageError: it is missing, unreadable, not Python, or does not parse.
    """
    file = _find(path)
    if not file.is_file():
        nearest = suggestion(file.stem, {f.stem for f in _shipped_configs().glob("[!_]*.py")})
        raise UsageError(f"--config={path}: no such file{nearest}")
    spec = importlib.util.spec_from_file_location(f"config_file_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise UsageError(f"--config={path}: a config file is Python and its name ends in .py")
    module = importlib.util.module_from_spec(spec)
    folder = file.parent.resolve()
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # last, so that nothing installed is hidden
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        if error.filename != str(file):
            raise
        raise UsageError(f"--config={path}: line {error.lineno}: {error.msg}") from error
    except OSError as error:
        if error.filename != str(file):
            raise
        raise UsageError(f"--config={path}: {error.strerror}") from error
    return module


def _find(given: str) -> Path:
    """Return the given path, or the shipped config of that name if no such file exists."""
    path = location(given, "--config")
    if path.is_file() or path.parent not in (Path(), Path(_CONFIGS)):
        return path
    shipped = _shipped_configs() / path.name
    return shipped if shipped.is_file() else path


def shipped(name: str) -> ModuleType:
    """Import the shipped config of this name, such as "fedct".

    Raises:
        UsageError: there is none.
    """
    return load_module(str(_shipped_configs() / f"{name}.py"))


def _shipped_configs() -> Path:
    """Folder of the shipped configs: within the installed package, or beside it in the repository."""
    package = Path(__file__).parents[1]
    folders = (package / _CONFIGS, package.parent / _CONFIGS)
    return next(filter(Path.is_dir, folders), folders[0])


def override(config: ConfigDict, text: str) -> None:
    """Apply one `KEY=VALUE` to the config, in place.

    Raises:
        UsageError: there is no such key, it names a section, or the value is not of its type.
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--config.{key}: a value is missing, write --config.{key}=VALUE")
    *parents, name = key.split(".")
    if parents == ["model"] and "name" in config.get("model", {}):
        config.model = ConfigDict(_model_section(config.model.to_dict(), name, value))
        return
    section: Any = config
    for parent in parents:
        section = section[parent] if isinstance(section, ConfigDict) and parent in section else None
    if not isinstance(section, ConfigDict) or name not in section:
        section = _with_own_key(config, key)
    if isinstance(section[name], ConfigDict):
        raise UsageError(
            f"config.{key} is a section; its keys are {', '.join(sorted(section[name]))}"
        )
    with section.ignore_type():
        section[name] = _parse(key, value, _of_its_type(config, key, value, section[name]))


def _of_its_type(config: ConfigDict, key: str, text: str, current: Any) -> Any:
    """Return the current value, as a float if it is an integer that a file wrote for one, as in `mu = 1`.

    An integer stays one where the text is an integer, so most overrides need no look at defaults.
    """
    if type(current) is not int:
        return current
    with suppress(ValueError):
        int(text)
        return current
    # Imported here, as in `_model_section`.
    from jaxfed.config import base, methods
    from jaxfed.federation.method import method_settings

    owner, _, shared = key.partition(".")
    known = dict(flatten(base.get_config().to_dict()))
    default = known.get(key, known.get(shared) if shared.startswith("training.") else None)
    if default is None and owner in (*methods.ALGORITHMS, *methods.variants(config)):
        known = method_settings(methods.factory_of(config, owner))
        default = known[shared].default if shared in known else None
    return float(current) if isinstance(default, float) else current


def _with_own_key(config: ConfigDict, key: str) -> ConfigDict:
    """Add a key that a method's section omits, at its default value, and return the section."""
    # Imported here, as in `_model_section`.
    from jaxfed.config import methods

    *parents, name = key.split(".")
    try:
        value = methods.unsaid(config, key)
    except (KeyError, ValueError):
        known = {*dict(flatten(config.to_dict())), *methods.own_keys(config)}
        raise unknown_key(key, known) from None
    section = config
    with config.unlocked():
        for parent in parents:
            section[parent] = section.get(parent, ConfigDict())
            section = section[parent]
        section[name] = value
    return section


def _model_section(section: dict[str, Any], key: str, text: str) -> dict[str, Any]:
    """Return the section with another network, or with an option of the current network set."""
    network = section["name"]
    if key == "name":
        return section if text == network else {"name": text}
    # Imported here, because Flax takes half a second to import and only this needs it.
    from jaxfed.models import MODELS, options_of

    known = options_of(network) if network in MODELS else {}
    if key not in known:
        raise UsageError(f"config.model.{key}: unknown key of {network}{suggestion(key, known)}")
    return section | {key: _parse(f"model.{key}", text, known[key].default)}


def _parse(key: str, text: str, current: Any) -> Any:
    """Parse `text` as a value of the type of `current`."""
    for kind, (description, read) in _READERS.items():
        if isinstance(current, kind):
            try:
                return read(text, current)
            except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
                raise UsageError(f"config.{key}={text}: must be {description}") from None
    raise TypeError(f"config.{key}: values of {type(current)} cannot be given on the command line")


def _read_bool(text: str, _: bool) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _read_tuple(text: str, current: tuple[Any, ...]) -> tuple[Any, ...]:
    """Parse `a,b`, `1,2`, `('a', 'b')`, `(1, 2)` or ""; entries get the type of the current ones."""
    kind = type(current[0]) if current else None
    if text.lstrip()[:1] in ("(", "["):
        value = tuple(ast.literal_eval(text))
    else:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        value = tuple(map(kind, parts)) if kind in (int, float) else tuple(parts)
        if kind is None:  # no current entries: numbers if all entries are numbers
            with suppress(ValueError):
                value = tuple(map(_number, parts))
    if kind is float:
        value = tuple(float(entry) if type(entry) is int else entry for entry in value)
    if kind and not all(isinstance(entry, kind) for entry in value):
        raise ValueError(text)
    return value


def _read_any(text: str, _: None) -> Any:
    """Parse a value of unknown type: true or false, none, a number, a list in brackets, else text."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    if text.lstrip()[:1] in ("(", "["):
        return tuple(ast.literal_eval(text))
    with suppress(ValueError):
        return _number(text)
    return text


def _number(text: str) -> float:
    try:
        return int(text)
    except ValueError:
        return float(text)


# bool before int, because a bool is an instance of int.
_READERS: dict[type, tuple[str, Callable[[str, Any], Any]]] = {
    bool: ("true or false", _read_bool),
    int: ("an integer", lambda text, _: int(text)),
    float: ("a number", lambda text, _: float(text)),
    str: ("text", lambda text, _: text),
    tuple: ("a list such as a,b", _read_tuple),
    type(None): ("a value, or a list such as ('a', 'b')", _read_any),
}
