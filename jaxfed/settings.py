"""Settings: fields of a dataclass or keywords of a factory, each with a type hint that says what is allowed.

    @dataclass(frozen=True, kw_only=True)
    class Mixing:
        alpha: NotNegative = 0.0      # its meaning stands in the docstring, `Attributes:`

        def __post_init__(self) -> None:
            check(self)

    Mixing(alpha=-1)                  # UsageError: Mixing.alpha=-1: use numbers from 0 on

One declaration gives the library's argument, the key of a config, its check, and its entry in `docs/keys.md`.
A value is allowed if it fits the hint:

    bool, int, float, str            of this type; integers pass as floats, NumPy's numbers as Python's
    Literal["a", "b"]                one of these
    Annotated[float, Gt(0), Le(1)]   within bounds: Gt >, Ge >=, Lt <, Le <=, Not !=
    Annotated[int, Note("0: all")]   the same as int; a remark on special values for errors and pages
    Annotated[str, OneOf(NAMES)]     one of the names that a collection has when the value is checked
    Annotated[int, Allowed(holds, "multiples of 32")]      values for which `holds` is true
    Annotated[T, Described("a pair of arrays")]            of type T, described so in errors and pages
    Annotated[int, when("hamming", "phe")]                 has an effect only with these values of `hamming`
    tuple[T, ...], Sequence[T]       a tuple with entries T; a tuple or a list
    T | None, T | U                  allowed by one of both
    Callable[..., T]                 any function
    another class                    its instances

Conditions between two fields stand in `__post_init__` of the class that has both.

Tried and rejected: pydantic's `TypeAdapter`. Without `strict` it turns True into 1.0, with it a list is no
tuple; its errors have three lines, and its import takes 0.13 s of the 1 s before a run's first line.
"""

from __future__ import annotations

import functools
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from inspect import CO_VARKEYWORDS, getdoc
from math import inf
from operator import ge, gt, index, le, lt, ne
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union

import numpy as np

from jaxfed.errors import UsageError, did_you_mean, nearest

Factory = TypeVar("Factory", bound=Callable[..., Any])

_TINY, _HUGE = map(float, (np.finfo(np.float32).tiny, np.finfo(np.float32).max))
_LARGEST = 2**31 - 1  # indices of arrays on devices are int32


# Annotations are no named tuples: `typing` caches hints by equality.
@dataclass(frozen=True)
class Bound:
    """Limit of the allowed values: `holds(value, bound)` is true for them."""

    holds: Callable[[Any, Any], bool]
    bound: Any


Gt, Ge, Lt, Le, Not = (functools.partial(Bound, holds) for holds in (gt, ge, lt, le, ne))
_RANGES: dict[tuple[Callable[[Any, Any], bool], ...], str] = {
    (gt,): "above {}",
    (ge,): "from {} on",
    (lt,): "below {}",
    (le,): "up to {}",
    (ne,): "other than {!r}",
    (gt, lt): "above {} and below {}",
    (gt, le): "above {} and up to {}",
    (ge, lt): "from {} to below {}",
    (ge, le): "from {} to {}",
}


@dataclass(frozen=True)
class Note:
    """Remark on special values, appended to the allowed ones: "0 is all"."""

    text: str


@dataclass(frozen=True)
class Allowed:
    """Function that is true for allowed values, and their description in place of the type's own."""

    holds: Callable[[Any], bool]
    text: str


Described = functools.partial(Allowed, lambda value: True)


@dataclass(frozen=True, eq=False)
class OneOf:
    """One of the names in a collection, which is read at each check: users may register more."""

    names: Collection[str]


