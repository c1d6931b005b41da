import sys
from pathlib import Path

import pytest
from ml_collections import ConfigDict

from jaxfed.config import base
from jaxfed.config import file as config_file
from jaxfed.config.checks import check
from jaxfed.config.data.feasibility import check_presence
from jaxfed.config.data.simulation import Simulation
from jaxfed.errors import UsageError

DIGITS = "ml_collections_configs/xclp_digits.py"


def digits(*overrides: str) -> ConfigDict:
    return config_file.load(DIGITS, overrides)


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("seed=3", "seed", 3),
        ("xclp.alpha=0.5", "xclp.alpha", 0.5),
        ("xclp.alpha=1", "xclp.alpha", 1.0),
        ("xclp.tolerance=1e-4", "xclp.tolerance", 1e-4),
        ("xclp.relative_confidence=true", "xclp.relative_confidence", True),
        ("xclp.relative_confidence=False", "xclp.relative_confidence", False),
        ("dataset.root=/a=b", "dataset.root", "/a=b"),
        ("dataset.root=", "dataset.root", ""),
        ("baselines=", "baselines", ()),
        ("baselines=client_knn", "baselines", ("client_knn",)),
        ("baselines=client_knn, pooled_lp", "baselines", ("client_knn", "pooled_lp")),
        ("baselines=('client_knn',)", "baselines", ("client_knn",)),
        ("federation.table=((1, 0), (0, 1))", "federation.table", ((1, 0), (0, 1))),
        ("training.class_weights=(1, 2.5)", "training.class_weights", (1, 2.5)),
        ("training.class_weights=1, 2.5", "training.class_weights", (1, 2.5)),
        ("training.augmentation=flip,cutout:3", "training.augmentation", ("flip", "cutout:3")),
        (
            "selection.candidates.xclp.num_bits=32,64",
            "selection.candidates.xclp.num_bits",
            (32, 64),
        ),
        (
            "selection.candidates.xclp.alpha=(0, 0.5)",
            "selection.candidates.xclp.alpha",
            (0.0, 0.5),
        ),
    ],
)
def test_override_is_read_as_the_type_that_stands_there(override, key, value):
    config = digits(override)
    *sections, name = key.split(".")
    for section in sections:
        config = config[section]
    assert config[name] == value
    assert type(config[name]) is type(value)


def test_baselines_follow_xclp_and_can_be_set_alone():
    config = digits("pooled_lp.num_neighbors=7", "xclp.num_neighbors=20", "xclp.alpha=0.9")
    assert config.per_client_lp.to_dict() | {"alpha": 0} == {
        "num_neighbors": 20,
        "alpha": 0,
        "similarity_power": 1.0,
        "label_matrix": "plain",
        "client_prior": 0.0,
        "client_prior_labels": 0.0,
        "select": (),
        "select_measure": "accuracy",
        "confidence": "entropy",
        "relative_confidence": False,
        "tolerance": 1e-6,
        "max_steps": 1000,
    }
    assert config.per_client_lp.alpha == config.pooled_lp.alpha == 0.9
    assert config.pooled_lp.num_neighbors == 7
    assert config.xclp.num_neighbors == 20


