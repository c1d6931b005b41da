"""Numbers are judged as devices have them: every float of a config and of the library."""

import pytest

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import file
from jaxfed.config.check import check
from jaxfed.config.sections import shared_settings
from jaxfed.data import SCHEMES
from jaxfed.errors import UsageError
from jaxfed.federation.clock import Clock
from jaxfed.federation.method import checked, method_settings, plain
from jaxfed.learners import LEARNERS
from jaxfed.settings import NotNegative, check_each, is_allowed, settings_of
from jaxfed.training.aggregate import adaptive
from jaxfed.training.local.augmentation import compose
from jaxfed.training.pseudo_labels.label_sources import PSEUDO_LABELS
from jaxfed.xclp import propagate_labels

INF, ZERO = "becomes inf in float32", "becomes 0 in float32"
BEYOND = {1e39: INF, 1e-320: ZERO, 1e-39: ZERO}  # 1e-39: devices have no subnormal numbers


def floats(factory):
    """The names of a factory's keywords that are floats."""
    is_method = hasattr(plain(factory), "declaration")
    known = method_settings(factory) if is_method else settings_of(factory)
    return [name for name, one in known.items() if type(one.default) is float]


def is_refused(check, key, value):
    """Refused by a line that says what the number becomes, unless the exact number is out of range too."""
    with pytest.raises(UsageError) as refused:
        check()
    line = str(refused.value)
    assert f"{key}={value}: " in line
    assert BEYOND[value] in line or "use numbers" in line


@pytest.mark.parametrize("value", BEYOND)
def test_every_float_of_a_config(value):
    shared = [key for key, one in shared_settings().items() if type(one.default) is float]
    own = [
        f"{prefix}{name}.{key}"
        for registry, prefix in ((ALGORITHMS, ""), (LEARNERS, "learner."))
        for name, factory in registry.items()
        for key in floats(factory)
    ]
    assert min(len(shared), len(own)) > 20
    for key in (*shared, *own, "sage.training.learning_rate"):
        config = file.load("ml_collections_configs/fssl.py", [f"{key}={value}"])
        is_refused(lambda config=config: check(config), f"config.{key}", value)


def check_one(factory, key, value):
    if hasattr(plain(factory), "declaration"):
        checked(factory, {key: value})
    else:
        check_each(settings_of(factory), {key: value}, "owner")


@pytest.mark.parametrize("value", BEYOND)
def test_every_float_of_the_library(value):
    registries = ALGORITHMS, LEARNERS, PSEUDO_LABELS, SCHEMES
    cases = [
        (lambda f=f, key=key: check_one(f, key, value), key)
        for registry in registries
        for f in registry.values()
        for key in floats(f)
    ]
    assert len(cases) > 50
    for call, key in (
        (lambda: adaptive("adam", value), "learning_rate"),
        (lambda: adaptive("adam", 1.0, beta2=value), "beta2"),
        (lambda: Clock(seconds_per_round=value), "seconds_per_round"),
        (lambda: propagate_labels([], [], num_classes=2, bit_epsilon=value), "bit_epsilon"),
    ):
        cases.append((call, key))
    for call, key in cases:
        is_refused(call, key, value)


def test_numbers_in_texts_tuples_and_integers():
    with pytest.raises(UsageError, match="rotate:1e-320"):
        compose(("rotate:1e-320",))
    assert not is_allowed(10**400, NotNegative)
    assert is_allowed(0, NotNegative)
