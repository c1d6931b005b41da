"""Errors carry their parts, and a section of a config puts its name in front of the key."""

import pickle
import re

import numpy as np
import pytest

from jaxfed.errors import BeyondMemory, UsageError, section


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (UsageError("no client has a label"), "no client has a label"),
        (UsageError(key="mu", value=-1, allowed="use 0"), "mu=-1: use 0"),
        (
            UsageError(key="mu", owner="fedprox", value="a", allowed="use 0"),
            "fedprox.mu='a': use 0",
        ),
        (UsageError("missing", key="config.rounds"), "config.rounds: missing"),
        (UsageError("too many", key="k", value=None, allowed="use 3"), "k=None: too many; use 3"),
        (UsageError(key="k", value=["a\nb"], allowed="use 3"), r"k=['a\nb']: use 3"),
    ],
)
def test_the_text_is_made_of_the_parts(error, text):
    assert str(error) == text
    again = pickle.loads(pickle.dumps(error))  # from another process
    assert (str(again), type(again)) == (text, type(error))


def test_a_long_value_is_shortened():
    error = UsageError(key="examples", value=np.zeros((30, 30)), allowed="use a pair")
    assert "\n" not in str(error)
    assert re.fullmatch(r"examples=array\(\[.*\.\.\.: use a pair", str(error))
    assert len(str(error)) < 500


def test_a_kind_of_error_has_parts_too():
    error = BeyondMemory("too large", key="training.epochs", value=1)
    assert str(error) == "training.epochs=1: too large"
    assert repr(error) == "BeyondMemory('training.epochs=1: too large')"


@pytest.mark.parametrize(
    ("raised", "keys", "key"),
    [
        ({"key": "mu", "owner": "fedprox"}, ("mu",), "config.mine.mu"),
        ({"key": "mu"}, ("mu",), "config.mine.mu"),
        ({"key": "nu", "owner": "fedprox"}, ("mu",), "nu"),
        ({"key": "config.fedprox.mu"}, ("mu",), "config.fedprox.mu"),
        ({"key": "number"}, {"number": "num_labeled"}, "config.mine.num_labeled"),
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


def test_the_innermost_section_counts():
    with (
        pytest.raises(UsageError) as caught,
        section("config.outer", ("mu",)),
        section("config.inner", ("mu",)),
    ):
        raise UsageError(key="mu", value=1, allowed="use 0")
    assert str(caught.value) == "config.inner.mu=1: use 0"
