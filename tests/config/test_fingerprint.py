"""Which keys a method sees: what a sweep may leave out goes by it."""

from dataclasses import replace

import pytest
from threat_model import table

from jaxfed.algorithms import ALGORITHMS
from jaxfed.algorithms.fedavg import fedavg
from jaxfed.config import file as config_file
from jaxfed.config import methods
from jaxfed.config.reading import disclosures, keys_seen_by, seen_by
from jaxfed.errors import UsageError
from jaxfed.federation.method import method
from jaxfed.training.pseudo_labels.pseudo_label import labeled_only
from jaxfed.xclp.settings import disclosure
from jaxfed.xclp.settings.parameters import (
    HAMMING,
    PROJECTIONS,
    ROW_SUMS,
    Parameters,
)

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


def test_a_registered_method_without_training_may_have_many_rounds(monkeypatch):
    """Only its algorithm knows; what it trains, `training` does not reach."""
    mine = method(takes=("num_classes",))(lambda *, num_classes, rate=0.1: None)
    monkeypatch.setitem(ALGORITHMS, "mine", mine)
    config = config_file.load(DIGITS, ("algorithm=mine", "baselines=client_knn"))
    assert "rounds" in keys_seen_by(config, "mine")
    assert "rounds" not in keys_seen_by(config, "client_knn")
    assert not any(key.startswith("training.") for key in seen_by(config, "mine"))
    for name, line in (
        ("mine", "config.algorithm='mine': 'mine' takes no training; use"),
        ("client_knn", "config.baselines=.*: 'client_knn' takes no training; use methods that"),
    ):
        with pytest.raises(UsageError, match=line):
            methods.check_trains(config, name)


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
        ("training.strong_augmentation=('translate:1',)", {"fedmatch"}),  # two views
        ("training.batches=joint", set(TRAINED) - {"fedavg", "protofssl"}),
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

    @method()
    def taking_later(*, training):
        def round(state, cohort, key):
            return training.pseudo_labels["xclp"]

        return fedavg(
            training=replace(training, labels=lambda *_: {"none": labeled_only})
        )._replace(round=round)

    monkeypatch.setitem(ALGORITHMS, "taking_later", taking_later)
    before = config_file.load(TRAINING)
    for override in ("xclp.num_bits=64", "pseudo_label.confidence=logits"):
        after = config_file.load(TRAINING, [override])
        assert seen_by(before, "taking_later") != seen_by(after, "taking_later")


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
        (f"{DIGITS}:tuned", (), "client_knn", "selection.folds=4", True),
        (f"{DIGITS}:tuned", (), "network", "selection.folds=4", False),
        # A variant sees what its own section and its algorithm's have.
        (TRAINING, NEAR, "near", "fedprox.mu=0.5", True),
        (TRAINING, NEAR, "near", "training.epochs=3", False),
        (TRAINING, NEAR, "near", "training.momentum=0.5", True),
        (TRAINING, NEAR, "near", "fedavg.training.momentum=0.5", False),
        # ProtoFSSL sees XCLP's settings where it labels by them.
        ("protofssl.py", ("protofssl.targets=helpers",), "protofssl", "xclp.num_bits=64", False),
        ("protofssl.py", ("protofssl.targets=xclp",), "protofssl", "xclp.num_bits=64", True),
        # Networks at clients read `training`.
        ("fedct.py", ("learner.name=network",), "fedct", "training.learning_rate=0.5", True),
        # No result depends on how long a network's server waits.
        (DIGITS, (), "xclp", "deployment.deadline=5", False),
    ],
)
def test_what_one_method_sees(config, given, name, override, is_seen):
    before = config_file.load(config, given)
    after = config_file.load(config, [*given, override])
    assert (seen_by(before, name) != seen_by(after, name)) == is_seen


def test_a_run_over_protocols_says_who_learns_what():
    """Of `hamming="masked"` alone: labels and codes are not hidden, and the line says how they would be."""
    learned, closing, *_ = disclosures(config_file.load("xclp_digits", ["xclp.hamming=masked"]))
    assert learned.startswith("xclp: the server learns the angles between all points, and ")
    assert "every client's labels; together with one client, every client's codes, and " in learned
    assert "hyperplanes follow from the config" in learned
    for remedy in ("hamming='ot' or 'phe'", "projection='group_secret'", "row_sums='masked'"):
        assert f"xclp.{remedy}" in closing


MASKED = ("xclp.row_sums=masked", "xclp.influence=columns")


@pytest.mark.parametrize(
    ("config", "overrides", "methods"),
    [
        ("xclp_digits", [], []),
        ("xclp_digits", [*MASKED, "baselines="], ["xclp", "xclp"]),
        ("fedavg_xclp:smoke", ["xclp.hamming=ot", *MASKED], ["fedavg_xclp"] * 2),
        ("fedavg_xclp:smoke", ["xclp.hamming=ot", "algorithm=fedavg", "baselines="], []),
    ],
)
def test_lines_are_of_the_methods_that_run_protocols(config, overrides, methods):
    lines = disclosures(config_file.load(config, overrides))
    assert [line.partition(":")[0] for line in lines] == methods
    assert all("\n" not in line for line in lines)


HIDING = {
    **{"hamming": "phe", "row_sums": "masked_resilient_signed", "projection": "group_secret"},
    "influence": "columns",
}


def test_nothing_is_left_to_close_where_all_is_hidden():
    keys = [f"xclp.{key}={value}" for key, value in HIDING.items()]
    config = config_file.load("xclp_digits", [*keys, "baselines="])
    learned, closing = disclosures(config)
    assert "a client learns who is near its labeled points" in learned
    assert "to close it: no other setting hides more" in closing


@pytest.mark.parametrize(
    ("key", "value", "server", "client"),
    [
        ("label_matrix", "class_balanced", "", "number of labels of each class"),
        ("client_prior", 1.0, "", "number of labels of each class"),
        ("relative_confidence", True, "largest confidence of each client", "largest of all"),
    ],
)
def test_what_statistics_of_the_cohort_tell_is_said(key, value, server, client):
    settings = {**vars(Parameters(num_classes=2)), **HIDING}
    before, _ = disclosure.lines(settings)
    learned, closing = disclosure.lines({**settings, key: value})
    of_server, _, of_client = learned.partition("; together with one client")
    assert server in of_server
    assert client in of_client
    assert client not in before
    assert f"to close it: xclp.{key}=" in closing


def test_two_settings_tell_a_fact_once():
    settings = {**vars(Parameters(num_classes=2)), **HIDING}
    learned, _ = disclosure.lines(
        {**settings, "label_matrix": "class_balanced", "client_prior": 1.0}
    )
    assert learned.count("number of labels of each class") == 1


def test_the_threat_models_table_is_the_one_of_the_lines():
    told = [[cell.replace("`", "") for cell in row] for row in table("who learns what")]
    assert told == disclosure.table()


@pytest.mark.parametrize(
    ("key", "allowed"),
    [
        ("hamming", HAMMING),
        ("row_sums", ROW_SUMS),
        ("projection", PROJECTIONS),
        ("compared_by", ("random", "neighbors")),
    ],
)
def test_every_value_of_a_setting_has_one_row(key, allowed):
    values = [value for row in disclosure.ROWS if row.key == key for value in row.values]
    assert sorted(values) == sorted(allowed)