@pytest.mark.parametrize(
    ("override", "words"),
    [
        # no such key
        ("sed=3", ("config.sed", "did you mean 'seed'?")),
        ("xclp.alhpa=0.9", ("config.xclp.alhpa", "xclp.alpha")),
        (
            "federation.clients_per_round=3",
            ("config.federation.clients_per_round: unknown key, did you mean 'cohort_size'?",),
        ),
        ("learning_rate=1", ("unknown key, did you mean 'training.learning_rate'?",)),
        ("training.lr=1", ("did you mean 'training.learning_rate'?",)),
        ("num_clients=3", ("config.num_clients", "did you mean 'federation.num_clients'?")),
        ("dirichletalpha=3", ("'federation.dirichlet_alpha'",)),
        ("qqq=3", ("config.qqq: unknown key",)),
        ("seed.x=3", ("config.seed.x: unknown key; config.seed is no section",)),
        (
            "federation.alpha=0.3",
            ("did you mean 'federation.dirichlet_alpha' or 'federation.dirichlet_alpha_rest'?",),
        ),
        ("training.rate=1", ("did you mean 'training.learning_rate' or 'training.server_lear",)),
        (
            "baselines=fedavgg,client_knn,qqq",
            ("'fedavgg' is unknown, did you mean 'fedavg'?; 'qqq' is unknown; use ",),
        ),
        (
            "baselines=fedavgg,xclpp",
            (
                "'fedavgg' is unknown, did you mean 'fedavg'?; 'xclpp' is unknown, did you mean 'xclp'?",
            ),
        ),
        ("baselines=fedavg,fedavg", ("'fedavg' is named twice; name each once",)),
        # a method that is not in the run
        ("dp_fedavg.clip=nan", ("config.dp_fedavg.clip=nan: use numbers above 0",)),
        ("fedprox.mu=-1", ("config.fedprox.mu=-1",)),
        (
            "federation.public_fraction=1",
            ("config.federation.public_fraction=1.0: use numbers from 0",),
        ),
        ("trainng.x=3", ("config.trainng: no such section, did you mean 'training'?",)),
        ("zzz.x=3", ("config.zzz: no such section; sections are ", "dataset", "xclp")),
        ("training.x.y=3", ("config.training.x: no such section",)),
        ("fedprx.mu=3", ("config.fedprx: no such section, did you mean 'fedprox'?",)),
        ("fedprox.muu=3", ("config.fedprox.muu: unknown key, did you mean 'fedprox.mu'?",)),
        (
            "training.lerning_rate=1",
            ("config.training.lerning_rate: unknown key, did you mean 'training.learning_rate'?",),
        ),
        (
            "dataset.zzz=1",
            ("unknown key; the keys of dataset are balanced, client_key, drop, image_size, ",),
        ),
        ("xclp=3", ("config.xclp is a section", "alpha")),
        ("seed", ("config.seed", "--config.seed=VALUE")),
        # not of its type
        ("seed=1.5", ("config.seed=1.5", "an integer")),
        ("seed=", ("config.seed=", "an integer")),
        ("xclp.alpha=high", ("config.xclp.alpha=high", "a number")),
        ("execution.workers=two", ("config.execution.workers=two", "an integer")),
        ("execution.workers=-1", ("config.execution.workers=-1", "0 is none")),
        ("execution.workers=1025", ("config.execution.workers=1025", "from 0 to 1024")),
        ("xclp.key_bits=1024", ("xclp.key_bits=1024", "2048 or 3072")),
        ("xclp.relative_confidence=1", ("config.xclp.relative_confidence=1", "true or false")),
        ("baselines=(1, 2)", ("config.baselines", "a list such as a,b")),
        ("xclp.presence=(1, 2)", ("config.xclp.presence=(1, 2)", "'CLIENT@STAGE'")),
        ("baselines=(", ("config.baselines", "a list such as a,b")),
        ("baselines=(1)", ("config.baselines", "a list such as a,b")),
        (
            "federation.cohort_size=3",
            ("did you mean 'cohort_size' or 'preprocessing.cohort_size'",),
        ),
        # out of range
        ("seed=-1", ("config.seed=-1", "0 to 2147483647")),
        ("xclp.presence=3", ("config.xclp.presence=(3,):", "'CLIENT@STAGE'")),
        ("xclp.presence=3@lunch", ("config.xclp.presence='3@lunch'", "stages setup, hamming")),
        ("xclp.presence=3@sums", ("stage 'sums' needs a protocol in xclp.row_sums",)),
        ("num_repeats=0", ("config.num_repeats=0", "from 1 on")),
        ("rounds=0", ("config.rounds=0",)),
        ("cohort_size=-1", ("config.cohort_size=-1", "0 is all clients")),
        ("cohort_size=11", ("config.cohort_size=11", "at most 10", "num_clients=10")),
        ("algorithm=xlcp", ("config.algorithm='xlcp'", "did you mean 'xclp'?")),
        ("pseudo_label.safeguard=server", ("config.pseudo_label.safeguard=", "'network'")),
        ("pseudo_label.safeguard=network", ("set xclp.confidence='calibrated'",)),
        ("baselines=xclp", ("config.baselines", "is the algorithm already")),
        ("baselines=client_knn,client_knn", ("config.baselines", "is named twice")),
        ("baselines=knn", ("config.baselines", "'client_knn'")),
        ("paper_table=xclp/9", ("config.paper_table='xclp/9'", "'xclp/1'")),
        ("dataset.name=", ("config.dataset.name=''",)),
        ("dataset.train_size=-5", ("config.dataset.train_size=-5",)),
        ("dataset.test_fraction=1", ("config.dataset.test_fraction=1.0", "below 1")),
        ("dataset.test_fraction=nan", ("config.dataset.test_fraction=nan",)),
        ("preprocessing.kind=none", ("config.preprocessing.kind='none'", "'identity'")),
        ("federation.num_clients=0", ("config.federation.num_clients=0", "natural")),
        ("federation.partition=dir", ("config.federation.partition='dir'", "'dirichlet'")),
        ("federation.dirichlet_alpha=0", ("config.federation.dirichlet_alpha=0.0", "above 0")),
        ("federation.dirichlet_alpha=inf", ("config.federation.dirichlet_alpha=inf",)),
        ("federation.classes_per_client=0", ("config.federation.classes_per_client=0",)),
        ("federation.quantity=even", ("'default', 'equal'",)),
        ("federation.quantity_parameter=-1", ("config.federation.quantity_parameter=-1.0",)),
        ("federation.min_size=-1", ("config.federation.min_size=-1",)),
        ("federation.labeled_fraction=1.1", ("config.federation.labeled_fraction=1.1", "0 to 1")),
        ("federation.num_labeled=-1", ("config.federation.num_labeled=-1",)),
        ("federation.labeled_per_class=-1", ("config.federation.labeled_per_class=-1",)),
        ("federation.num_labeled_clients=11", ("at most 10",)),
        ("federation.skew=all", ("config.federation.skew='all'", "'both'")),
        ("sampling=group", ("config.sampling='group'", "'groups'")),
        ("training.class_weights=(1, -2)", ("config.training.class_weights=(1, -2)", "positive")),
        ("training.class_weights=1,a", ("config.training.class_weights", "one positive number a")),
        ("training.local_steps=-1", ("config.training.local_steps=-1",)),
        ("preprocessing.rounds=-1", ("config.preprocessing.rounds=-1",)),
        ("preprocessing.cohort_size=-1", ("config.preprocessing.cohort_size=-1",)),
        ("federation.graph=full", ("'labeled+unlabeled', 'labeled'",)),
        ("federation.left_out_client=10", ("config.federation.left_out_client=10", "at most 9")),
        ("federation.left_out_client=-2", ("config.federation.left_out_client=-2", "-1 is none")),
        # the methods' own
        ("xclp.num_bits=100", ("xclp.num_bits=100", "multiples of 32")),
        ("xclp.alpha=1", ("xclp.alpha=1.0", "0.01 to 0.9999999")),
        ("xclp.hamming=secret", ("xclp.hamming='secret'", "'plaintext'")),
        ("xclp.projection=group_secret", ("xclp.projection='group_secret'", "protocol")),
        ("xclp.row_sums=secret", ("xclp.row_sums='secret'", "'plaintext'")),
        ("client_knn.num_neighbors=0", ("client_knn.num_neighbors=0", "integers from 1 on")),
    ],
)
def test_a_wrong_override_is_one_line_that_names_it(override, words):
    with pytest.raises(UsageError) as caught:
        check.check(digits(override))
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["num_labeled=9999"], "config.federation.num_labeled=9999: use 0 to 1438"),
        (["partition=natural"], "config.federation.partition='natural': needs client_id"),
        (["min_size=200"], "config.federation.min_size=200: 10 clients need 2000"),
        (["labeled_per_class=99"], "config.federation.labeled_per_class=99: 990 labels of class"),
        (
            ["partition=classes_per_client", "num_clients=3"],
            "config.federation.classes_per_client=2: 3 clients cover 6 of 10",
        ),
    ],
)
def test_what_the_data_do_not_have_is_said_by_its_key(overrides, words):
    with pytest.raises(UsageError) as caught:
        Simulation(digits(*(f"federation.{override}" for override in overrides))).check()
    message = str(caught.value)
    assert message.startswith(words)
    assert "\n" not in message


