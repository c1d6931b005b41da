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

from jaxfed.config.keys import check_value
from jaxfed.errors import UsageError, suggestion
from jaxfed.rules import SHARE, Rule, at_least, one_of


def defaults(factory: Callable[..., Any]) -> dict[str, Any]:
    """Return name -> default of a factory's options."""
    return {name: option.default for name, option in _options(factory).items()}


def described(factory: Callable[..., Any]) -> list[tuple[str, Any, str]]:
    """Return (name, default, allowed values as text) of a factory's options."""
    return [(name, o.default, _rule(o.annotation).allowed) for name, o in _options(factory).items()]


def check_options(name: str, factory: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Check the keys of `config.model` except the name, which stands in the message.

    Raises:
        UsageError: an option that the network lacks, or a value of another type or out of range.
    """
    known = _options(factory)
    for key, value in options.items():
        if key not in known:
            wrong = f"unknown key of {name}{suggestion(key, known)}"
            raise UsageError(wrong, key=f"config.model.{key}")
        check_value(f"model.{key}", value, _rule(known[key].annotation))


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


def _rule(hint: Any) -> Rule:
    if get_origin(hint) is Literal:
        return one_of(get_args(hint))
    if get_origin(hint) is Annotated:
        return next((own for own in get_args(hint)[1:] if isinstance(own, Rule)), _ANYTHING)
    return _RULES.get(hint, _ANYTHING)


def _are_counts(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(type(n) is int and n >= 1 for n in value)


_ANYTHING = Rule(object, "all values")
_RULES: dict[Any, Rule] = {
    bool: Rule(bool, "true or false"),
    int: at_least(1),
    float: SHARE,
    Sequence[int]: Rule(object, "lists of integers from 1 on, such as (16, 32)", _are_counts),
}
