"""Numbers are judged as devices have them: every float of a config and of the library."""

import inspect

import pytest

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import file, methods
from jaxfed.config.checks.check import check
from jaxfed.config.sections import shared_settings
from jaxfed.data import SCHEMES
from jaxfed.errors import UsageError
from jaxfed.federation.clock.settings import Clock
from jaxfed.learners import LEARNERS
from jaxfed.rules import NOT_NEGATIVE, Rule, check_keywords, rules_of
from jaxfed.training.local.augmentation import compose
from jaxfed.training.pseudo_labels.label_sources import PSEUDO_LABELS
from jaxfed.training.server.server_optimizers import adaptive
from jaxfed.xclp import propagate_labels

INF, ZERO = "becomes inf in float32", "becomes 0 in float32"
BEYOND = {1e39: INF, 1e-320: ZERO, 1e-39: ZERO}  # 1e-39: devices have no subnormal numbers
ADVICE = "use numbers from 1.2e-38 to 3.4e+38 in absolute value, or 0"
NUMBER = Rule(float, "numbers")


def floats(factory):
    """The keywords of a factory that are floats, and their rules."""
    rules, parameters = rules_of(factory), inspect.signature(factory).parameters
    return {
        name: rules.get(name, NUMBER) for name, p in parameters.items() if type(p.default) is float
    }


def is_refused(check, key, value, rule=None):
    """Refused by a line that says what the number becomes, unless the exact number is out of range too."""
    with pytest.raises(UsageError) as refused:
        check()
    line = str(refused.value)
    assert f"{key}={value}: " in line
    assert BEYOND[value] in line or "use numbers" in line


@pytest.mark.parametrize("value", BEYOND)
def test_every_float_of_a_config(value):
    rules = {key: NUMBER for key, one in shared_settings().items() if type(one.default) is float}
    own = {
        f"{prefix}{name}.{key}": rule
        for registry, prefix in ((ALGORITHMS, ""), (LEARNERS, "learner."))
        for name, factory in registry.items()
        for key, rule in floats(factory).items()
        if prefix or key in methods.own_keywords(factory)
    }
    assert min(len(rules), len(own)) > 20
    rate = {"sage.training.learning_rate": rules["training.learning_rate"]}
    for key, rule in (rules | own | rate).items():
        config = file.load("ml_collections_configs/fssl.py", [f"{key}={value}"])
        is_refused(lambda config=config: check(config), f"config.{key}", value, rule)


@pytest.mark.parametrize("value", BEYOND)
def test_every_float_of_the_library(value):
    registries = ALGORITHMS, LEARNERS, PSEUDO_LABELS, SCHEMES
    cases = [
        (lambda f=f, key=key: check_keywords(f, {key: value}), key, rule)
        for registry in registries
        for f in registry.values()
        for key, rule in floats(f).items()
    ]
    assert len(cases) > 50
    for call, key in (
        (lambda: adaptive("adam", value), "learning_rate"),
        (lambda: adaptive("adam", 1.0, beta2=value), "beta2"),
        (lambda: Clock(deadline=value), "deadline"),
        (lambda: propagate_labels([], [], num_classes=2, bit_epsilon=value), "bit_epsilon"),
    ):
        cases.append((call, key, NUMBER))
    for call, key, rule in cases:
        is_refused(call, key, value, rule)


def test_numbers_in_texts_tuples_and_integers():
    with pytest.raises(UsageError, match="rotate:1e-320"):
        compose(("rotate:1e-320",))
    config = file.load("ml_collections_configs/fssl.py", ["training.class_weights=(1, 1e39)"])
    with pytest.raises(UsageError, match=r"class_weights=\(1, 1e\+39\): becomes inf in float32"):
        check(config)
    assert not NOT_NEGATIVE.is_met(10**400)
    assert NOT_NEGATIVE.is_met(0)
