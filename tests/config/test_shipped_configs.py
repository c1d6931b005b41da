"""Every config file: the commands in its docstring, its smoke, its sweep; two of them to the end."""

import inspect
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from efficientnet_weights import write_weights
from on_demand import on_demand
from PIL import Image

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import assembly, base, file
from jaxfed.config import check as config_check
from jaxfed.errors import UsageError
from jaxfed.experiment import sweep as sweep_plan
from jaxfed.federation.method import method_settings
from jaxfed.models.efficientnet import efficientnet

FOLDER = Path("ml_collections_configs")
NAMES = sorted(path.stem for path in FOLDER.glob("[!_]*.py"))  # each is an experiment
LOOP = re.compile(r"for ([A-Z]+) in ([^\\\n]*(?:\\\n[^\\\n]*)*)")
COMMAND = re.compile(r"python -m launch\.(run|sweep|audit) --config=(ml_collections_configs/\S+)")


def commands(name):
    """Entries and configs of all commands; one in a loop for each of what is listed there."""
    text = inspect.getdoc(file.load_module(str(FOLDER / f"{name}.py"))) or ""
    listed = {loop[1]: words(loop[2]) for loop in LOOP.finditer(text)}
    found = []
    for entry, spec in COMMAND.findall(text):
        looped = re.search(r"\$([A-Z]+)", spec)
        values = listed[looped[1]] if looped else [""]
        found += [(entry, spec.replace(looped[0], v) if looped else spec) for v in values]
    return found


def words(text):
    return text.replace("\\", " ").split()


def num_points(path, variant):
    sweep = file.load_module(path).sweep
    points = []
    takes_variant = len(inspect.signature(sweep).parameters) == 2
    sweep(lambda **point: points.append(point), *([variant] if takes_variant else []))
    for point in points:
        overrides = [f"{key}={value}" for key, value in point.items()]
        config_check.check(file.load(f"{path}:{variant}", overrides))
    return len(points)


@pytest.fixture
def models_once(monkeypatch):
    """Twelve cells have two networks: each is built once."""
    make, made = assembly.make_model, {}

    def make_once(config, federation, head=True):
        key = repr(config.model), head
        if key not in made:
            made[key] = make(config, federation, head=head)
        return made[key]

    monkeypatch.setattr(assembly, "make_model", make_once)


def check_as_far_as_installed(spec):
    """Learners of optional packages are refused, with a line that says so, where these are missing."""
    try:
        config_check.check(file.load(spec))
    except UsageError as error:
        if "is not installed: pip install" not in str(error):
            raise


LONG = ("fedct", "protofssl", "xclp_auto")  # documents


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", on_demand(NAMES, at_once=set(NAMES) - {*LONG}))
@pytest.mark.usefixtures("models_once")
def test_documented_commands_resolve(name):
    assert commands(name)
    for entry, spec in commands(name):
        check_as_far_as_installed(spec)
        if entry == "sweep":
            assert num_points(*file.split_variant(spec)) > 1


def test_configs_that_import_their_base_from_the_folder_still_work(tmp_path):
    own = "from ml_collections_configs import base\n\ndef get_config(): return base.get_config()"
    (tmp_path / "own.py").write_text(own)
    assert file.load(str(tmp_path / "own.py")).rounds == base.get_config().rounds


@pytest.mark.parametrize("name", NAMES)
def test_every_config_has_a_smoke(name):
    config = file.load(f"{FOLDER}/{name}.py:smoke")
    config_check.check(config)
    assert config.rounds <= 6


@pytest.mark.parametrize("name", ["fedavg_xclp", "fedct"])
def test_the_loop_over_cells_names_them_all(name):
    module = file.load_module(f"{FOLDER}/{name}.py")
    listed = re.search(LOOP.pattern.replace("([A-Z]+)", "CELL"), module.__doc__)[1]
    assert words(listed) == list(module.CELLS)


@pytest.mark.parametrize(
    ("variant", "points"),
    [("", 4), ("pretrained", 4), ("leave_one_out", 6), ("graphs", 8), ("graphs,pretrained", 8)],
)
def test_sweeps_of_fed_isic2019_are_the_rows_of_its_tables(variant, points):
    assert num_points(str(FOLDER / "fed_isic2019.py"), variant) == points


