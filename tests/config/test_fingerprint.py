"""Which keys a method sees: what a sweep may leave out goes by it."""

import pytest

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import file as config_file
from jaxfed.config import methods
from jaxfed.config.check import keys_seen_by, seen_by
from jaxfed.errors import UsageError
from jaxfed.federation.method import method

DIGITS, TRAINING = "ml_collections_configs/xclp_digits.py", "ml_collections_configs/fedavg_xclp.py"
TRAINED = (
    *("fedavg", "fedavg_xclp", "fedavg_xclp_prototypes", "fedavg_per_client_lp", "fedavg_network"),
    *("fedsem", "fedmatch", "protofssl"),
)
ONE_SHOT = ("xclp", "per_client_lp", "pooled_lp", "client_knn")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        # Baselines follow XCLP by reference, in alpha and not in L.
        ("xclp.alpha=0.5", {"xclp", "per_client_lp", "pooled_lp"}),
        ("xclp.num_bits=64", {"xclp"}),
        ("per_client_lp.alpha=0.5", {"per_client_lp"}),
        ("training.learning_rate=0.3", set()),
        ("federation.num_clients=3", set(ONE_SHOT)),
        ("seed=1", set(ONE_SHOT)),
        ("dataset.train_size=100", set(ONE_SHOT)),
        ("execution.workers=1", set(ONE_SHOT)),  # what it costs is a result
    ],
)
def test_methods_that_label_in_one_shot(override, expected):
    before, after = config_file.load(DIGITS), config_file.load(DIGITS, [override])
    assert {name for name in ONE_SHOT if seen_by(before, name) != seen_by(after, name)} == expected


def test_a_registered_method_without_training_may_have_many_rounds(monkeypatch):
    """Only its algorithm knows; what it trains, `training` does not reach."""
    mine = method(takes=("num_classes",))(lambda *, num_classes, rate=0.1: None)
    monkeypatch.setitem(ALGORITHMS, "mine", mine)
    config = config_file.load(DIGITS, ("algorithm=mine", "baselines=client_knn"))
    assert "rounds" in keys_seen_by(config, "mine")
    assert "rounds" not in keys_seen_by(config, "client_knn")
    assert not any(key.startswith("training.") for key in seen_by(config, "mine"))
    with pytest.raises(UsageError, match=r"'mine' trains no model"):
        methods.check_trains(config, "mine")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("xclp.num_bits=64", {"fedavg_xclp", "fedavg_xclp_prototypes"}),
        ("xclp.alpha=0.5", {"fedavg_xclp", "fedavg_xclp_prototypes", "fedavg_per_client_lp"}),
        ("fedmatch.l1_weight=1.0", {"fedmatch"}),
        ("fedavg.training.epochs=2", {"fedavg"}),
        ("fedavg.training.epochs=5", set()),  # as many as it has without
        ("pseudo_label.confidence=logits", set(TRAINED) - {"fedavg", "fedmatch", "protofssl"}),
        ("training.strong_augmentation=('translate:1',)", {"fedmatch"}),  # two views
        ("training.batches=joint", set(TRAINED) - {"fedavg", "protofssl"}),
        ("training.learning_rate=0.3", set(TRAINED)),
        ("rounds=7", set(TRAINED)),
    ],
)
def test_methods_that_train(override, expected):
    before, after = config_file.load(TRAINING), config_file.load(TRAINING, [override])
    assert {name for name in TRAINED if seen_by(before, name) != seen_by(after, name)} == expected


AUGMENTED = ("protofssl.targets=xclp", "pseudo_label.augmented_features=true")
NEAR = ("near.algorithm=fedprox", "near.training.epochs=2")
LEARNED = "preprocessing.kind=federated_features"


@pytest.mark.parametrize(
    ("config", "given", "name", "override", "is_seen"),
    [
        # A graph of augmented points counts for a method that trains without views, too.
        (TRAINING, AUGMENTED, "protofssl", "training.augmentation=('translate:1',)", True),
        (TRAINING, AUGMENTED[:1], "protofssl", "training.augmentation=('translate:1',)", False),
        # Features of a trained model make its training count.
        (DIGITS, (LEARNED,), "client_knn", "training.epochs=2", True),
        (DIGITS, (), "client_knn", "training.epochs=2", False),
        # Settings to choose from count where there is a choice.
        (f"{DIGITS}:tuned", (), "client_knn", "selection.measure=balanced_accuracy", True),
        (f"{DIGITS}:tuned", (), "network", "selection.measure=balanced_accuracy", False),
        # A variant sees what its own section and its algorithm's have.
        (TRAINING, NEAR, "near", "fedprox.mu=0.5", True),
        (TRAINING, NEAR, "near", "training.momentum=0.5", True),
        (TRAINING, NEAR, "near", "fedavg.training.momentum=0.5", False),
        # ProtoFSSL sees XCLP's settings where it labels by them.
        ("protofssl.py", ("protofssl.targets=helpers",), "protofssl", "xclp.num_bits=64", False),
        ("protofssl.py", ("protofssl.targets=xclp",), "protofssl", "xclp.num_bits=64", True),
        # Networks at clients read `training`.
        ("fedct.py", ("learner.name=network",), "fedct", "training.learning_rate=0.5", True),
        ("fedct.py", (), "fedct", "training.learning_rate=0.5", False),
        ("fedct.py", (), "fedct", "learner.decision_tree.max_depth=3", True),
        ("fedct.py", (), "fedct", "learner.random_forest.num_trees=3", False),
        # No result depends on how long a network's server waits.
        (DIGITS, (), "xclp", "deployment.deadline=5", False),
    ],
)
def test_what_one_method_sees(config, given, name, override, is_seen):
    before = config_file.load(config, given)
    after = config_file.load(config, [*given, override])
    assert (seen_by(before, name) != seen_by(after, name)) == is_seen
