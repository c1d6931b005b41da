"""Compare what two commits build from their settings, and which wrong values they refuse.

    python tests/compare_settings.py OLD NEW                 # two commits; NEW may be `.`, this checkout
    python tests/compare_settings.py record FILE.json        # of the current folder's checkout alone
    python tests/compare_settings.py compare OLD.json NEW.json

A record has three parts:

    points      for each shipped config, each of its variants alone, each combination of variants that a page
                names, and each point of their sweeps: the resolved config by dotted keys, the check's line
                if it refuses the config, and for each method the arguments of its factory
    objects     these arguments, by content: numbers, arrays as CRC-32, functions with their closures
    refused     for wrong values of every key, and for values that do not go together: refused or not, where,
                and the line

Arguments are those that the body of a method's factory receives, on a small made-up federation; nothing is
trained and no data are read. Fields of dataclasses count, not the names of the classes; the arguments of a
factory are the same whether it receives them one by one or in a dataclass. A network is described by the
arguments of its factory in `MODELS`, a learner by those of its factory in `LEARNERS`.

Wrong values (`wrong_values.py`), pages and commands are those of commit `BASE`, so that all records ask the
same. The comparison prints configs and objects that differ, values that one side alone refuses, and the
number of lines whose text differs. It exits with 1 if a config or an object differs, or if OLD alone refuses
a value, else with 0.

A record takes some five minutes on one core. `--only=fedct` records configs and wrong values whose name has
"fedct"; compared with a whole record, that part of it counts.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import importlib
import inspect
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import types
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from wrong_values import BASE, CONFIGS, as_text, assigning_config, at_base, wrong_values

os.environ.setdefault("JAX_PLATFORMS", "cpu")

HERE = Path(__file__).resolve().parent
SHARED_VARIANTS = ("tuned", "auto", "smoke")
INLINE_VARIANTS = {"xclp_digits": ("privacy", "late", "calibrated")}  # in no table of the file
SHOWN = 20  # lines of each kind
LONG = 100  # characters of an object that is stored once and referred to
# Sections and keys that the arguments of a factory do not depend on, on the made-up federation.
OF_THE_DATA = re.compile(
    r"(dataset|audit|deployment|clock)\.|(algorithm|baselines|paper_table|num_repeats|evaluate_every"
    r"|evaluate_test|checkpoint_every|execution\.plots)$"
    r"|federation\.(?!num_clients$|labels_at$|public_labeled$)"
)
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


# Entrances of the package, at the places that they have or had.


def entrance(*places: str) -> Any:
    """Return the first of the objects `module:name` that is there, or None."""
    for place in places:
        module, _, name = place.partition(":")
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    return None


class Package:
    """The entrances that records use."""

    def __init__(self) -> None:
        sys.path.insert(0, os.getcwd())
        self.UsageError = entrance("jaxfed.errors:UsageError")
        self.load = entrance("jaxfed.config.file:load", "jaxfed.config:load")
        self.load_module = entrance("jaxfed.config.file:load_module", "jaxfed.config:load_module")
        self.get_config = entrance("jaxfed.config.base:get_config")
        self.check = entrance(
            "jaxfed.config.check:check",
            "jaxfed.config.checks.check:check",
            "jaxfed.config.checks:check",
        ) or (lambda config: None)
        self.make_algorithm = entrance(
            "jaxfed.config.assembly:make_algorithm",
            "jaxfed.config.build.assembly:make_algorithm",
            "jaxfed.config.build:make_algorithm",
        )
        self.Federation = entrance("jaxfed:Federation", "jaxfed.federation.clients:Federation")
        self.algorithms = entrance("jaxfed.algorithms:ALGORITHMS")
        self.learners = entrance("jaxfed.learners:LEARNERS")
        self.models = entrance("jaxfed.models:MODELS")


# Description of objects.


class Description:
    """Objects as JSON; parts longer than `LONG` are stored once, in `stored`, by their digest."""

    def __init__(self) -> None:
        self.stored: dict[str, Any] = {}
        self.known: dict[int, tuple[Any, Any]] = {}  # id -> (object, description)
        self.named: dict[int, tuple[Any, Any]] = {}  # functions of networks and learners

    def name(self, made: Any, description: Any) -> None:
        """Describe a network or learner, by its functions, as the arguments of its factory."""
        for part in made if isinstance(made, tuple) else [made]:
            if callable(part):
                self.named[id(part)] = part, description

    def of(self, value: Any, above: tuple[int, ...] = ()) -> Any:
        """Return the description of an object; long parts are references."""
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if value - value == 0 else {"float": repr(value)}
        if id(value) in above:
            return {"cycle": above[::-1].index(id(value))}
        if id(value) in self.known:
            return self.known[id(value)][1]
        if id(value) in self.named:
            return self.named[id(value)][1]
        found = self._short(self._new(value, (*above, id(value))))
        if "cycle" not in json.dumps(found):
            self.known[id(value)] = value, found
        return found

    def whole(self, node: Any) -> Any:
        """Return a description with its references resolved."""
        return resolved(self.stored, node)

    def _short(self, node: Any) -> Any:
        text = json.dumps(node, sort_keys=True)
        if len(text) <= LONG:
            return node
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.stored[digest] = node
        return {"$": digest}

    def _new(self, value: Any, above: tuple[int, ...]) -> Any:
        import jax
        import numpy as np

        of = functools.partial(self.of, above=above)
        if isinstance(value, np.generic):
            return {"scalar": str(value.dtype), "value": repr(value.item())}
        if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            return {"key": of(np.asarray(jax.random.key_data(value)))}
        if isinstance(value, np.ndarray | jax.Array):
            array = np.ascontiguousarray(np.asarray(value))
            return {
                "array": str(array.dtype),
                "shape": list(array.shape),
                "crc32": zlib.crc32(array.tobytes()),
            }
        if hasattr(value, "to_dict") and hasattr(value, "lock"):  # a ConfigDict
            value = value.to_dict()
        if isinstance(value, Mapping):
            return {str(key): of(value[key]) for key in sorted(value, key=str)}
        if (
            hasattr(value, "partition")
            and hasattr(value, "num_clients")
            and hasattr(value, "cohort")
        ):
            return {"federation": [value.num_clients, list(value.x.shape), value.num_classes]}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return {name: of(getattr(value, name)) for name in value._fields}
        if isinstance(value, tuple | list):
            return [of(each) for each in value]
        if isinstance(value, set | frozenset):
            return {"set": sorted(map(repr, value))}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._fields(value, of)
        if isinstance(value, Path):
            return str(value)
        if (made := self._called(value)) is not None:
            return {"makes": of(made[0])}
        if isinstance(value, functools.partial):
            return {
                "partial": of(value.func),
                "arguments": [of(each) for each in value.args],
                "keywords": {key: of(each) for key, each in sorted(value.keywords.items())},
            }
        if isinstance(value, types.MethodType):
            return {"method": value.__func__.__qualname__, "self": of(value.__self__)}
        if isinstance(value, types.FunctionType):
            return self._function(value, of)
        if isinstance(value, type | types.BuiltinFunctionType | types.ModuleType):
            return {"name": getattr(value, "__qualname__", value.__name__)}
        for inner in ("__wrapped__", "fun"):
            if callable(getattr(value, inner, None)):
                return {type(value).__name__: of(getattr(value, inner))}
        text = ADDRESS.sub("", repr(value))
        return {type(value).__name__: text if len(text) <= LONG else zlib.crc32(text.encode())}

    def _fields(self, value: Any, of: Callable[[Any], Any]) -> dict[str, Any]:
        """Return the fields of a dataclass; an optimizer is what its function makes of a rate."""
        found = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        if {"optimizer", "batches"} <= found.keys() and callable(found["optimizer"]):
            found["optimizer"] = found["optimizer"](0.125)
        return {name: of(each) for name, each in found.items()}

    def _function(self, value: types.FunctionType, of: Callable[[Any], Any]) -> dict[str, Any]:
        found: dict[str, Any] = {"function": value.__qualname__}
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        closure = {name: of(_content(cell)) for name, cell in cells}
        if closure:
            found["closure"] = closure
        if value.__defaults__ and "<lambda>" in value.__qualname__:  # lambda x, bound=bound: ...
            found["defaults"] = [of(each) for each in value.__defaults__]
        return found

    def _called(self, value: Any) -> tuple[Any] | None:
        """Return what a function of the package makes that needs no argument, in a tuple; else None."""
        plain = value.func if isinstance(value, functools.partial) else value
        module = getattr(plain, "__module__", None) or ""
        if not isinstance(plain, types.FunctionType) or not module.startswith("jaxfed."):
            return None
        try:
            inspect.signature(value).bind()
            return (value(),)
        except Exception:  # it needs something else
            return None


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet assigned
        return None


def resolved(stored: Mapping[str, Any], node: Any) -> Any:
    """Return a description with its references replaced by what they stand for."""
    if isinstance(node, dict):
        if node.keys() == {"$"}:
            return resolved(stored, stored[node["$"]])
        return {key: resolved(stored, each) for key, each in node.items()}
    return [resolved(stored, each) for each in node] if isinstance(node, list) else node


# Arguments of factories.


class Factories:
    """Recorder of the arguments that the factories of methods, learners and networks receive."""

    def __init__(self, package: Package, description: Description) -> None:
        self.package, self.description = package, description
        self._models: dict[str, Any] = {}
        for name in list(package.models):
            package.models[name] = self._named(name, package.models[name], is_kept=True)
        for name in list(package.learners):
            package.learners[name] = self._named(name, package.learners[name], is_kept=False)

    def _named(
        self, name: str, factory: Callable[..., Any], *, is_kept: bool
    ) -> Callable[..., Any]:
        """Return the factory; what it makes is described by its arguments and, if kept, made once."""
        if isinstance(factory, functools.partial):
            inner = self._named(name, factory.func, is_kept=is_kept)
            return functools.partial(inner, *factory.args, **factory.keywords)

        @functools.wraps(factory)
        def make(*args: Any, **keywords: Any) -> Any:
            try:
                bound = inspect.signature(factory).bind(*args, **keywords)
                bound.apply_defaults()
                arguments = dict(bound.arguments)
            except TypeError:
                arguments = {"args": args, **keywords}
            text = self.description.of({"name": name, **flat_arguments(arguments)})
            key = json.dumps(text, sort_keys=True)
            if is_kept and key in self._models:
                return self._models[key]
            made = factory(*args, **keywords)
            self.description.name(made, text)
            if is_kept:
                self._models[key] = made
            return made

        return make

    def of(self, config: Any, name: str, federation: Any) -> list[dict[str, Any]]:
        """Return the arguments of each call of a method's factory while the method is made."""
        algorithm = flatten(config).get(f"{name}.algorithm", name)
        plain = innermost(self.package.algorithms[algorithm])
        code, calls = plain.__code__, []

        def seen(frame: types.FrameType, event: str, argument: Any) -> None:
            if event == "call" and frame.f_code is code:
                calls.append(dict(frame.f_locals))

        sys.setprofile(seen)
        try:
            self.package.make_algorithm(config, name, federation)
        finally:
            sys.setprofile(None)
        return [flat_arguments(call) for call in calls]


