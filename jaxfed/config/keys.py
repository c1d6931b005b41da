"""Dotted keys, such as `xclp.num_bits` for the entry `num_bits` of section `xclp`, and checks of values."""

from collections.abc import Callable, Collection, Iterator, Mapping
from inspect import signature
from typing import Any

from ml_collections import ConfigDict

from jaxfed.errors import UsageError, did_you_mean, nearest
from jaxfed.rules import IN_FLOAT32, Rule, beyond_float32, check_values, rules_of

TYPES: dict[type, str] = {bool: "true or false", int: "integers", float: "numbers", str: "text"}
_OF_FILE = "_values_of_file"  # attribute of a config
_LARGEST = 2**31 - 1  # arrays on the device count with int32


# Keys that configs of earlier versions have, with the value that is now the only one.
GONE: dict[str, Any] = {
    "labeled_cohorts": True,
    "labeled_share": "ceiling",
    "dp_fedavg.bound": "fixed",
    "dp_fedavg_records.chunk": 16,
    "dp_fedavg_records.records": "poisson",
    "execution.chunk_size": 0,
    "fedcon.predictor_hidden": 512,
    "fedct.decode": "unbiased",
    "fedct.ties": "smallest",
    "fedct.weights": "one",
    "fedmatch.psi_scale": 0.2,
    "fedrgd.self_training": False,
    "fl2.adaptive": True,
    "fl2.sharpness_weight": 1.0,
    "mixmatch.mu": 0.0,
    "model.code": "semifl",
    "per_client_lp.self_edges": False,
    "pooled_lp.self_edges": False,
    "preprocessing.batch_size": 0,
    "proxyfl.prior_average": 0.0,
    "scaffold.option": "II",
    "twinsight.projection_hidden": 512,
    "twinsight.projection_size": 128,
    "twinsight.threshold": 0.95,
    "twinsight.thresholds": "freematch",
    "xclp.self_edges": False,
}
# Keys that configs of earlier versions lack -> the value of those runs, where it is not the default.
ADDED: dict[str, Any] = {"dataset.test_rows": "shared"}
# Names of other frameworks -> the key here.
_ELSEWHERE = {
    **dict.fromkeys(
        ("clients_per_round", "fraction_fit", "client_fraction", "frac", "participation"),
        "cohort_size",
    ),
    **dict.fromkeys(
        ("num_rounds", "global_rounds", "communication_rounds", "comm_round"), "rounds"
    ),
    **dict.fromkeys(("local_epochs", "local_ep", "num_epochs"), "training.epochs"),
    **dict.fromkeys(("lr", "local_lr", "client_lr"), "training.learning_rate"),
    **dict.fromkeys(("num_users", "n_clients", "total_clients"), "federation.num_clients"),
    **dict.fromkeys(("num_seeds", "seeds", "trials"), "num_repeats"),
}