@dataclass(frozen=True)
class When:
    """Condition on another setting, without which this one has no effect."""

    key: str  # a field of the same class, or "SECTION.KEY" of a config
    values: tuple[Any, ...]  # that it may have, or one bound such as `Gt(0)` or `Not("iid")`

    def holds(self, value: Any) -> bool:
        """True if the condition holds with this value of the other setting."""
        bounds = isinstance(self.values[0], Bound)
        return _obeys(value, self.values[0]) if bounds else value in self.values

    @property
    def text(self) -> str:
        """The values as text that follows "set KEY to"."""
        return _ranged("a value", self.values) or " or ".join(map(repr, self.values))

    def __str__(self) -> str:
        """The condition: `partition='table'`, or `cohort_size above 0`."""
        return _ranged(self.key, self.values) or f"{self.key}={self.text}"


def when(key: str, *values: Any) -> When:
    """Return the condition that `key` has one of `values`; one bound, such as `Gt(0)`, may replace them."""
    return When(key, values)


Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
Share = Annotated[float, Ge(0), Le(1)]
BelowOne = Annotated[float, Ge(0), Lt(1)]
Probability = Annotated[float, Gt(0), Lt(1)]
Count = Annotated[int, Ge(1)]
CountOrZero = Annotated[int, Ge(0)]


class Setting(NamedTuple):
    """One field of a dataclass or keyword of a factory; its meaning is a line of the docstring."""

    hint: Any
    default: Any  # `REQUIRED` if there is none
    meaning: str

    @property
    def allowed(self) -> str:
        """Description of the allowed values."""
        return allowed_text(self.hint)

    @property
    def conditions(self) -> tuple[When, ...]:
        """Conditions on other settings, without which this one has no effect."""
        _, notes = _taken_apart(self.hint)
        return tuple(note for note in notes if isinstance(note, When))


REQUIRED: Any = MISSING


@functools.cache
def settings_of(owner: Any) -> Mapping[str, Setting]:
    """Return name -> setting of a dataclass's fields, or of a factory's keyword-only parameters.

    A keyword without a hint has the type of its default.
    """
    if (inner := _inner(owner)) is not None:
        keywords = getattr(owner, "keywords", {})
        known = settings_of(inner).items()
        return {name: one._replace(default=keywords.get(name, one.default)) for name, one in known}
    if is_dataclass(owner):
        hints = typing.get_type_hints(owner, include_extras=True)
        ordered = sorted(fields(owner), key=lambda field: bool(field.kw_only))  # as arguments
        defaults = {field.name: field.default for field in ordered if field.init}
    else:
        code, annotations = owner.__code__, owner.__annotations__
        names = code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]
        defaults = dict.fromkeys(names, REQUIRED) | (owner.__kwdefaults__ or {})
        # Only keywords: hints of other parameters may need imports that exist for type checkers alone.
        scope: Any = types.SimpleNamespace(
            __annotations__={name: annotations[name] for name in names if name in annotations}
        )
        hints = typing.get_type_hints(scope, owner.__globals__, include_extras=True)
    meaning_of, settings = meanings(owner), {}
    for name, default in defaults.items():
        kind = type(default) if isinstance(default, bool | int | float | str) else Any
        settings[name] = Setting(hints.get(name, kind), default, meaning_of.get(name, ""))
    return settings


def takes_any(factory: Any) -> bool:
    """True if a factory takes keywords of any name."""
    return unwrapped(factory).__code__.co_flags & CO_VARKEYWORDS != 0


def unwrapped(factory: Any, until: str = "") -> Any:
    """Return the function inside a partial or wrapped one, or the first with the attribute `until`."""
    while not (until and hasattr(factory, until)) and (inner := _inner(factory)) is not None:
        factory = inner
    return factory


def _inner(factory: Any) -> Any:
    return getattr(factory, "func", getattr(factory, "__wrapped__", None))


def check(settings: Any, owner: str = "") -> None:
    """Check every field of a dataclass instance by its hint, in `__post_init__`; errors name the class."""
    kind: Any = type(settings)
    check_each(settings_of(kind), vars(settings), owner or kind.__name__)