def innermost(factory: Any) -> types.FunctionType:
    """Return the function that was written, without what decorators and registries put around it."""
    while not (isinstance(factory, types.FunctionType) and not hasattr(factory, "__wrapped__")):
        for inner in ("func", "__wrapped__", "factory", "make", "function", "build", "__call__"):
            found = getattr(factory, inner, None)
            if found is not None and found is not factory and callable(found):
                factory = getattr(found, "__func__", found)
                break
        else:
            raise TypeError(f"{factory!r} has no function inside")
    return factory


PARTS = {"model", "local", "server", "labels", "map_clients", "host", "num_devices", "max_labels"}


def flat_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments by name, with the fields of a dataclass of settings in its place."""
    found: dict[str, Any] = {}
    for name, value in arguments.items():
        is_settings = dataclasses.is_dataclass(value) and not isinstance(value, type)
        if is_settings and not PARTS & {field.name for field in dataclasses.fields(value)}:
            own = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
            found |= flat_arguments({key: each for key, each in own.items() if key not in found})
        else:
            found[name] = value
    return found


@functools.cache
def small_federation(
    make: Any, kind: str, num_clients: int, num_classes: int, at_server: bool, public_labeled: bool
) -> Any:
    """Return made-up clients of whom the first has more examples than any batch."""
    import numpy as np

    rng = np.random.default_rng(0)
    rows = int(kind.removeprefix("rows")) if kind.startswith("rows") else 0
    side = int(kind.removeprefix("images") or 32) if kind.startswith("images") else 0
    shape = (side, side, 3) if side else (rows, 12) if rows else (12,)

    def drawn(number: int, labeled: int) -> tuple[Any, Any]:
        x = rng.integers(256, size=(number, *shape), dtype=np.uint8)
        y = np.arange(number) % num_classes
        y[0 if at_server else labeled :] = -1
        return (x if side else (x / 64).astype(np.float32)), y

    def known(number: int) -> tuple[Any, Any]:
        x, _ = drawn(number, number)
        return x, np.arange(number) % num_classes

    return make.from_clients(
        [drawn(900, 450) if client == 0 else drawn(3, 2) for client in range(num_clients)],
        test=known(4),
        validation=known(8),
        server=known(400) if at_server else None,
        public=known(6),
        public_labeled=public_labeled,
        num_classes=num_classes,
    )


def federations_for(package: Package, flat: Mapping[str, Any]) -> Iterator[Any]:
    """Yield made-up federations that a config's methods may take, the likeliest first."""
    kind = "images" if flat["preprocessing.kind"] == "images" else "vectors"
    if views := flat.get("preprocessing.views", 0):
        kinds = [key for key in ("augmentation", "strong_augmentation") if flat[f"training.{key}"]]
        kind = f"rows{1 + views * len(kinds)}"
    weights = flat.get("training.class_weights") or range(10)
    for each in dict.fromkeys((kind, "images", "vectors", "images96")):
        yield small_federation(
            package.Federation,
            each,
            flat["federation.num_clients"] or 12,
            len(weights),
            flat["federation.labels_at"] == "server",
            bool(flat["federation.public_labeled"]),
        )