def flatten(nested: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested mappings with dotted keys."""
    for key, value in nested.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def remember_values(config: ConfigDict, values: Mapping[str, Any] | None = None) -> None:
    """Store a file's values, by default those of the config, beside its keys; copies do not have them."""
    values = dict(flatten(config.to_dict())) if values is None else values
    object.__setattr__(config, _OF_FILE, values)


def remembered_values(config: ConfigDict) -> Mapping[str, Any] | None:
    """Return the values of the config's file by dotted keys, before anybody changed them, or None."""
    return vars(config).get(_OF_FILE)


def unknown_key(key: str, known: Collection[str]) -> UsageError:
    """Return the error for an unknown key: it is gone, has no section, or a suggestion of known keys."""
    if key in GONE:
        wrong = f"no longer a setting; runs are as with {GONE[key]!r}"
        return UsageError(wrong, key=f"config.{key}", allowed="leave it out")
    section = key.rpartition(".")[0]
    sections = {parent for name in known for parent in _parents(name)}
    for parent in _parents(key):
        if parent in known:
            return UsageError(f"unknown key; config.{parent} is no section", key=f"config.{key}")
        if parent not in sections:
            top = sorted(name for name in sections if "." not in name)
            meant = did_you_mean(nearest(parent, sections)) or f"; sections are {', '.join(top)}"
            return UsageError(f"no such section{meant}", key=f"config.{parent}")
    dotted = [name for name in known if name.replace(".", "_") == key.replace(".", "_")]
    meant = did_you_mean(dotted or nearest_keys(key, known))
    if not meant and section:
        own = sorted(
            name.rpartition(".")[2] for name in known if name.rpartition(".")[0] == section
        )
        meant = f"; the keys of {section} are {', '.join(own)}"
    return UsageError(f"unknown key{meant}", key=f"config.{key}")


def nearest_keys(key: str, known: Collection[str]) -> list[str]:
    """Return known keys that an unknown one may stand for, by the first rule that finds any.

    0. The key here for a name that other frameworks use.
    1. Keys of its section that contain its last word (`alpha`, `dirichlet_alpha`).
    2. Keys of any section with the same last word; those of all methods before a method's own.
    3. The most similar key of its section.
    4. The most similar key of any section.
    """
    section, _, leaf = key.rpartition(".")
    if _ELSEWHERE.get(leaf) in known:
        return [_ELSEWHERE[leaf]]
    leaves = {name: name.rpartition(".")[2] for name in sorted(known)}
    own = [name for name in leaves if name.rpartition(".")[0] == section]
    found = [name for name in own if f"_{leaf}_" in f"_{leaves[name]}_"]
    elsewhere = [name for name in leaves if leaves[name] == leaf]
    # training.x, and not the METHOD.training.x of every method
    shared = [name for name in elsewhere if name.count(".") < 2]
    found = found or shared or elsewhere
    for names in (own, list(leaves)):
        close = nearest(leaf, {leaves[name] for name in names})
        found = found or [name for name in names if leaves[name] in close]
    return found


def _parents(key: str) -> Iterator[str]:
    """Yield the enclosing sections: `a` and `a.b` for `a.b.c`."""
    words = key.split(".")
    return (".".join(words[:count]) for count in range(1, len(words)))


def check_value(key: str, value: Any, rule: Rule) -> None:
    """Check that a value has the rule's type (integers pass as numbers) and is allowed."""
    is_type = rule.type in (object, type(value)) or (rule.type is float and type(value) is int)
    if not is_type or not rule.holds(value):
        listed = value if isinstance(value, tuple) else (value,)
        unknown = [name for name in listed if isinstance(name, str) and name not in rule.choices]
        meant = {name: nearest(name, rule.choices) for name in unknown if rule.choices}
        wrong, allowed = "", rule.advice
        if isinstance(value, tuple) and meant:
            words = (f"{name!r} is unknown{did_you_mean(near)}" for name, near in meant.items())
            wrong, allowed = "; ".join(words), "" if all(meant.values()) else allowed
        elif isinstance(value, tuple) and rule.choices:
            twice = sorted({repr(name) for name in value if value.count(name) > 1})
            if twice:
                wrong, allowed = f"{', '.join(twice)} is named twice", "name each once"
        elif isinstance(value, str):
            allowed += did_you_mean(meant.get(value, []))
        raise UsageError(wrong, key=f"config.{key}", value=value, allowed=allowed)
    if wrong := beyond_float32(value, rule):
        raise UsageError(wrong, key=f"config.{key}", value=value, allowed=IN_FLOAT32)
    if rule.type is int and value > _LARGEST:
        raise UsageError(key=f"config.{key}", value=value, allowed=f"use integers up to {_LARGEST}")


def check_own(section: str, given: Mapping[str, Any], factory: Callable[..., Any]) -> None:
    """Check a section's values one by one, by the types of a factory's defaults and by its rules.

    Raises:
        UsageError: a value of another type, or out of range.
    """
    known, rules = signature(factory).parameters, rules_of(factory)
    for key, value in given.items():
        kind = type(known[key].default) if key in known else None
        if kind in TYPES:
            is_ruled = kind is float and key in rules
            check_value(
                f"{section}.{key}", value, rules[key] if is_ruled else Rule(kind, TYPES[kind])
            )
        if key in rules:
            check_values(f"config.{section}", {key: rules[key]}, {key: value})