@pytest.mark.parametrize(
    ("variant", "points"),
    [("fashion_mnist", 3), ("fashion_mnist,alphas", 15), ("cifar10_iid_100_1000,alphas", 5)],
)
@pytest.mark.usefixtures("models_once")
def test_sweeps_over_alpha_are_of_the_methods_that_have_one(variant, points):
    assert num_points(f"{FOLDER}/fedavg_xclp.py", variant) == points
    config = file.load(f"{FOLDER}/fedavg_xclp.py:{variant}", ["xclp.alpha=0.5"])
    assert config.per_client_lp.alpha == 0.5
    if "alphas" in variant:
        assert (config.algorithm, *config.baselines) == ("fedavg_xclp", "fedavg_per_client_lp")


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "variant", "points"),
    [
        ("xclp_digits", "tuned", 24),
        ("xclp_cifar10", "pretrained,few_labels,tuned", 4),
        ("xclp_cifar10", "pretrained,sweeps,tuned", 58),
        ("femnist", "tuned", 8),
        ("fed_isic2019", "pretrained,tuned", 8),
    ],
)
def test_tuned_sweeps_have_every_point_with_given_and_with_chosen_settings(name, variant, points):
    plan = sweep_plan.plan(f"{FOLDER}/{name}.py:{variant}")
    assert len(plan.points) == points
    settings = [point.settings["selection"]["settings"] for point in plan.points]
    assert settings == ["given", "cross_validated"] * (points // 2)


def test_what_a_variant_has_no_use_for_goes():
    def load(variant):
        return file.load(f"{FOLDER}/fed_isic2019.py:{variant}")

    assert load("").baselines == ("network", "per_client_lp")
    assert load("pretrained").baselines == ("per_client_lp",)
    assert load("leave_one_out").baselines == ("network",)
    assert load("pretrained,leave_one_out").baselines == ()
    assert file.load(f"{FOLDER}/femnist.py:linear").baselines[0] == "network"


@pytest.mark.parametrize(
    ("name", "variants"),
    [
        ("xclp_cifar10", ("pretrained", "sweeps", "smoke")),
        ("femnist", ("chars74k", "linear")),
        ("femnist", ("linear", "joint", "smoke")),
        ("fed_isic2019", ("pretrained", "leave_one_out", "smoke")),
        ("fedavg_xclp", ("fashion_mnist", "fedmatch", "smoke")),
        ("fedavg_xclp", ("cifar10_iid_50_1000", "fedsiam", "authors")),
        ("fedavg_xclp", ("cifar10_noniid_50_1000", "alphas", "authors")),
    ],
)
def test_which_variant_is_named_first_has_no_say(name, variants):
    configs = [
        file.load(f"{FOLDER}/{name}.py:{','.join(order)}").to_dict()
        for order in itertools.permutations(variants)
    ]
    assert all(config == configs[0] for config in configs)
    if "smoke" in variants:
        assert configs[0]["rounds"] <= 6


@pytest.mark.parametrize(
    ("cell", "rate"),
    [
        ("cifar10_iid_100_1000", 0.05),  # 10 labels a client
        ("cifar10_iid_50_1000", 0.1),  # 20
        ("cifar10_iid_100_5000", 0.3),  # 50
        ("cifar100_iid_50_5000", 0.3),  # at most 50 of 100
        ("mini_imagenet_iid_100_10000", 0.3),
    ],
)
def test_the_authors_variant_does_as_their_code(cell, rate):
    config = file.load(f"{FOLDER}/fedavg_xclp.py:{cell},authors")
    config_check.check(config)
    assert config.training.learning_rate == rate
    assert config.model.normalize_features
    for section in (config.xclp, config.per_client_lp):
        assert section.label_matrix == "class_balanced"
        assert section.relative_confidence
        assert section.similarity_power == 3
    crops = ("rotate:10", "crop:8", "flip") if "mini" in cell else ("translate:4", "flip")
    assert config.training.augmentation == crops


def test_methods_with_settings_of_their_own_keep_them_in_the_authors_variant():
    def load(method):
        return file.load(f"{FOLDER}/fedavg_xclp.py:cifar10_iid_50_1000,{method}")

    for method in ("fedmatch", "fixmatch"):
        assert (
            load(f"{method},authors").training.learning_rate == load(method).training.learning_rate
        )
    assert load("fedsiam,authors").training.learning_rate == 0.1
    assert not load("fedsiam,authors").model.normalize_features


@pytest.mark.parametrize(
    ("cell", "ratio"),
    [
        ("cifar10_iid_100_5000", 8),  # five steps of 10 labels and 80 of 400 unlabeled examples
        ("cifar10_iid_50_5000", 4),  # 100 and 350
        ("cifar10_noniid_100_1000", 44),  # one step
        ("cifar10_iid_50_1000", 22),  # 20 and 430
        ("cifar100_iid_50_5000", 8),
        ("mini_imagenet_iid_100_10000", 4),
    ],
)
def test_fedmatch_trains_as_its_authors(cell, ratio):
    config = file.load(f"{FOLDER}/fedavg_xclp.py:{cell},fedmatch")
    config_check.check(config)
    training = config.training
    assert (config.rounds, training.epochs, training.learning_rate) == (200, 1, 1e-3)
    assert (training.batch_size, training.unlabeled_ratio, training.labeled_only_rounds) == (
        10,
        ratio,
        0,
    )
    assert training.augmentation == ()
    assert training.schedule == "constant"
    assert config.fedmatch.to_dict() == {"psi_threshold": 5e-6, "delta_threshold": 5e-5}
    defaults = method_settings(ALGORITHMS["fedmatch"])
    assert [defaults[name].default for name in ("helper_interval", "l2_weight")] == [10, 10.0]


def test_fedsiam_is_the_mean_teacher_of_xclps_authors_from_scratch():
    config = file.load(f"{FOLDER}/fedavg_xclp.py:cifar10_iid_50_1000,fedsiam")
    config_check.check(config)
    assert config.fedsiam.to_dict() == {
        "consistency_weight": 100.0,
        "rampup_rounds": 5,
        "average": 0.97,
        "supervised_over": "batch",
        "evaluated": "online",
    }
    assert (config.rounds, config.training.epochs) == (1500, 5)
    documented = inspect.getdoc(file.load_module(f"{FOLDER}/fedavg_xclp.py"))
    (command,) = re.findall(r"python[^\n]*\$CELL,fedsiam(?: \\\n[^\\\n]*)*", documented)
    assert "initial_model" not in command


@pytest.mark.parametrize("method", ["fedmatch", "fedsiam", "fixmatch"])
def test_fashion_mnist_has_settings_for_clients_of_one_label(method):
    """Its stage 1 and batches, which are the other methods' there; two views that differ."""
    config = file.load(f"{FOLDER}/fedavg_xclp.py:fashion_mnist,{method}")
    config_check.check(config)
    others = file.load(f"{FOLDER}/fedavg_xclp.py:fashion_mnist")
    assert (config.algorithm, config.baselines) == (method, ())
    for key in ("rounds", "cohort_size", "federation", "model", "dataset"):
        assert config[key] == others[key]
    for key in ("batches", "batch_size", "epochs", "labeled_only_rounds"):
        assert config.training[key] == others.training[key]
    assert config.training.augmentation or config.training.strong_augmentation


def launch(workdir, spec, *overrides):
    """The summary of `launch.run`."""
    options = [f"--config.{override}" for override in overrides]
    command = [sys.executable, "-m", "launch.run", f"--config={FOLDER}/{spec}", *options]
    done = subprocess.run(
        [*command, f"--workdir={workdir}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads((workdir / "summary.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "methods"),
    [
        ("femnist.py:smoke", {"xclp", "per_client_lp"}),
        ("femnist.py:linear,joint,smoke", {"xclp", "per_client_lp", "network"}),
        ("fed_isic2019.py:smoke", {"xclp", "per_client_lp", "network"}),
        ("fed_isic2019.py:leave_one_out,smoke", {"xclp", "network"}),
    ],
)
def test_smokes_to_the_end(tmp_path, spec, methods):
    summary = launch(tmp_path / "run", spec)
    assert summary["algorithms"].keys() == methods
    assert summary["test_balanced_accuracy"] > 0.7


@pytest.mark.slow
def test_fed_isic2019_on_its_own_layout(tmp_path):
    """Six images a center, the EfficientNet, weights, loss and augmentation of the paper, one step."""
    rng = np.random.default_rng(0)
    images = tmp_path / "fed_isic2019" / "ISIC_2019_Training_Input_preprocessed"
    images.mkdir(parents=True)
    lines = ["image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK,target,center,fold,fold2"]
    for number in range(36):
        target, center, fold = number % 8, number % 6, "test" if number >= 30 else "train"
        pixels = rng.integers(256, size=(36, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(images / f"ISIC_{number}.jpg")
        one_hot = ",".join(str(float(c == target)) for c in range(9))
        lines.append(f"ISIC_{number},{one_hot},{target},{center},{fold},{fold}_{center}")
    (images.parent / "train_test_split").write_text("\n".join(lines))
    network = efficientnet("efficientnet_b0")
    weights = tmp_path / "efficientnet_b0.safetensors"
    write_weights(weights, network.init(jax.random.key(0)))
    summary = launch(
        tmp_path / "run",
        "fed_isic2019.py",
        f"dataset.root={tmp_path}",
        "dataset.image_size=32",
        "preprocessing.rounds=1",
        "training.local_steps=1",
        "training.learning_rate=1e-9",  # of an untrained network
        "training.batch_size=4",
        "num_repeats=1",
    )
    assert summary["algorithms"].keys() == {"xclp", "network", "per_client_lp"}
    assert 0 <= summary["test_balanced_accuracy"] <= 1


@pytest.mark.parametrize(
    ("variant", "images", "steps"),
    [("cifar10", 50_000, 95), ("cifar100,server", 50_000, 95), ("fashion_mnist", 60_000, 115)],
)
def test_paper_size_takes_the_steps_of_sages_code(variant, images, steps):
    """n // 128 in each of 5 epochs, n a client's examples (SAGE.py, `local_iter`), whoever trains."""
    config = file.load(f"{FOLDER / 'fssl.py'}:{variant},paper")
    config_check.check(config)
    training, federation = config.training, config.federation
    assert training.local_steps == steps
    assert steps == 5 * (images // federation.num_clients // training.batch_size)
    unlabeled = images * (1 - federation.labeled_fraction) / federation.num_clients
    passes = steps * training.batch_size * training.unlabeled_ratio / unlabeled
    assert passes < training.epochs  # each in a new order
    assert file.load(f"{FOLDER / 'fssl.py'}:{variant}").training.local_steps == 0