def test_too_few_mask_partners_are_said_before_anything_runs():
    with pytest.raises(UsageError, match=r"config.xclp.mask_partners=2: too few, .* use 6 or more"):
        check.check(digits("xclp.row_sums=masked_resilient", "xclp.mask_partners=2"))


def test_many_repeats_are_no_reason_to_keep_silent(monkeypatch):
    """A million of them would be dealt out for hours before the first round."""
    simulation, dealt = Simulation(digits("num_repeats=1000000")), []
    deal = simulation._federation
    monkeypatch.setattr(simulation, "_federation", lambda *_: dealt.append(1) or deal(*_))
    simulation.check()
    assert 0 < len(dealt) <= 100


def test_two_ways_to_say_how_many_labels():
    with pytest.raises(UsageError, match="num_labeled=5"):
        check.check(digits("federation.num_labeled=5", "federation.labeled_per_class=1"))


def test_a_safeguard_needs_examples_that_nobody_trains_on():
    changed = "pseudo_label.safeguard=network", "xclp.confidence=calibrated"
    with pytest.raises(UsageError, match="validation_fraction above 0"):
        check.check(digits(*changed))
    check.check(digits(*changed, "dataset.validation_fraction=0.1"))


def test_defaults_are_right_and_every_rule_has_one():
    config = base.get_config()
    config.dataset.name = "digits"
    check.check(config)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda config: config.update({"alpha": 0.5}), "config.alpha: unknown key"),
        (lambda config: config.federation.update({"clients": 3}), "federation.num_clients"),
        (lambda config: config.client_knn.update({"k": 3}), "config.client_knn.k: unknown key"),
        (lambda config: config.__delitem__("rounds"), "config.rounds: missing"),
        (lambda config: config.update({"rounds": 2.0}), "config.rounds=2.0"),
        (
            lambda config: config.xclp.update({"alpha": "high"}),
            "config.xclp.alpha='high': use numbers",
        ),
        (
            lambda config: config.xclp.update({"num_bits": 64.0}),
            "config.xclp.num_bits=64.0: use integers",
        ),
        (lambda config: config.pooled_lp.update({"alpha": None}), "config.pooled_lp.alpha=None"),
        (lambda config: config.client_knn.update({"num_neighbors": "5"}), "num_neighbors='5'"),
        (lambda config: config.update({"rounds": True}), "config.rounds=True"),
    ],
)
def test_a_config_file_can_be_wrong_too(change, words):
    config = ConfigDict(digits().to_dict(), type_safe=False)
    change(config)
    with pytest.raises(UsageError) as caught:
        check.check(config)
    assert words in str(caught.value)


