"""Methods are checked by what they declare: it is what they do, and no method is built for it."""

import functools

import numpy as np
import optax
import pytest
from small_training import double, training_of

from jaxfed.algorithms import ALGORITHMS
from jaxfed.algorithms.protofssl.settings import PrototypeTask
from jaxfed.config import assembly, check, file
from jaxfed.errors import UsageError
from jaxfed.federation.method import completed, declared
from jaxfed.learners import LEARNERS
from jaxfed.training.aggregate import uniformly
from jaxfed.training.local.batches import Batches
from jaxfed.training.local.losses import focal_loss
from jaxfed.training.pseudo_labels.pseudo_label import labeled_only
from jaxfed.training.round.round import server_optimizer
from jaxfed.training.specification import (
    BY_OWN_LABELS,
    source_names,
)

TRAINING = "ml_collections_configs/fedavg_xclp.py:smoke"
SERVER = np.zeros((3, 4), np.float32), np.zeros(3, np.int32)
CASES = [
    *((name, {}) for name, f in ALGORITHMS.items() if "training" in declared(f).takes),
    ("fedavg", {"pseudo_label": "network"}),
    ("protofssl", {"targets": "xclp"}),
]


VALUES = {
    **{"augment": double, "strong_augment": double, "pointwise": focal_loss},
    **{
        "batch_statistics": "static",
        "weighting": uniformly,
        "aggregate": server_optimizer(optax.sgd(0.5)),
    },
}


class Watched(dict):
    def __init__(self):
        super().__init__(dict.fromkeys(source_names(), labeled_only))
        self.taken = set()

    def __getitem__(self, name):
        self.taken.add(name)
        return super().__getitem__(name)


def needed(name, given):
    return declared(ALGORITHMS[name]).of(completed(ALGORITHMS[name], given))


def built(name, given, **changes):
    sources = Watched()
    views = {"augment", "strong_augment"}.difference(needed(name, given).unread)
    training = training_of(
        Batches("joint", size=4, epochs=1),
        **dict.fromkeys(views, double) | changes,
        labels=lambda model, execution: sources,
    )
    asked = declared(ALGORITHMS[name]).takes
    others = {"task": PrototypeTask(num_classes=3, max_labels=2), "participation": None}
    own = {key: value for key, value in others.items() if key in asked}
    ALGORITHMS[name](training=training, **own, **given)
    return sources.taken


def refuses(name, given, **changes):
    try:
        built(name, given, **changes)
    except UsageError:
        return True
    return False


@pytest.mark.parametrize(("name", "given"), CASES)
def test_methods_do_what_they_declare(name, given):
    own = needed(name, given)
    at_clients, at_server = ({"server_examples": where} for where in (None, SERVER))
    works = at_clients if "clients" in own.labels_at else at_server
    assert built(name, given, **works) == {"none", own.pseudo_label}
    assert refuses(name, given, **at_clients) == ("clients" not in own.labels_at)
    can_be_at_server = "server" in own.labels_at and own.pseudo_label not in BY_OWN_LABELS
    assert refuses(name, given, **at_server) != can_be_at_server
    assert refuses(name, given, **works, strong_augment=None) == own.two_views
    assert not refuses(name, given, **works, **VALUES)  # `unread` ones are ignored


@pytest.mark.parametrize(
    ("config", "overrides"),
    [
        (TRAINING, ["baselines=fedprox,dp_fedavg"]),
        ("labels_at_server.py", []),
        ("xclp_digits.py:tuned", []),
        ("fedct.py:smoke", []),
    ],
)
def test_nothing_is_built_for_the_check_of_a_config(monkeypatch, config, overrides):
    for room, name in ((assembly.Ingredients, "of"), (assembly, "make_model")):
        monkeypatch.setattr(room, name, lambda *_, **__: pytest.fail("something is built"))
    for registry in (ALGORITHMS, LEARNERS):
        for name in registry:
            monkeypatch.setitem(registry, name, unbuilt(registry[name]))
    check.check(file.load(config, overrides))


def unbuilt(factory):
    """The factory with its settings; a call fails."""

    @functools.wraps(factory)
    def failing(**keywords):
        pytest.fail(f"{factory} is called")

    return failing
