"""Rules for allowed values, and the one-line error for other values.

The same rules check keys of configs and keywords of methods.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import operator
from collections.abc import Callable, Collection, Mapping
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, NamedTuple, ParamSpec, TypeVar, Union, get_args, get_origin

import numpy as np

from jaxfed.errors import UsageError
from jaxfed.settings import allowed_text, is_allowed, names_of, settings_of

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

    def is_met(self, value: Any) -> bool:
        """True for an allowed value that does not become inf or 0 in float32."""
        return self.allows(value) and not beyond_float32(value, self)

    def allows(self, value: Any) -> bool:
        """True for an allowed value; one that cannot be compared, or is no integer as needed, is not."""
        try:
            if self.type is int:
                operator.index(value)
            return self.holds(value)
        except TypeError:
            return False

    @property
    def advice(self) -> str:
        """Advice: the values to write in place of one that is not allowed."""
        if self.type is str and self.choices:
            return choose_one_of(self.choices)
        return f"use {self.allowed}"


def choose_one_of(names: Collection[str]) -> str:
    """`use 'a'` for one name, `choose one of 'a', 'b'` for more."""
    listed = ", ".join(map(repr, names))
    return f"use {listed}" if len(names) == 1 else f"choose one of {listed}"


def one_of(names: Collection[str]) -> Rule:
    """One of a few names."""
    return Rule(str, ", ".join(map(repr, names)), lambda value: value in names, names)


def at_least(smallest: int, meaning: str = "") -> Rule:
    """An integer from `smallest` on; `meaning` explains special values."""
    return Rule(int, f"integers from {smallest} on{meaning}", lambda value: value >= smallest)


def between(low: float, high: float, *, closed: bool) -> Rule:
    """A number from low to high, the ends included if `closed`."""
    if closed:
        text = f"numbers from {low} to {high}" if math.isfinite(high) else f"numbers from {low} on"
        return Rule(float, text, lambda value: low <= value <= high and value < math.inf)
    text = f"numbers above {low}" + (f" and below {high}" if math.isfinite(high) else "")
    return Rule(float, text, lambda value: low < value < high)


def instance_of(kind: type, example: str) -> Rule:
    """An object of this class; `example` makes one."""
    return Rule(object, example, lambda value: isinstance(value, kind))


def function(example: str) -> Rule:
    """A function, or another callable."""
    return Rule(object, example, callable)


def optional(rule: Rule) -> Rule:
    """None, or a value that the rule allows."""
    return rule._replace(
        type=object,
        allowed=f"{rule.allowed}, or None",
        holds=lambda value: value is None or rule.is_met(value),
    )


PAIR = Rule(
    object,
    "a pair of examples and labels",
    lambda value: isinstance(value, tuple | list) and len(value) == 2,
)
KEY_BITS = (2048, 3072)  # of Paillier's keys: 112 and 128 bits of security (NIST SP 800-57)
_FLOAT32 = np.finfo(np.float32)  # devices take what is smaller than `tiny` for 0
IN_FLOAT32 = f"use numbers from {_FLOAT32.tiny:.1e} to {_FLOAT32.max:.1e} in absolute value, or 0"
POSITIVE = between(0, math.inf, closed=False)
NOT_NEGATIVE = between(0, math.inf, closed=True)
SHARE = between(0, 1, closed=True)


def beyond_float32(value: Any, rule: Rule | None = None) -> str:
    """Return the error text for a float, or one of several, that becomes inf or 0 in float32; else "".

    An integer counts as a float only where the rule is for floats: seeds have up to 256 bits.
    """
    if isinstance(value, tuple | list):
        return next(filter(None, (beyond_float32(each, rule) for each in value)), "")
    is_number = isinstance(value, float | np.floating) or (
        rule is not None and rule.type is float and isinstance(value, int)
    )
    if not is_number or not -math.inf < value < math.inf:
        return ""
    if abs(value) > float(_FLOAT32.max):
        return "becomes inf in float32"
    return "becomes 0 in float32" if 0 < abs(value) < float(_FLOAT32.tiny) else ""


def check_values(owner: str, rules: Mapping[str, Rule], values: Mapping[str, Any]) -> None:
    """Check values by the rules of the same name, and that all numbers are numbers of float32.

    Raises:
        UsageError: the first value that is not allowed; its key is the owner's.
    """
    for name, rule in rules.items():
        if not rule.allows(values[name]):
            raise UsageError(key=name, owner=owner, value=values[name], allowed=rule.advice)
    for name, value in values.items():
        if wrong := beyond_float32(value, rules.get(name)):
            raise UsageError(wrong, key=name, owner=owner, value=value, allowed=IN_FLOAT32)


Check = Callable[[SimpleNamespace], None]


def keywords(
    together: Check | None = None, **rules: Rule
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Check a factory's keywords before it runs: `fedprox.mu=-1: use numbers from 0 on`.

    Args:
        together: raises a UsageError for values that do not go together; its argument has the keywords as
            attributes, of those that no section of a config may have at least those that are given.
        rules: keyword -> its allowed values.
    """

    def ruled(factory: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(factory)

        @functools.wraps(factory)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            check_keywords(checked, given.arguments)
            return factory(*args, **kwargs)

        checked.rules = rules  # type: ignore[attr-defined]
        checked.together = together  # type: ignore[attr-defined]
        return checked

    return ruled


def check_keywords(factory: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Check keywords by a factory's rules, one by one and together, without a call of it.

    Raises:
        UsageError: a value that is not allowed, or values that do not go together.
    """
    plain, _ = plain_factory(factory)
    parameters = inspect.signature(factory).parameters.items()
    defaults = {name: p.default for name, p in parameters if p.default is not p.empty}
    values = {**defaults, **given}
    rules = {name: rule for name, rule in rules_of(plain).items() if name in values}
    check_values(plain.__name__, rules, values)
    if together := getattr(plain, "together", None):
        together(SimpleNamespace(**values))


def rules_of_fields(owner: type) -> dict[str, Rule]:
    """The rules of a dataclass's fields: its `rules`, or those of its hints."""
    if hasattr(owner, "rules"):
        own: dict[str, Rule] = owner.rules
        return own
    return {name: rule_of(one.hint) for name, one in settings_of(owner).items()}


def rule_of(hint: Any) -> Rule:
    """The rule of a hint; None, for a number that may be left out, is not among its values."""
    if isinstance(hint, UnionType) or get_origin(hint) is Union:
        first, *others = [each for each in get_args(hint) if each is not NoneType]
        hint = hint if others else first
    base = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    names = names_of(hint)
    kind = base if base in (bool, int, float, str) else str if names else object
    return Rule(kind, allowed_text(hint), functools.partial(is_allowed, hint=hint), names)


def plain_factory(
    factory: Callable[..., Any],
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return the function of a partial one, and the keywords that it is given."""
    given: dict[str, Any] = {}
    while isinstance(factory, functools.partial):
        given = {**factory.keywords, **given}
        factory = factory.func
    return factory, given


def rules_of(factory: Callable[..., Any]) -> Mapping[str, Rule]:
    """The rules of a factory's keywords."""
    plain, _ = plain_factory(factory)
    if dataclasses.is_dataclass(plain):
        return rules_of_fields(plain)
    found: Mapping[str, Rule] = getattr(plain, "rules", {})
    return found
