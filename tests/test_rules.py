"""Rules of keywords: what they refuse, and that a factory keeps its signature under them."""

import inspect
from functools import partial

import pytest

from jaxfed.errors import UsageError
from jaxfed.rules import (
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    at_least,
    between,
    check_keywords,
    keywords,
    one_of,
)


@keywords(mu=NOT_NEGATIVE, kind=one_of(("a", "b")), steps=at_least(1))
def method(
    *, training: str, mu: float = 0.5, kind: str = "a", steps: int = 1
) -> tuple[str, float, str]:
    del steps
    return training, mu, kind


def test_keywords_pass_or_are_refused_by_name():
    assert method(training="t", mu=0.0) == ("t", 0.0, "a")
    for given, told in (
        ({"mu": -1.0}, "method.mu=-1.0: use numbers from 0 on"),
        ({"kind": "c"}, "method.kind='c': choose one of 'a', 'b'"),
        ({"mu": "small"}, "method.mu='small': use numbers from 0 on"),
        ({"steps": 3.0}, "method.steps=3.0: use integers from 1 on"),
        ({"steps": None}, "method.steps=None: use integers from 1 on"),
    ):
        with pytest.raises(UsageError, match=f"^{told}$"):
            method(training="t", **given)


def test_a_factory_keeps_name_and_signature():
    assert method.__name__ == "method"
    assert list(inspect.signature(method).parameters) == ["training", "mu", "kind", "steps"]


@pytest.mark.parametrize(
    ("rule", "allowed", "refused"),
    [
        (POSITIVE, [1e-9, 1e9], [0, -1, float("nan"), float("inf")]),
        (NOT_NEGATIVE, [0, 1e9], [-1e-9, float("nan")]),
        (SHARE, [0, 1], [-0.1, 1.1, float("nan")]),
        (between(0, 1, closed=False), [0.5], [0, 1]),
        (at_least(2), [2, 3], [1]),
    ],
)
def test_ends_of_ranges(rule, allowed, refused):
    assert all(map(rule.holds, allowed))
    assert not any(map(rule.holds, refused))


def _check(given):
    if given.size > given.most:
        raise UsageError(key="size", value=given.size, allowed=f"use at most {given.most}")


@keywords(_check, size=at_least(1))
def bounded(*, training: str, size: int = 1, most: int = 3) -> int:
    raise AssertionError("no check of keywords calls the factory")


def test_keywords_are_checked_together_without_a_call():
    check_keywords(bounded, {"size": 3})
    check_keywords(partial(bounded, most=9), {"size": 8})
    for given, told in (
        ({"size": 0}, "bounded.size=0: use integers from 1 on"),
        ({"size": 4}, "size=4: use at most 3"),
    ):
        with pytest.raises(UsageError, match=f"^{told}$"):
            check_keywords(bounded, given)
        with pytest.raises(UsageError, match=f"^{told}$"):
            bounded(training="t", **given)


def test_advice_is_a_sentence():
    assert one_of(("a",)).advice == "use 'a'"
    assert one_of(("a", "b")).advice == "choose one of 'a', 'b'"
    assert SHARE.advice == "use numbers from 0 to 1"
