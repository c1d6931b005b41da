"""What a network's options may be: the signature of its factory says it.

Options are the keywords of a factory in `MODELS`, without `convolution`, which is a matter of execution.
Their type hints are the rules: a `Literal` lists names, an int counts something and is 1 or more, a
float is a share from 0 to 1, a `Sequence[int]` holds as many such ints as the network likes, and an
`Annotated[int, rule]` keeps to a rule of its own. Of other hints, or none, networks from outside judge
themselves.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

from jaxfed.errors import UsageError, suggestion
from jaxfed.rules import Rule


def defaults(factory: Callable[..., Any]) -> dict[str, Any]:
    """Name -> default of the options that a factory takes."""
    return {name: option.default for name, option in _options(factory).items()}


def described(factory: Callable[..., Any]) -> list[tuple[str, Any, str]]:
    """(name, default, what is allowed) of the options that a factory takes."""
    return [(name, o.default, _rule(o.annotation)[0]) for name, o in _options(factory).items()]


def check_options(name: str, factory: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Check the keys of `config.model` beside the name.

    Args:
        name: of the network, for the message.
        factory: as in `MODELS`.
        options: key -> value.

    Raises:
        UsageError: an option that the network has not, or a value of another type or out of range.
    """
    known = _options(factory)
    for key, value in options.items():
        if key not in known:
            raise UsageError(f"config.model.{key}: unknown key of {name}{suggestion(key, known)}")
        allowed, holds = _rule(known[key].annotation)
        if not holds(value):
            raise UsageError(f"config.model.{key}={value!r}: allowed with {name} are {allowed}")


def takes_convolution(factory: Callable[..., Any]) -> bool:
    """Whether a factory wants to know how to compute convolutions; one from outside need not."""
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
    """What is allowed in words, and whether a value is."""
    if get_origin(hint) is Literal:
        names = get_args(hint)
        return ", ".join(map(repr, names)), lambda value: value in names
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