def test_a_config_file_imports_modules_of_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "beside_a_config.py").write_text("ROUNDS = 7\n")
    (tmp_path / "a.py").write_text(
        "from jaxfed.config import base\nfrom beside_a_config import ROUNDS\n"
        "def get_config(variant=''):\n"
        "    config = base.get_config()\n    config.rounds = ROUNDS\n    return config\n"
    )
    assert config_file.load(str(tmp_path / "a.py")).rounds == 7


def test_variants():
    assert config_file.load(DIGITS + ":smoke").num_repeats == 2
    assert config_file.load(DIGITS + ":smoke,smoke").num_repeats == 2
    assert config_file.load(DIGITS + ":").num_repeats == 5
    with pytest.raises(UsageError, match=r"smok.*did you mean 'smoke'\?"):
        config_file.load(DIGITS + ":smok")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.py", "x = (\n", "line 1: '(' was never closed"),
        ("a.py", "x = 1\n", "defines no get_config"),
        ("a.py", "get_config = 5\n", "defines no get_config"),
        ("a.py", "def get_config(dataset, variant): pass\n", "get_config(dataset, variant)"),
        ("a.py", "def get_config(): return {}\n", "returned dict"),
        ("a.py", "def get_config(variant=''): pass\n", "returned NoneType"),
        ("a.txt", "x = 1\n", "ends in .py"),
        ("a.py", None, "no such file"),
    ],
)
def test_an_unusable_config_file_is_one_line(name, content, words, tmp_path):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UsageError) as caught:
        config_file.load(str(tmp_path / name))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_part_of_configs_is_none_and_a_variant_needs_a_place():
    parts = Path(base.__file__).parent
    with pytest.raises(UsageError, match=r"get_config\(dataset: str, variant: str\)"):
        config_file.load("_xclp_prediction.py")
    with pytest.raises(UsageError, match=r"get_config\(\).*does not take \('smoke',\)"):
        config_file.load(f"{parts / 'base.py'}:smoke")


def test_a_mistyped_file_is_guessed():
    with pytest.raises(UsageError, match=r"no such file, did you mean 'xclp_digits'\?"):
        config_file.load("ml_collections_configs/xclp_digit.py")
    with pytest.raises(UsageError, match=r"did you mean 'fedct'\?"):
        config_file.load("ml_collections_configs/fedtc.py")
    with pytest.raises(UsageError, match=r"known are audit, fed_isic2019,"):
        config_file.load("ml_collections_configs/zzz.py")


