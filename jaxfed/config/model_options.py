"""Options of a network, derived from the signature of its factory.

Options are the keywords of a factory in `MODELS`, except `convolution`, which belongs to `execution`. Their
type hints are the rules:

    Literal                  one of the listed names
    int                      a count, 1 or more
    float                    a share from 0 to 1
    Sequence[int]            any number of counts
    Annotated[int, rule]     the given rule

Values with other hints, or none, are checked by the network itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

from jaxfed.errors import UsageError, suggestion
from jaxfed.rules import Rule


def defaults(factory: Callable[..., Any]) -> dict[str, Any]:
    """Return name -> default of a factory's options."""
    return {name: option.default for name, option in _options(factory).items()}


def described(factory: Callable[..., Any]) -> list[tuple[str, Any, str]]:
    """Return (name, default, allowed values as text) of a factory's options."""
    return [(name, o.default, _rule(o.annotation)[0]) for name, o in _options(factory).items()]


def check_options(name: str, factory: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Check the keys of `config.model` except the name.

    Args:
        name: of the network, for the message.
        factory: as in `MODELS`.
        options: key -> value.

    Raises:
        UsageError: an option that the network lacks, or a value of another type or out of range.
    """
    known = _options(factory)
    for key, value in options.items():
        if key not in known:
            wrong = f"unknown key of {name}{suggestion(key, known)}"
            raise UsageError(wrong, key=f"config.model.{key}")
        allowed, holds = _rule(known[key].annotation)
        if not holds(value):
            raise UsageError(key=f"config.model.{key}", value=value, allowed=f"use {allowed}")


def takes_convolution(factory: Callable[..., Any]) -> bool:
    """True if a factory has the keyword `convolution`; one from outside need not."""
    parameters = inspect.signature(factory).parameters.values()
    return any(p.name == "convolution" or p.kind is p.VAR_KEYWORD for p in parameters)


def _options(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(factory, eval_str=True).parameters.values()
    return {
        parameter.name: parameter
        for parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name != "convolution"
    }


def _rule(hint: Any) -> tuple[str, Callable[[Any], bool]]:
    """Return the allowed values as text, and a predicate."""
    if get_origin(hint) is Literal:
        names = get_args(hint)
        return " or ".join(map(repr, names)), lambda value: value in names
    if get_origin(hint) is Annotated:
        rule = next((own for own in get_args(hint)[1:] if isinstance(own, Rule)), None)
        if rule:
            return rule.allowed, lambda value: type(value) is rule.type and rule.holds(value)
    return _RULES.get(hint, _ANYTHING)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1


_ANYTHING: tuple[str, Callable[[Any], bool]] = ("all values", lambda value: True)
_RULES: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    bool: ("true or false", lambda value: type(value) is bool),
    int: ("integers from 1 on", _is_count),
    float: (
        "numbers from 0 to 1",
        lambda value: type(value) in (int, float) and 0 <= value <= 1,
    ),
    Sequence[int]: (
        "lists of integers from 1 on, such as (16, 32)",
        lambda value: isinstance(value, tuple | list) and all(map(_is_count, value)),
    ),
}
