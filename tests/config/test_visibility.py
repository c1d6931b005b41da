"""Which keys a method sees: what a sweep may leave out goes by it."""

from dataclasses import replace

import pytest

from jaxfed.algorithms import ALGORITHMS
from jaxfed.algorithms.fedavg import fedavg
from jaxfed.config import file as config_file
from jaxfed.config.visibility import seen_by
from jaxfed.training.pseudo_label import labeled_only

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
        ("client_knn.num_neighbors=3", {"client_knn"}),
        ("training.learning_rate=0.3", set()),
        ("baselines=client_knn", set()),
        ("paper_table=xclp/1", set()),
        ("selection.folds=7", set()),  # nothing is chosen
        ("federation.num_clients=3", set(ONE_SHOT)),
        ("seed=1", set(ONE_SHOT)),
        ("cohort_size=3", set(ONE_SHOT)),
        ("dataset.train_size=100", set(ONE_SHOT)),
        ("num_repeats=1", set(ONE_SHOT)),
        ("execution.workers=1", set(ONE_SHOT)),  # what it costs is a result
    ],
)
def test_methods_that_label_in_one_shot(override, expected):
    before, after = config_file.load(DIGITS), config_file.load(DIGITS, [override])
    assert {name for name in ONE_SHOT if seen_by(before, name) != seen_by(after, name)} == expected


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("xclp.num_bits=64", {"fedavg_xclp", "fedavg_xclp_prototypes"}),
        ("xclp.alpha=0.5", {"fedavg_xclp", "fedavg_xclp_prototypes", "fedavg_per_client_lp"}),
        ("client_knn.num_neighbors=3", set()),
        ("fedmatch.l1_weight=1.0", {"fedmatch"}),
        ("fedavg.training.epochs=2", {"fedavg"}),
        ("fedavg.training.epochs=5", set()),  # as many as it has without
        ("pseudo_label.confidence=logits", set(TRAINED) - {"fedavg", "fedmatch", "protofssl"}),
        ("training.learning_rate=0.3", set(TRAINED)),
        ("model.hidden=(8,)", set(TRAINED)),
        ("rounds=7", set(TRAINED)),
        ("evaluate_test=true", set(TRAINED)),
    ],
)
def test_methods_that_train(override, expected):
    before, after = config_file.load(TRAINING), config_file.load(TRAINING, [override])
    assert {name for name in TRAINED if seen_by(before, name) != seen_by(after, name)} == expected


def test_a_method_that_takes_its_labels_later_sees_all_that_finds_labels(monkeypatch):
    """What it will take cannot be known when it is made, so nothing may be left out."""

    def taking_later(*, training):
        def round(state, cohort, key):
            return training.pseudo_labels["xclp"]

        return fedavg(training=replace(training, pseudo_labels={"none": labeled_only()}))._replace(
            round=round
        )

    monkeypatch.setitem(ALGORITHMS, "taking_later", taking_later)
    before = config_file.load(TRAINING)
    for override in ("xclp.num_bits=64", "pseudo_label.confidence=logits"):
        after = config_file.load(TRAINING, [override])
        assert seen_by(before, "taking_later") != seen_by(after, "taking_later")


def test_features_of_a_trained_model_make_its_training_count():
    learned = "preprocessing.kind=federated_features"
    before, after = (
        seen_by(config_file.load(DIGITS, [learned, f"training.epochs={epochs}"]), "client_knn")
        for epochs in (1, 2)
    )
    assert before != after


def test_settings_to_choose_from_count_where_there_is_a_choice():
    configs = [
        config_file.load(f"{DIGITS}:tuned", [f"selection.folds={folds}"]) for folds in (4, 5)
    ]
    assert seen_by(configs[0], "client_knn") != seen_by(configs[1], "client_knn")
    given = config_file.load(DIGITS)
    assert seen_by(given, "network") == seen_by(configs[0], "network")  # nothing to choose there


def test_a_variant_sees_what_its_own_section_and_its_algorithms_say():
    near = ("near.algorithm=fedprox", "near.training.epochs=2")
    before = config_file.load(TRAINING, near)
    for override, changes in (
        ("fedprox.mu=0.5", True),
        ("training.epochs=3", False),
        ("training.momentum=0.5", True),
        ("fedavg.training.momentum=0.5", False),
    ):
        after = config_file.load(TRAINING, [*near, override])
        assert (seen_by(before, "near") != seen_by(after, "near")) == changes


def test_protofssl_sees_xclps_settings_where_it_labels_by_them():
    for targets, is_seen in (("helpers", False), ("xclp", True)):
        given = f"protofssl.targets={targets}"
        before = config_file.load("protofssl.py", [given])
        after = config_file.load("protofssl.py", [given, "xclp.num_bits=64"])
        assert (seen_by(before, "protofssl") != seen_by(after, "protofssl")) == is_seen