def hinted(factory: Factory, owner: str = "") -> Factory:
    """Decorate a factory: each call checks its keyword-only arguments by their hints; errors name `owner`."""

    @functools.wraps(factory)
    def checked(*args: Any, **keywords: Any) -> Any:
        check_each(settings_of(factory), keywords, owner or factory.__name__)
        return factory(*args, **keywords)

    return checked  # type: ignore[return-value]


def check_each(known: Mapping[str, Setting], values: Mapping[str, Any], owner: str) -> None:
    """Check values by the hints of the settings with their names; None is allowed where it is the default.

    Raises:
        UsageError: names the first value that is not allowed, after `owner`.
    """
    for name, one in known.items():
        if name in values and not (values[name] is None and one.default is None):
            check_value(name, values[name], one.hint, owner=owner)


def check_complete(
    known: Mapping[str, Setting], values: Mapping[str, Any], owner: str, needed: str
) -> None:
    """Check that no setting without a default is missing; `needed` says in the error what needs it."""
    for name, one in known.items():
        if one.default is REQUIRED and name not in values:
            raise UsageError("missing", key=name, owner=owner, allowed=needed)


def check_value(key: str, value: Any, hint: Any, *, owner: str = "") -> None:
    """Raise a UsageError that says what to write in place of a value that is not allowed."""
    if is_allowed(value, hint):
        return
    values, names = value if isinstance(value, tuple) else (value,), names_of(hint)
    unknown = [each for each in values if isinstance(each, str) and each not in names]
    near = did_you_mean([name for each in unknown for name in nearest(each, names)])
    is_beyond = isinstance(value, float) and 0 < abs(value) < inf and not is_allowed(value, float)
    wrong = "float32 has no such number" if is_beyond else ""
    raise UsageError(wrong, key=key, owner=owner, value=value, allowed=advice(hint) + near)


def allowed_text(hint: Any) -> str:
    """Describe the allowed values: "integers from 1 on", "'a', 'b'"; "" if all values are."""
    base, notes = _taken_apart(hint)
    texts = [note.text for note in notes if isinstance(note, Allowed)]
    if names := names_of(hint):
        listed = ", ".join(map(repr, names))
        texts = [listed if typing.get_origin(base) is not tuple else f"names out of {listed}"]
    elif not texts:
        texts = [_ranged(_described(base), notes) or _described(base)]
    return ", ".join([*texts, *(note.text for note in notes if isinstance(note, Note))])


def choose_one_of(names: Collection[str]) -> str:
    """`use 'a'` for one name, `choose one of 'a', 'b'` for more."""
    listed = ", ".join(map(repr, names))
    return f"use {listed}" if len(names) == 1 else f"choose one of {listed}"


def advice(hint: Any) -> str:
    """Return what to write in place of a value that is not allowed."""
    names, is_tuple = names_of(hint), typing.get_origin(_taken_apart(hint)[0]) is tuple
    return choose_one_of(names) if names and not is_tuple else f"use {allowed_text(hint)}"


