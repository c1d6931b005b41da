"""Rules for allowed values, and the one-line error for other values.

The same rules check keys of configs and keywords of methods.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, ParamSpec, TypeVar

from jaxfed.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")


class Rule(NamedTuple):
    """Allowed values: those of a type (`object`: any) for which `holds` is true; `allowed` describes them.

    `choices` has the names, if names are allowed.
    """

    type: type
    allowed: str
    holds: Callable[[Any], bool] = lambda value: True
    choices: Collection[str] = ()


def one_of(names: Collection[str]) -> Rule:
    """One of a few names."""
    return Rule(str, ", ".join(map(repr, names)), lambda value: value in names, names)


def at_least(smallest: int, meaning: str = "") -> Rule:
    """An integer from `smallest` on; `meaning` explains special values."""
    return Rule(int, f"integers from {smallest} on{meaning}", lambda value: value >= smallest)


def between(low: float, high: float, *, closed: bool) -> Rule:
    """A number from low to high, the ends included if `closed`."""
    if closed:
        text = f"{low} to {high}" if math.isfinite(high) else f"numbers from {low} on"
        return Rule(float, text, lambda value: low <= value <= high and math.isfinite(value))
    text = f"numbers above {low}" + (f" and below {high}" if math.isfinite(high) else "")
    return Rule(float, text, lambda value: low < value < high)


KEY_BITS = (2048, 3072)  # of Paillier's keys: 112 and 128 bits of security (NIST SP 800-57)
POSITIVE = between(0, math.inf, closed=False)
NOT_NEGATIVE = between(0, math.inf, closed=True)
SHARE = between(0, 1, closed=True)


def check_values(owner: str, rules: Mapping[str, Rule], values: Mapping[str, Any]) -> None:
    """Check values by the rules of the same name.

    Types are checked only as far as a wrong one would cause a TypeError later: values that a rule cannot
    compare, and non-integers where integers are needed.

    Raises:
        UsageError: the first value that a rule does not allow, as `owner.name=value`.
    """
    for name, rule in rules.items():
        if not _allows(rule, values[name]):
            raise UsageError(f"{owner}.{name}={values[name]!r}: allowed are {rule.allowed}")


def _allows(rule: Rule, value: Any) -> bool:
    try:
        if rule.type is int:
            operator.index(value)
        return rule.holds(value)
    except TypeError:
        return False


def keywords(**rules: Rule) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Check a factory's keywords by rules before it runs: `fedprox.mu=-1: allowed are ...`."""

    def ruled(factory: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(factory)

        @functools.wraps(factory)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            check_values(factory.__name__, rules, given.arguments)
            return factory(*args, **kwargs)

        checked.rules = rules  # type: ignore[attr-defined]
        return checked

    return ruled


def rules_of(factory: Callable[..., Any]) -> Mapping[str, Rule]:
    """The rules of a factory's keywords, set by `keywords`; also for a partial of the factory."""
    while isinstance(factory, functools.partial):
        factory = factory.func
    return getattr(factory, "rules", {})


def fields_as_keywords(
    cls: type, *, but: Collection[str] = ()
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Name a factory's `**fields` in its signature: those of a dataclass, with their defaults.

    A keyword that is neither a field nor the factory's own is a TypeError, as for any function.
    """

    def named(factory: Callable[P, R]) -> Callable[P, R]:
        given = inspect.signature(factory)
        own = {n: p for n, p in given.parameters.items() if p.kind is not p.VAR_KEYWORD}
        fields = [
            parameter.replace(kind=parameter.KEYWORD_ONLY)
            for name, parameter in inspect.signature(cls).parameters.items()
            if name not in own and name not in but
        ]
        signature = given.replace(parameters=[*own.values(), *fields])

        @functools.wraps(factory)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            signature.bind(*args, **kwargs)
            return factory(*args, **kwargs)

        checked.__signature__ = signature  # type: ignore[attr-defined]
        checked.fields_of = cls  # type: ignore[attr-defined]
        return checked

    return named
