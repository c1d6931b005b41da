"""Declarations of methods: settings from hints, dataclasses from keywords, needs, and what they refuse."""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import pytest

from jaxfed.errors import UsageError
from jaxfed.federation.method import (
    EVERYWHERE,
    checked,
    completed,
    declared,
    method,
    method_settings,
)
from jaxfed.registry import Registry
from jaxfed.settings import REQUIRED, Count, NotNegative, Share, check


@dataclass(frozen=True)
class Noise:
    """Noise.

    Attributes:
        sigma: its deviation.
    """

    sigma: NotNegative = 0.0
    kind: Literal["normal", "laplace"] = "normal"
    seed: int = 0

    def __post_init__(self):
        check(self)
        if self.kind == "laplace" and not self.sigma:
            raise UsageError("has none", key="sigma", value=self.sigma, allowed="use 0.1")


def not_both(given):
    if given.share and given.sigma:
        raise UsageError(f"sigma={given.sigma}", key="share", value=given.share, allowed="use 0")


@method(
    takes=("learner", "num_classes"),
    fields={"noise": Noise},
    without=("seed",),
    together=not_both,
    pseudo_label=lambda given: "none" if given.share else "xclp",
    labels_at=EVERYWHERE,
)
def mine(*, learner, num_classes: int, steps: Count, share: Share = 0.0, noise: Noise):
    """Mine.

    Args:
        steps: of a round.
    """
    return learner, num_classes, steps, share, noise


GIVEN = {"learner": "trees", "num_classes": 2}


def test_settings_are_keywords_and_fields():
    found = method_settings(mine)
    assert {name: one.default for name, one in found.items()} == {
        **{"steps": REQUIRED, "share": 0.0},
        **{"sigma": 0.0, "kind": "normal"},
    }
    assert (found["steps"].meaning, found["sigma"].meaning) == ("of a round.", "its deviation.")
    assert found["steps"].allowed == "integers from 1 on"
    assert mine(**GIVEN, steps=3) == ("trees", 2, 3, 0.0, Noise())
    assert mine(**GIVEN, steps=3, sigma=1.0)[-1] == Noise(1.0)
    laplace = partial(mine, sigma=2.0, kind="laplace")
    assert method_settings(laplace)["sigma"].default == 2.0
    assert completed(laplace, {"steps": 4}) == {"steps": 4, "share": 0.0, **laplace.keywords}


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"steps": 0}, "mine.steps=0: use integers from 1 on"),
        ({"steps": 2.0}, "mine.steps=2.0: use integers from 1 on"),
        ({"sigma": -1}, "mine.sigma=-1: use numbers from 0 on"),
        ({"kind": "norml"}, "mine.kind='norml': choose one of 'normal', 'laplace', did you mean"),
        ({"kind": "laplace"}, "sigma=0.0: has none; use 0.1"),
        ({"share": 0.5, "sigma": 1}, "share=0.5: sigma=1; use 0"),
    ],
)
def test_a_check_says_what_a_call_says(given, line):
    for call in (lambda **all_: checked(mine, all_), mine):
        with pytest.raises(UsageError) as refused:
            call(**GIVEN, **{"steps": 1, **given})
        assert str(refused.value).startswith(line)


def test_needs_depend_on_keywords():
    assert [
        declared(mine).of(completed(mine, {"share": share})).pseudo_label for share in (0, 1)
    ] == ["xclp", "none"]
    assert declared(partial(mine, share=1)) is declared(mine)
    assert (declared(mine).trains, declared(mine).has_learners) == (True, True)


def test_ingredients_are_those_of_the_signature():
    def learns(*, steps=3, learner, public, num_classes): ...

    line = r"method 'learns' takes .*@method\(takes=\('num_classes', 'learner', 'public'\)\)"
    with pytest.raises(UsageError, match=line):
        method(takes=("learner",))(learns)
    made = method(takes=("learner", "public", "num_classes"))(learns)
    for factory in (made, partial(made, steps=2)):
        assert method_settings(factory).keys() == {"steps"}


@pytest.mark.parametrize("is_late", [True, False])
def test_a_registered_method_has_a_declaration(is_late):
    def mine(*, training):
        raise AssertionError

    registry = Registry("method", {})
    registry.register("mine")(mine)
    if is_late:
        method()(mine)
    with pytest.raises(UsageError, match=r"'mine' has no declaration; write @method"):
        declared(registry["mine"])
