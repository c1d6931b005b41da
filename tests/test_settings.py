"""Settings: what hints allow, what is known of a dataclass or a factory; and how errors read."""

import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import Annotated, Any, Literal

import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed.errors import BeyondMemory, UsageError, section
from jaxfed.settings import (
    REQUIRED,
    Allowed,
    BelowOne,
    Count,
    CountOrZero,
    Described,
    Ge,
    Gt,
    Le,
    Note,
    NotNegative,
    OneOf,
    Positive,
    Probability,
    Share,
    advice,
    allowed_text,
    check,
    check_value,
    hinted,
    is_allowed,
    settings_of,
    takes_any,
    when,
)

NAN, INF = math.nan, math.inf
EVEN = Annotated[int, Allowed(lambda number: number % 2 == 0, "even integers")]
NAMES = {"rose": 1, "lily": 2}
Named = Annotated[str, OneOf(NAMES)]
Example = Annotated[dict, Described("a dict of arrays")]

HINTS = [  # hint, its text, what it allows, what it refuses
    (bool, "true or false", [True, np.False_], [1, 0, "yes", None]),
    (int, "integers", [0, -3, np.int64(4), jnp.int32(3)], [1.0, True, "16", (16,), None]),
    (float, "numbers", [1, 0.5, np.float32(2), jnp.zeros(())], [True, NAN, INF, -INF, "1", None]),
    (str, "text", ["", "a"], [1, None]),
    (Positive, "numbers above 0", [1e-9, 1, 1e9], [0, -1, NAN, INF]),
    (NotNegative, "numbers from 0 on", [0, 1e9], [-1e-9, NAN, 10**400]),
    (Share, "numbers from 0 to 1", [0, 1, np.float32(0.5)], [-0.1, 1.1, NAN, "0.9", (0.9,)]),
    (BelowOne, "numbers from 0 to below 1", [0, 0.9], [1, -0.1]),
    (Probability, "numbers above 0 and below 1", [0.5], [0, 1]),
    (Annotated[float, Gt(0), Le(1)], "numbers above 0 and up to 1", [1], [0]),
    (Count, "integers from 1 on", [1, np.int8(3)], [0, -3, 2.0, True, None]),
    (CountOrZero, "integers from 0 on", [0], [-1, 0.0, False]),
    (Annotated[int, Ge(0), Note("0 is all")], "integers from 0 on, 0 is all", [0], [-1]),
    (EVEN, "even integers", [0, 4], [3, 2.0]),
    (Literal["a", "b"], "'a', 'b'", ["a"], ["c", "", 1, None, ("a",)]),
    (
        Literal[2048, 3072],
        "2048 or 3072",
        [2048, np.int64(3072)],
        [1024, "2048", 2048.0, np.ones(2)],
    ),
    (Named, "'rose', 'lily'", ["rose"], ["tulip", None]),
    (tuple[Count, ...], "lists of integers from 1 on", [(), (1, 2)], [[1], (0,), 3, (1, 2.0)]),
    (Sequence[Count], "lists of integers from 1 on", [(), [1, 2]], ["12", [0], (1, "2"), ((1,),)]),
    (tuple[int, str], "tuple(...)", [(1, "a")], [(1,), (1, 2), [1, "a"]]),
    (Count | None, "integers from 1 on, or None", [None, 2], [0]),
    (int | str, "integers or text", [3, "3"], [3.5, None]),
    (Callable[..., int], "a function", [len, dict], [3, None]),
    (Example, "a dict of arrays", [{}], [[], None]),
    (np.ndarray, "ndarray(...)", [np.zeros(2)], [[0.0]]),
    (Any, "", [None, 3, "a", 1e300], []),
]


@pytest.mark.parametrize(
    ("hint", "text", "allowed", "refused"), HINTS, ids=lambda one: str(one)[:40]
)
def test_hints(hint, text, allowed, refused):
    assert allowed_text(hint) == text
    for value in allowed:
        assert is_allowed(value, hint)
    for value in refused:
        assert not is_allowed(value, hint)
        with pytest.raises(UsageError) as error:
            check_value("key", value, hint, owner="owner")
        line = str(error.value)
        assert line.startswith("owner.key=")
        assert advice(hint) in line
        assert "\n" not in line


@pytest.mark.parametrize(
    ("hint", "value", "line"),
    [
        (Literal["a"], "b", "key='b': use 'a'"),
        (Literal["a", "b"], "c", "key='c': choose one of 'a', 'b'"),
        (Named, "lilly", "key='lilly': choose one of 'rose', 'lily', did you mean 'lily'?"),
        (
            tuple[Named, ...],
            ("lilly",),
            "key=('lilly',): use names out of 'rose', 'lily', did you mean 'lily'?",
        ),
        (float, 1e39, "key=1e+39: float32 has no such number; use numbers"),
        (Positive, 1e-39, "key=1e-39: float32 has no such number; use numbers above 0"),
        (tuple[float, ...], (1.0, 1e39), "key=(1.0, 1e+39): use lists of numbers"),
        (float, 10**39, f"key={10**39}: use numbers"),
        (Count, 2**31, "key=2147483648: use integers from 1 on"),
        (Share, "a\nb", "key='a\\nb': use numbers from 0 to 1"),
    ],
)
def test_refusals_are_one_line(hint, value, line):
    with pytest.raises(UsageError) as error:
        check_value("key", value, hint)
    assert str(error.value).startswith(line)