def _taken_apart(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the type of a hint, and its annotations."""
    hint = getattr(hint, "__value__", hint)  # of an alias by `type`, as NumPy 2.5 has them
    if typing.get_origin(hint) is Annotated:
        base, *notes = typing.get_args(hint)
        return base, tuple(notes)
    return hint, ()


def _is_union(base: Any) -> bool:
    return typing.get_origin(base) in (Union, types.UnionType)


def names_of(hint: Any) -> tuple[str, ...]:
    """Return the names that a hint allows, also as entries of a tuple; () if it is not about names."""
    base, notes = _taken_apart(hint)
    for note in notes:
        if isinstance(note, OneOf):
            return tuple(note.names)
    if typing.get_origin(base) is Literal:
        return tuple(each for each in typing.get_args(base) if isinstance(each, str))
    if typing.get_origin(base) is tuple and typing.get_args(base):
        return names_of(typing.get_args(base)[0])
    return ()


def is_allowed(value: Any, hint: Any) -> bool:
    """True for an allowed value; floats are within float32's range, integers within int32's."""
    base, notes = _taken_apart(hint)
    try:
        return _is_of(value, base) and all(_obeys(value, note) for note in notes)
    except TypeError:  # the value cannot be compared with the bounds
        return False


def _obeys(value: Any, note: Any) -> bool:
    if isinstance(note, Bound):
        return bool(note.holds(value, note.bound))
    if isinstance(note, OneOf):
        return value in note.names
    return bool(note.holds(value)) if isinstance(note, Allowed) else True


def _is_of(value: Any, base: Any) -> bool:
    """True if a value is of a type without annotations."""
    origin, arguments = typing.get_origin(base), typing.get_args(base)
    is_flag = isinstance(value, bool | np.bool_)
    if base is Any:
        return True
    if _is_union(base):
        return any(is_allowed(value, other) for other in arguments)
    if origin is Literal:
        return any(is_allowed(value, type(each)) and value == each for each in arguments)
    if origin is tuple and Ellipsis not in arguments:
        is_long = isinstance(value, tuple) and len(value) == len(arguments)
        return is_long and all(map(is_allowed, value, arguments))
    if origin in (tuple, Sequence):
        is_listed = isinstance(value, tuple) or (origin is Sequence and isinstance(value, list))
        return is_listed and all(is_allowed(each, arguments[0]) for each in value)
    if Callable in (origin, base):
        return callable(value)
    if base is float:  # a number of Python or NumPy, or a scalar of JAX that is not traced
        is_number = isinstance(value, int | float | np.number) or getattr(value, "ndim", None) == 0
        in_range = is_number and (value == 0 or _TINY <= abs(value) <= _HUGE)
        return bool(not is_flag and in_range)
    if base is int:  # an integer of Python, NumPy or JAX; `index` raises a TypeError for others
        return not is_flag and abs(index(value)) <= _LARGEST
    return is_flag if base is bool else isinstance(value, origin or base)


def _described(base: Any) -> str:
    origin = typing.get_origin(base)
    if _is_union(base):
        others = typing.get_args(base)
        texts = [allowed_text(other) for other in others if other is not type(None)]
        text = " or ".join(filter(None, texts))
        return f"{text}, or None" if type(None) in others else text
    if Callable in (origin, base):
        return "a function"
    if origin is Sequence or Ellipsis in typing.get_args(base):
        return f"lists of {allowed_text(typing.get_args(base)[0])}"
    if origin is Literal:
        return " or ".join(map(repr, typing.get_args(base)))
    words = {bool: "true or false", int: "integers", float: "numbers", str: "text"}
    if base in words:
        return words[base]
    return "" if base is Any else f"{(origin or base).__name__}(...)"


def _ranged(of_type: str, notes: Collection[Any]) -> str:
    """Append the bounds, the lower one first: "numbers above 0 and up to 1"; "" without bounds."""
    bounds = [note for note in notes if isinstance(note, Bound)]
    if not bounds:
        return ""
    text = _RANGES[tuple(note.holds for note in bounds)]
    return f"{of_type} {text.format(*(note.bound for note in bounds))}"


_SECTION = re.compile(r"^(Args|Attributes|Fields):\n((?:[ \t]+.*\n|\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}([\w, ]+): (.*(?:\n {5,}.*)*)", re.MULTILINE)


def meanings(documented: Any) -> dict[str, str]:
    """Return name -> meaning, from the docstring of a function, or of a class and its bases."""
    lines: dict[str, str] = {}
    owners = reversed(documented.__mro__[:-1]) if isinstance(documented, type) else (documented,)
    for owner in owners:
        for _, entries in _SECTION.findall((getdoc(owner) or "") + "\n"):
            for names, meaning in _ENTRY.findall(entries):
                line = " ".join(meaning.split())
                lines |= {name.strip(): line for name in names.split(",")}
    return lines