def test_a_config_without_its_ending_is_told_so(tmp_path):
    (tmp_path / "mine").touch()
    with pytest.raises(
        UsageError, match=r"mine: a config file is Python and its name ends in \.py"
    ):
        config_file.load(f"{tmp_path / 'mine'}:smoke")


def test_a_bug_in_a_config_file_keeps_its_traceback(tmp_path):
    (tmp_path / "a.py").write_text("def get_config():\n    return {}[0]\n")
    with pytest.raises(KeyError):
        config_file.load(str(tmp_path / "a.py"))


def test_a_loaded_config_takes_no_new_keys():
    with pytest.raises(AttributeError):
        digits().new_key = 3


def test_departures_of_clients_that_there_are():
    protocols = ("xclp.hamming=masked", "xclp.row_sums=masked")
    check.check(digits(*protocols, "xclp.presence=9@setup,20%@sums"))
    with pytest.raises(UsageError, match=r"config\.xclp\.presence: client 10: at most 9"):
        check.check(digits(*protocols, "xclp.presence=10@setup"))
    natural = ["federation.partition=natural", "federation.num_clients=0"]
    check.check(digits(*protocols, *natural, "xclp.presence=10@setup"))
    with pytest.raises(UsageError, match=r"config\.xclp_auto\.presence: client 4: at most 3 of 4"):
        check_presence(digits(*protocols, *natural, "xclp_auto.presence=4@setup"), 4)


@pytest.mark.parametrize("override", ["algorithm=xlcp", "preprocessing.kind=standardised"])
def test_choices_are_listed_once(override):
    with pytest.raises(UsageError) as caught:
        check.check(digits(override))
    message = str(caught.value)
    meant = {"algorithm=xlcp": "'xclp'"}.get(override, "'standardized'")
    assert message.endswith(f"did you mean {meant}?")
    assert message.count("'identity'") + message.count("'client_knn'") == 1
    assert "known are" not in message


@pytest.mark.parametrize("section", ["dataset", "xclp", "selection", "selection.candidates"])
def test_a_missing_section_is_called_so(section):
    config = ConfigDict(digits().to_dict(), type_safe=False)
    *parents, name = section.split(".")
    with config.unlocked():
        del (config[parents[0]] if parents else config)[name]
    with pytest.raises(UsageError, match=f"config.{section}: the section is missing"):
        check.check(config)


def test_candidates_for_a_missing_section():
    config = digits()
    with config.unlocked():
        del config.client_knn
    with pytest.raises(UsageError, match=r"config\.client_knn: the section is missing"):
        check.check(config)


TRAINED = "ml_collections_configs/fedavg_xclp.py:smoke"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["server_optimizer=adam", "server_momentum=0.9"],
            "training.server_momentum=0.9: server_optimizer='adam' has no momentum; set",
        ),
        (
            ["optimizer=adam", "momentum=0.9"],
            "training.momentum=0.9: optimizer='adam' has no momentum",
        ),
        (
            ["optimizer=adagrad", "momentum=0", "nesterov=true"],
            "training.nesterov=True: optimizer='adagrad' has no",
        ),
        (
            ["momentum=0", "nesterov=true"],
            "training.nesterov=True: set a momentum above 0",
        ),
    ],
)
def test_momentum_is_not_given_to_those_that_have_none(overrides, words):
    keys = [f"training.{override}" for override in overrides]
    with pytest.raises(UsageError) as caught:
        check.check(config_file.load(TRAINED, keys))
    assert str(caught.value).startswith(f"config.{words}")
    own = [f"fedavg.{key}" for key in keys]
    with pytest.raises(UsageError) as caught:
        check.check(config_file.load(TRAINED, own))
    assert str(caught.value).startswith(f"config.fedavg.{words}")


@pytest.mark.parametrize("value", [3, None, 1.5, "alpha", ConfigDict({"a": 1}), [["alpha"]]])
def test_a_select_that_is_no_list_of_texts_is_one_line(value):
    config = digits().copy_and_resolve_references()
    with config.unlocked(), config.ignore_type():
        config.xclp.select = value
    with pytest.raises(UsageError, match=r"^config\.xclp\.select=") as error:
        check.check(config)
    assert "\n" not in str(error.value).strip()