@dataclass(frozen=True)
class Base:
    """A base.

    Attributes:
        size: number of
            examples.
    """

    size: Count

    def __post_init__(self):
        check(self)


@dataclass(frozen=True)
class Derived(Base):
    """Its fields.

    Attributes:
        rate: share that is kept.
        kind, other: names.
    """

    rate: Annotated[Share, when("kind", "rose")] = 0.5
    kind: Named = "rose"
    other: Callable[..., int] = None  # computed later
    bound: int | None = None


def test_fields_are_checked_when_an_object_is_made():
    assert Derived(3, rate=1).other is None
    for given, line in (
        ({"size": 0}, "Derived.size=0: use integers from 1 on"),
        ({"size": 1, "rate": 2}, "Derived.rate=2: use numbers from 0 to 1"),
        ({"size": 1, "kind": None}, "Derived.kind=None: choose one of"),
        ({"size": 1, "other": 3}, "Derived.other=3: use a function"),
    ):
        with pytest.raises(UsageError, match=f"^{line}"):
            Derived(**given)


def test_settings_of_a_dataclass():
    found = settings_of(Derived)
    assert {name: one.default for name, one in found.items()} == {
        **{"size": REQUIRED, "rate": 0.5, "kind": "rose", "other": None, "bound": None}
    }
    assert found["size"].meaning == "number of examples."
    assert found["kind"].meaning == found["other"].meaning == "names."
    assert found["rate"].allowed == "numbers from 0 to 1"
    (condition,) = found["rate"].conditions
    assert condition.key == "kind"
    assert condition.holds("rose")
    assert not condition.holds("lily")


@hinted
def factory(place, scale=1, *, training, mu: Share = 0.5, steps=3, names=(), **others: Any):
    """A factory.

    Args:
        mu: share.
    """
    return place, scale, training, mu, steps, names, others


def test_a_factorys_keywords_are_checked_in_each_call():
    assert factory(1, training="t", mu=1, c=2) == (1, 1, "t", 1, 3, (), {"c": 2})
    assert factory.__name__ == "factory"
    for given, line in (
        ({"mu": 2}, "factory.mu=2: use numbers from 0 to 1"),
        ({"steps": 2.0}, "factory.steps=2.0: use integers"),
    ):
        with pytest.raises(UsageError, match=f"^{line}"):
            factory(1, training="t", **given)


def test_settings_of_a_factory():
    @wraps(factory)
    def wrapped(*args, **keywords):
        return factory(*args, **keywords)

    found = settings_of(factory)
    assert list(found) == ["training", "mu", "steps", "names"]
    assert found["training"] == (Any, REQUIRED, "")
    assert found["mu"] == (Share, 0.5, "share.")
    assert (found["steps"].hint, found["names"].hint) == (
        int,
        Any,
    )  # without a hint: of the default
    assert settings_of(wrapped) == found
    for own in (partial(factory, mu=0.1), partial(wrapped, mu=0.1)):
        assert settings_of(own) == {**found, "mu": found["mu"]._replace(default=0.1)}
        assert takes_any(own)
    assert not takes_any(check_value)


def test_hints_that_differ_in_their_annotations_differ():
    """`typing` caches unions by equality: "or None" of the one must not become that of the other."""
    assert not is_allowed(0, Positive | None)
    assert is_allowed(0, NotNegative | None)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (UsageError("no client has a label"), "no client has a label"),
        (UsageError(key="mu", value=-1, allowed="use 0"), "mu=-1: use 0"),
        (BeyondMemory("missing", key="config.rounds"), "config.rounds: missing"),
        (UsageError("too many", key="k", value=None, allowed="use 3"), "k=None: too many; use 3"),
        (UsageError(key="k", value=["a\nb"], allowed="use 3"), r"k=['a\nb']: use 3"),
    ],
)
def test_the_text_is_made_of_the_parts(error, text):
    assert str(error) == text
    again = pickle.loads(pickle.dumps(error))  # from another process
    assert (str(again), type(again)) == (text, type(error))


@pytest.mark.parametrize(
    ("raised", "keys", "key"),
    [
        ({"key": "mu", "owner": "fedprox"}, ("mu",), "config.mine.mu"),
        ({"key": "nu", "owner": "fedprox"}, ("mu",), "nu"),
        (
            {"key": "number", "owner": "Labels"},
            {"number": "others", "Labels.number": "num_labeled"},
            "config.mine.num_labeled",
        ),
        ({}, ("mu",), ""),
    ],
)
def test_a_section_names_its_keys_and_no_others(raised, keys, key):
    error = UsageError("wrong", value=3, **raised)
    with pytest.raises(UsageError) as caught, section("config.mine", keys):
        raise error
    assert caught.value is error
    assert error.key == key
    assert error.owner == ("" if key.startswith("config.") else raised.get("owner", ""))
    assert error.value == 3
