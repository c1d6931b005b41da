"""Rules of keywords: what they refuse, and that a factory keeps its signature under them."""

import inspect
from dataclasses import dataclass
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
    classes_of,
    grouped,
    keywords,
    one_of,
    plain_factory,
    rules_of,
)
from jaxfed.settings import NotNegative


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


@dataclass(frozen=True)
class Settings:
    size: int
    seed: int = 0
    alpha: float = 0.5


@grouped(("seed",), settings=Settings)
def settled(*, execution: str = "here", settings: Settings) -> Settings:
    return settings


def test_fields_are_keywords():
    parameters = inspect.signature(settled).parameters.values()
    assert {p.name: p.default for p in parameters} == {
        "execution": "here",
        "size": inspect.Parameter.empty,
        "alpha": 0.5,
    }
    assert settled(size=3) == Settings(3)
    for given, told in (({"size": 3, "seed": 1}, "seed"), ({}, "size")):
        with pytest.raises(TypeError, match=told):
            settled(**given)


@dataclass(frozen=True)
class Noise:
    """Noise.

    Attributes:
        sigma: deviation.
    """

    sigma: NotNegative = 0.0
    kind: str = "normal"


@keywords(steps=at_least(1))
@grouped(noise=Noise, settings=Settings)
def composed(
    *, training: str, steps: int = 1, noise: Noise, settings: Settings
) -> tuple[str, int, Noise, Settings]:
    return training, steps, noise, settings


def test_a_factory_gets_dataclasses_of_its_callers_keywords():
    parameters = inspect.signature(composed).parameters
    assert list(parameters) == ["training", "steps", "sigma", "kind", "size", "seed", "alpha"]
    assert {p.kind for p in parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    assert composed(training="t", size=3) == ("t", 1, Noise(), Settings(3))
    made = composed(training="t", size=3, steps=2, sigma=1.0, alpha=0.1)
    assert made == ("t", 2, Noise(1.0), Settings(3, alpha=0.1))
    for given, told in (({"noise": Noise()}, "noise"), ({"beta": 1}, "beta")):
        with pytest.raises(TypeError, match=told):
            composed(training="t", size=3, **given)


def test_rules_of_fields_are_the_factorys():
    with pytest.raises(UsageError, match=r"^composed.sigma=-1: use numbers from 0 on$"):
        composed(training="t", size=3, sigma=-1)
    assert rules_of(composed).keys() == {"steps", "sigma", "kind", "size", "seed", "alpha"}
    assert classes_of(composed) == (Noise, Settings)
    assert plain_factory(partial(partial(composed, sigma=1.0), sigma=2.0)) == (
        composed,
        {"sigma": 2.0},
    )


def test_a_check_without_a_call_knows_the_fields_too():
    check_keywords(composed, {"size": 3})
    with pytest.raises(UsageError, match=r"^composed.sigma=-1: use numbers from 0 on$"):
        check_keywords(composed, {"size": 3, "sigma": -1})


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


def test_a_dataclass_checks_its_fields_as_keywords():
    @dataclass(frozen=True)
    class Even:
        size: int

        def __post_init__(self):
            if self.size % 2:
                raise UsageError(key="size", value=self.size, allowed="use even numbers")

    @grouped(even=Even)
    def made(*, even: Even) -> None:
        raise AssertionError("no check of keywords calls the factory")

    check_keywords(made, {"size": 2})
    with pytest.raises(UsageError, match=r"^size=3: use even numbers$"):
        check_keywords(made, {"size": 3})


def test_advice_is_a_sentence():
    assert one_of(("a",)).advice == "use 'a'"
    assert one_of(("a", "b")).advice == "choose one of 'a', 'b'"
    assert SHARE.advice == "use numbers from 0 to 1"