# Records.


def flatten(config: Any) -> dict[str, Any]:
    """Return the values of a config by dotted keys."""
    nested = config.to_dict() if hasattr(config, "to_dict") else dataclasses.asdict(config)

    def leaves(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for key, value in values.items():
            if isinstance(value, Mapping) and value:
                yield from leaves(value, f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}", value

    return dict(leaves(nested, ""))


def line(error: BaseException) -> str:
    """Return the text of an error, without paths of this machine."""
    text = " ".join(str(error).split()).replace(os.getcwd(), "REPOSITORY")
    return re.sub(re.escape(tempfile.gettempdir()) + r"/\w+", "TEMPORARY", text)


def specifications(package: Package) -> list[str]:
    """Return `FILE:VARIANTS` of each shipped config, its variants alone, and combinations in pages."""
    found = []
    for path in sorted(Path(CONFIGS).glob("[!_]*.py")):
        module = package.load_module(str(path))
        listed = getattr(module, "VARIANTS", None)
        shared = getattr(module, "_xclp_prediction", getattr(module, "xclp_prediction", None))
        if listed is None and shared is not None:
            listed = {} if path.stem in INLINE_VARIANTS else shared.VARIANTS
        names = [*(listed or {}), *INLINE_VARIANTS.get(path.stem, ()), *SHARED_VARIANTS]
        found += [path.name, *(f"{path.name}:{name}" for name in dict.fromkeys(names))]
    pages = at_base("ls-tree", "-r", "--name-only", BASE, "README.md", "docs", "results", CONFIGS)
    for page in pages.split():
        if page.endswith((".md", ".py")):
            found += commands_of(at_base("show", f"{BASE}:{page}"))
    return [spec.removesuffix(":") for spec in dict.fromkeys(found)]


def commands_of(page: str) -> Iterator[str]:
    """Yield `FILE:VARIANTS` of the commands of a page, one for each word of a loop that they stand in."""
    loops: dict[str, list[str]] = defaultdict(list)
    for name, words in re.findall(r"for ([A-Za-z]+) in ([^\\\n]*(?:\\\n[^\\\n]*)*)", page):
        loops[name] += re.findall(r"\w+", words.partition(";")[0])
    for spec in re.findall(rf"{CONFIGS}/([\w$]+\.py:?[\w,$]*)", page):
        names = re.findall(r"\$([A-Za-z]+)", spec)
        for words in itertools.product(*(loops[name] for name in names)):
            expanded = spec
            for name, word in zip(names, words, strict=True):
                expanded = expanded.replace(f"${name}", word)
            if (Path(CONFIGS) / expanded.partition(":")[0]).is_file():
                yield expanded


def sweep_points(package: Package, spec: str) -> list[tuple[str, ...]]:
    """Return the overrides of each point that a config file's sweep adds for its variants."""
    name, _, variant = spec.partition(":")
    sweep = getattr(package.load_module(f"{CONFIGS}/{name}"), "sweep", None)
    points: list[tuple[str, ...]] = []

    def add(**point: Any) -> None:
        points.append(tuple(as_text(key, value) for key, value in point.items()))

    if sweep is not None:
        try:
            sweep(add, variant) if len(inspect.signature(sweep).parameters) == 2 else sweep(add)
        except Exception as error:  # a sweep of other variants
            return [(f"sweep: {line(error)}",)] if isinstance(error, package.UsageError) else []
    return points


class Record:
    """The record of a checkout."""

    def __init__(self, only: str = "") -> None:
        self.only = only
        self.package = Package()
        self.description = Description()
        self.factories = Factories(self.package, self.description)
        self.base = flatten(self.package.get_config())
        self.points: dict[str, Any] = {}
        self.refused: dict[str, list[str]] = {}
        self._made: dict[str, Any] = {}
        self._seen: dict[str, str] = {}

    def is_asked(self, name: str) -> bool:
        """True for a config, or a wrong value, whose name matches `only`."""
        return re.search(self.only, name) is not None

    def add_points(self) -> None:
        """Record all configs and points of sweeps."""
        for spec in specifications(self.package):
            for overrides in ((), *sweep_points(self.package, spec)) if self.is_asked(spec) else ():
                self.add(spec, overrides)

    def add(self, spec: str, overrides: tuple[str, ...]) -> None:
        """Record one config; methods are made where their settings have not been seen before."""
        name = " ".join((spec, *overrides))
        try:
            config = self.package.load(f"{CONFIGS}/{spec}", overrides)
        except self.package.UsageError as error:
            self.points[name] = {"load": line(error)}
            return
        flat = flatten(config)
        text = json.dumps(self.description.of(flat), sort_keys=True)
        if text in self._seen:
            self.points[name] = {"same": self._seen[text]}
            return
        self._seen[text] = name
        point: dict[str, Any] = {
            "config": {
                key: self.description.of(value)
                for key, value in flat.items()
                if key not in self.base or not is_same(value, self.base[key])
            },
            "left out": sorted(self.base.keys() - flat.keys()),
        }
        try:
            self.package.check(config)
        except self.package.UsageError as error:
            point["check"] = line(error)
        point["methods"] = {
            method: self.arguments(config, flat, method)
            for method in (flat["algorithm"], *flat["baselines"])
        }
        self.points[name] = point

    def arguments(self, config: Any, flat: Mapping[str, Any], method: str) -> Any:
        """Return references to the arguments of a method's factory, or the line that refuses to make it."""
        own = {method, flat.get(f"{method}.algorithm", method), "xclp", "per_client_lp"}
        sections = {key.partition(".")[0] for key in flat if key.endswith(".algorithm")}
        others = ({*self.package.algorithms} | sections) - own
        relevant = {
            key: value
            for key, value in flat.items()
            if key.partition(".")[0] not in others and not OF_THE_DATA.match(key)
        }
        key = json.dumps([method, self.description.of(relevant)], sort_keys=True)
        if key not in self._made:
            self._made[key] = self._new_arguments(config, flat, method)
        return self._made[key]

    def _new_arguments(self, config: Any, flat: Mapping[str, Any], method: str) -> Any:
        config, note = without_initial_model(config)
        reasons = []
        for federation in federations_for(self.package, flat):
            try:
                calls = self.factories.of(config, method, federation)
            except Exception as error:
                reasons.append(f"{type(error).__name__}: {line(error)}")
                continue
            found = [self.description.of(call) for call in calls]
            return {
                "calls": [each for i, each in enumerate(found) if each not in found[:i]],
                **note,
            }
        return {"refused": reasons[0], **note}

    def add_refused(self) -> None:
        """Record wrong values."""
        with assigning_config(self.package.load_module.__module__) as (file, assign):
            for spec, overrides, assigned in wrong_values():
                written = [f"[{as_text(key, value)}]" for key, value in assigned]
                name = " ".join((spec, *overrides, *written))
                if not self.is_asked(name) or name in self.refused:
                    continue
                assign(assigned)
                path = f"{file}:{spec}" if assigned else f"{CONFIGS}/{spec}"
                self.refused[name] = self._outcome(path, overrides)

    def _outcome(self, path: str, overrides: Sequence[str]) -> list[str]:
        """Return "load", "check" or "make", where a config is refused, or "accepted"; and the line."""
        where = "load"
        try:
            config = self.package.load(path, overrides)
            where = "check"
            self.package.check(config)
            where, flat = "make", flatten(config)
            for method in (flat["algorithm"], *flat["baselines"]):
                self._make(config, flat, method)
        except self.package.UsageError as error:
            return [where, line(error)]
        except Exception as error:
            return [f"{where}, by {type(error).__name__}", line(error)]
        return ["accepted", ""]

    def _make(self, config: Any, flat: Mapping[str, Any], method: str) -> None:
        federation = next(federations_for(self.package, flat))
        self.package.make_algorithm(without_initial_model(config)[0], method, federation)

    def json(self) -> dict[str, Any]:
        """Return the record."""
        return {
            "only": self.only,
            "commit": at_base("rev-parse", "HEAD").strip(),
            "base": self.description.of(self.base),
            "points": self.points,
            "refused": self.refused,
            "objects": self.description.stored,
        }


def is_same(one: Any, other: Any) -> bool:
    """True for equal values of one type; 1 and 1.0 differ."""
    return repr(one) == repr(other)


def without_initial_model(config: Any) -> tuple[Any, dict[str, str]]:
    """Return the config without the model that training starts from, whose file is not here, and a note."""
    if not config.training.initial_model:
        return config, {}
    config = config.copy_and_resolve_references()
    with config.unlocked():
        config.training.initial_model = ""
    return config, {"note": "made without training.initial_model, whose file is not read"}


# Comparison.


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[bool, str]]:
    """Yield lines of the differences of two records, each with whether it counts as one."""
    old, new = (_part(_part(each, old["only"]), new["only"]) for each in (old, new))
    yield from _grouped("config", _config_differences(old, new), counts=True)
    yield from _grouped("object", _object_differences(old, new), counts=True)
    pairs = [(key, old["refused"][key], new["refused"].get(key)) for key in old["refused"]]
    missing = [key for key, _, after in pairs if after is None]
    yield bool(missing), f"{len(missing)} wrong values are not in NEW"
    pairs = [pair for pair in pairs if pair[2] is not None]
    is_refused = {"accepted": False}
    lost = [(k, a) for k, a, b in pairs if is_refused.get(a[0], True) and b[0] == "accepted"]
    won = [(k, b) for k, a, b in pairs if a[0] == "accepted" and b[0] != "accepted"]
    for title, found, counts in (("OLD", lost, True), ("NEW", won, False)):
        yield counts and bool(found), f"{len(found)} values that {title} alone refuses"
        for key, (where, text) in found:
            yield counts, f"    {key}\n        {where}: {text}"
    both = [(k, a, b) for k, a, b in pairs if "accepted" not in (a[0], b[0])]
    moved = Counter((a[0], b[0]) for _, a, b in both if a[0] != b[0])
    for (before, after), number in moved.items():
        is_worse = " by " in after and " by " not in before
        yield is_worse, f"{number} values that are refused at {after}, before at {before}"
        for key, a, b in both:
            if (a[0], b[0]) == (before, after) and (" by " in before or " by " in after):
                yield is_worse, f"    {key}\n        {b[1]}"
    changed = [(k, a[1], b[1]) for k, a, b in both if a[1] != b[1]]
    yield False, f"{len(changed)} of {len(both)} lines of refused values have another text"
    for key, before, after in changed[:SHOWN]:
        yield False, f"    {key}\n        {before}\n        {after}"


