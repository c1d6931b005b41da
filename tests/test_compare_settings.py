"""The comparison of settings notices an argument, a config and a refusal that differ, and nothing else."""

import dataclasses
from functools import partial

import numpy as np
import pytest
from compare_settings import Description, compare, flat_arguments
from wrong_values import wrong_values


@dataclasses.dataclass
class Settings:
    """Two settings."""

    steps: int = 5
    rate: float = 0.1


def closed_over(value):
    return lambda x: x + value


def record(*, rate=0.1, weights=(1.0, 2.0), refused=("check", "a line"), seed=0):
    description = Description()
    arguments = flat_arguments(
        {
            "settings": Settings(rate=rate),
            "loss": partial(closed_over(np.array(weights, np.float32)), x=seed),
        }
    )
    point = {"config": {"seed": seed}, "left out": [], "methods": {}}
    point["methods"]["fedavg"] = {"calls": [description.of(arguments)]}
    return {
        "only": "",
        "base": {"rounds": 3},
        "points": {"one.py": point, "one.py:variant": {"same": "one.py"}},
        "objects": description.stored,
        "refused": {"one.py a=1": list(refused)},
    }


def differences(old, new):
    return [text for counts, text in compare(old, new) if counts]


def test_equal_records_do_not_differ():
    assert differences(record(), record()) == []


def test_fields_of_settings_are_arguments():
    alone = {"steps": 5, "rate": 0.1, "other": "x"}
    assert flat_arguments({"settings": Settings(), "other": "x"}) == alone


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"rate": 0.2}, "calls.0.rate: 0.1 became 0.2"),
        ({"rate": 1}, "calls.0.rate: 0.1 became 1"),
        ({"weights": (1.0, 2.5)}, "calls.0.loss.partial.closure.value.crc32"),
        ({"seed": 1}, "seed: 0 became 1"),
        ({"refused": ("accepted", "")}, "1 values that OLD alone refuses"),
    ],
)
def test_what_differs_is_named(changed, line):
    assert any(line in text for text in differences(record(), record(**changed)))


def test_another_text_or_a_new_refusal_is_no_difference():
    assert differences(record(), record(refused=("load", "another line"))) == []
    assert differences(record(refused=("accepted", "")), record()) == []


def test_wrong_values_are_many_and_different():
    names = [(spec, overrides, repr(assigned)) for spec, overrides, assigned in wrong_values()]
    assert len(set(names)) > 4000