def _part(record: Mapping[str, Any], only: str) -> dict[str, Any]:
    """Return a record of the cases that `--only` chooses."""
    points = {
        name: _point(record, name)
        for name in record["points"]
        if re.search(only, name.partition(" ")[0])
    }
    refused = {name: each for name, each in record["refused"].items() if re.search(only, name)}
    return {**record, "points": points, "refused": refused}


def _grouped(
    what: str, found: Iterator[tuple[str, str]], *, counts: bool
) -> Iterator[tuple[bool, str]]:
    """Yield one line for each difference, with the number of points that have it."""
    places: dict[str, list[str]] = defaultdict(list)
    for difference, place in found:
        places[difference].append(place)
    yield counts and bool(places), f"{len(places)} differences of {what}s"
    for difference, where in sorted(places.items(), key=lambda pair: -len(pair[1]))[:200]:
        yield counts, f"    {difference}\n        at {len(where)} points, such as {where[0]}"


def _config_differences(
    old: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    for name in dict.fromkeys((*old["points"], *new["points"])):
        one, other = (side["points"].get(name) for side in (old, new))
        if one is None or other is None:
            yield f"the point is {'new' if one is None else 'missing'}", name
            continue
        for key in ("load", "check"):
            if one.get(key) != other.get(key):
                yield f"{key}: {one.get(key)!r} became {other.get(key)!r}", name
        if "config" in one and "config" in other:
            before, after = (_config(side, point) for side, point in ((old, one), (new, other)))
            for key in sorted({*before, *after}):
                if json.dumps(before.get(key, "missing")) != json.dumps(after.get(key, "missing")):
                    a, b = before.get(key, "missing"), after.get(key, "missing")
                    yield f"{key}: {a!r} became {b!r}", name


def _point(record: Mapping[str, Any], name: str) -> Any:
    """Return a point, or the earlier one that has the same config; None if it is not there."""
    point = record["points"].get(name)
    return record["points"][point["same"]] if point and "same" in point else point


def _config(record: Mapping[str, Any], point: Mapping[str, Any]) -> dict[str, Any]:
    base = resolved(record["objects"], record["base"])
    left = {key: value for key, value in base.items() if key not in point["left out"]}
    return {**left, **resolved(record["objects"], point["config"])}


def _object_differences(
    old: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    for name in old["points"]:
        methods = [side["points"].get(name, {}).get("methods", {}) for side in (old, new)]
        for method in dict.fromkeys((*methods[0], *methods[1])):
            one, other = (each.get(method) for each in methods)
            both = object_differences((old["objects"], new["objects"]), (one, other))
            for path, a, b in itertools.islice(both, SHOWN):
                yield f"{'.'.join(path)}: {_short(a)} became {_short(b)}", f"{method} of {name}"


def object_differences(
    stored: tuple[Mapping[str, Any], ...], nodes: tuple[Any, Any]
) -> Iterator[tuple[list[str], Any, Any]]:
    """Yield the path to each difference of two descriptions, and both parts there."""
    if is_same(*nodes):
        return
    one, other = (
        objects[node["$"]] if isinstance(node, dict) and node.keys() == {"$"} else node
        for objects, node in zip(stored, nodes, strict=True)
    )
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() & other.keys():
        pairs = [(key, *(each.get(key, "missing") for each in (one, other))) for key in one | other]
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = [(str(i), a, b) for i, (a, b) in enumerate(zip(one, other, strict=True))]
    else:
        yield [], resolved(stored[0], one), resolved(stored[1], other)
        return
    for key, a, b in pairs:
        for path, *parts in object_differences(stored, (a, b)):
            yield [key, *path], parts[0], parts[1]


def _short(node: Any) -> str:
    text = json.dumps(node)
    return text if len(text) <= 300 else f"{text[:300]}..."


def record(file: Path, only: str) -> None:
    """Write the record of the current folder's checkout."""
    began = time.process_time()
    made = Record(only)
    made.add_points()
    between = time.process_time()
    made.add_refused()
    found = made.json()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(found, indent=0, sort_keys=True))
    calls = [
        call
        for point in made.points.values()
        for each in point.get("methods", {}).values()
        for call in [*each.get("calls", ()), *filter(None, [each.get("refused")])]
    ]
    distinct = {json.dumps(call, sort_keys=True) for call in calls}
    refused = Counter(where for where, _ in made.refused.values())
    print(
        f"{found['commit'][:8]}: {len(made.points)} points, {len(made._seen)} different configs, "
        f"{len(calls)} calls of factories with {len(distinct)} different arguments, in "
        f"{between - began:.0f} s; {len(made.refused)} values, in "
        f"{time.process_time() - between:.0f} s of one processor, "
        f"{dict(refused)}"
    )


def recorded(commit: str, folder: Path, only: str) -> dict[str, Any]:
    """Return the record of a commit, made in a worktree of its own; of this checkout for `.`."""
    tree, file = folder / commit, folder / f"{commit.replace('/', '-')}.json"
    here = HERE.parent
    if commit != ".":
        subprocess.run(
            ["git", "-C", here, "worktree", "add", "--detach", tree, commit],
            check=True,
            capture_output=True,
        )
    try:
        command = [sys.executable, __file__, "record", str(file.resolve()), f"--only={only}"]
        subprocess.run(command, cwd=here if commit == "." else tree, check=True)
        return json.loads(file.read_text())
    finally:
        if commit != ".":
            subprocess.run(["git", "-C", here, "worktree", "remove", "--force", tree], check=True)


def main() -> int:
    """Record, or compare; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("arguments", nargs="+", metavar="record FILE | compare OLD NEW | OLD NEW")
    parser.add_argument("--only", default="", metavar="REGEX", help="of configs and wrong values")
    options = parser.parse_args()
    match options.arguments:
        case ["record", file]:
            record(Path(file), options.only)
            return 0
        case ["compare", old, new]:
            records = [json.loads(Path(file).read_text()) for file in (old, new)]
        case [old, new]:
            with tempfile.TemporaryDirectory() as folder:
                records = [recorded(commit, Path(folder), options.only) for commit in (old, new)]
        case _:
            parser.error("give `record FILE`, `compare OLD.json NEW.json`, or two commits")
    differs = False
    for counts, text in compare(*records):
        differs |= counts
        print(text)
    print("the records differ" if differs else "the settings build and refuse the same")
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
