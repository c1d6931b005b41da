"""FedCT's config: the paper's tables beside its variants, and the sweep over epsilon."""

import sys

import numpy as np
import pytest
from PIL import Image
from small_simulations import prepared
from tfds_files import prepared_tfds

from jaxfed.audit.observations import drawn_targets
from jaxfed.config import check, file
from jaxfed.config.data.simulation import Simulation
from jaxfed.config.methods import all_keywords
from jaxfed.errors import UsageError
from jaxfed.experiment import sweep as sweep_plan

CONFIG = "ml_collections_configs/fedct.py"


@pytest.mark.parametrize(
    ("cell", "public", "period", "num_steps", "rate"),
    [
        ("fashion_mnist", 50_000, 50, 20_000, 1e-3),
        ("cifar10", 10_000, 10, 3_000, 1e-2),
        ("pneumonia", 900, 20, 20_000, 1e-3),
        ("pneumonia_mnist", 900, 20, 20_000, 1e-3),
        ("brain_mri", 145, 6, 2_000, 1e-3),  # 25 of 253 images are copies
        ("svhn", 35_000, 10, 20_000, 1e-3),
    ],
)
def test_periods_and_steps_of_table_7(cell, public, period, num_steps, rate):
    config = file.load(f"{CONFIG}:{cell},fedavg,dd,pate")
    check.check(config)
    assert config.federation.public_size == public
    assert config.training.learning_rate == rate
    assert config.fedct.steps == config.training.local_steps == period
    assert num_steps - period < config.rounds * period <= num_steps
    assert config.distributed_distillation.steps == period
    student_rounds = config.rounds - config.pate.teacher_rounds + 1
    for learned in (
        config.pate.teacher_rounds * config.pate.steps,
        student_rounds * config.pate.student_steps,
    ):
        assert 0 <= learned - config.rounds * period <= 2 * period
    assert config.rounds // config.evaluate_every >= 20  # points of Figures 2, 3 and 7
    assert config.evaluate_test


@pytest.mark.parametrize(
    ("cell", "held_out"),
    [
        *(("wine_quality", 1_059), ("breast_cancer", 114), ("adult", 7_769)),
        *(("mushroom", 1_625), ("covertype", 4_000), ("fashion_mnist", 10_000)),
        *(("cifar10", 10_000), ("svhn", 26_032), ("pneumonia", 624), ("pneumonia_mnist", 624)),
        *(("brain_mri", 53), ("cifar100_superclasses", 10_000)),
    ],
)
def test_table_1s_vulnerability_can_be_audited(cell, held_out):
    """There are examples to stand beside the members, some classes being rarer than others."""
    config = file.load(f"{CONFIG}:{cell},network")
    table = {**file.load_module(CONFIG).CELLS, **file.load_module(CONFIG).IMAGES}[cell]
    size = config.audit.members or (table.train_size or held_out) - table.public_size
    asked = size * (5 if config.audit.members else 1)
    assert config.dataset.test_size in (0, held_out)
    assert 20 <= asked <= 0.9 * (held_out - config.audit.population)


@pytest.mark.parametrize("repeat", range(5))
def test_an_audit_has_its_targets(repeat):
    config = file.load(f"{CONFIG}:breast_cancer,network")
    dealt = Simulation(config).dealt(repeat)
    targets = drawn_targets(dealt, population=config.audit.population, seed=repeat)
    assert len(targets.example) == 2 * 85


def test_steps_of_baselines_follow():
    changed = file.load(
        f"{CONFIG}:fashion_mnist,local,centralized,dd,fedmd,pate,fedavg",
        ["fedct.steps=7", "rounds=10"],
    )
    check.check(changed)
    assert changed.pate.to_dict() == {"teacher_rounds": 5, "steps": 14, "student_steps": 14}
    assert changed.fedmd.to_dict() == {"digest_steps": 7, "revisit_steps": 7}
    same = ("local_learning", "centralized", "distributed_distillation")
    assert {changed[name].steps for name in same} == {changed.training.local_steps} == {7}
    assert file.load(f"{CONFIG}:fashion_mnist,dd", ["fedct.steps=7"]).get("fedmd") is None
    smoke = file.load(f"{CONFIG}:fashion_mnist,fedmd,pate,smoke")
    check.check(smoke)
    assert smoke.pate.to_dict() == {"teacher_rounds": 1, "steps": 6, "student_steps": 6}
    assert set(smoke.fedmd.values()) == {3}
    assert not smoke.evaluate_test
    # One fit is all that teachers need that are fitted from scratch.
    assert "pate" not in file.load(f"{CONFIG}:adult,random_forest,pate")
    assert file.load(f"{CONFIG}:mixed_network,pate").pate.teacher_rounds == 5


def swept(variant):
    """The points that the sweep adds, unchecked."""
    points = []
    file.load_module(CONFIG).sweep(lambda **point: points.append(point), variant)
    return points


@pytest.mark.parametrize(
    ("variant", "own", "public"),
    [
        ("public", 85, [37, 92, 185, 370]),
        ("pneumonia,public", 500, [90, 225, 450, 900]),  # of each client 100
        ("svhn,public", 38_257, [3_500, 8_750, 17_500, 35_000]),
        ("cifar100_superclasses,public", 40_000, [1_000, 2_500, 5_000, 10_000]),
    ],
)
def test_clients_keep_what_they_have_while_public_examples_are_swept(variant, own, public):
    points = swept(variant)
    assert points == [{"federation.public_size": size} for size in public]
    assert file.load(f"{CONFIG}:{variant}").federation.own_size == own
    assert file.load(f"{CONFIG}:{variant.replace('public', 'local')}").federation.own_size == 0


def test_the_same_examples_are_theirs_at_every_size():
    plan = sweep_plan.plan(f"{CONFIG}:public")
    dealt = []
    for point in plan.points:
        config = file.load(f"{CONFIG}:public", point.texts)
        dealt.append(Simulation(config).dealt(0))
    for federation, point in zip(dealt, plan.points, strict=True):
        assert len(federation.public) == point.overrides["federation.public_size"]
        for points, same in zip(
            federation.partition.labeled, dealt[0].partition.labeled, strict=True
        ):
            np.testing.assert_array_equal(points, same)
    assert sum(map(len, dealt[0].partition.labeled)) == 85


def test_figures_5_and_6():
    for variant, public in (("fashion_mnist", 50_000), ("pneumonia,public_200", 200)):
        points = swept(f"{variant},clients,fedavg")
        assert points == [{"federation.num_clients": m} for m in (5, 10, 20, 40, 80)]
        assert file.load(f"{CONFIG}:{variant},clients,fedavg").federation.public_size == public
    with pytest.raises(UsageError, match="public and public_200 exclude"):
        file.load(f"{CONFIG}:pneumonia,public,public_200")


@pytest.mark.parametrize("variant", ["svhn,smoke", "pneumonia,smoke", "cifar100_superclasses"])
def test_cells_of_data_that_are_not_everywhere(variant, tmp_path, monkeypatch):
    """On files made up in the publishers' layout: what clients and everybody hold."""
    monkeypatch.setenv("JAXFED_CACHE", str(tmp_path / "cache"))
    name = variant.partition(",")[0]
    MADE_UP[name](tmp_path)
    config = file.load(
        f"{CONFIG}:{variant}",
        [f"dataset.root={tmp_path}", "federation.public_size=10", *TAKEN.get(name, ())],
    )
    check.check(config)
    simulation = Simulation(config)
    simulation.warn()
    federation = simulation.federation(0)
    assert len(federation.public) == 10
    assert len(federation.test) == 8
    assert sum(map(len, federation.partition.labeled)) == 30
    assert federation.x.shape[1:] == (32, 32, 1 if name == "pneumonia" else 3)
    assert federation.num_classes == (10 if name == "svhn" else 2)
    assert (federation.public_labels is not None) == (name == "cifar100_superclasses")
    if name == "cifar100_superclasses":
        fine = federation.x[:, 0, 0, 0]  # as it was written
        held = [set(fine[points]) for points in federation.partition.labeled]
        assert [len(classes) for classes in held] == [2] * 5  # one of each superclass
        assert len(set.union(*held)) == 10


TAKEN = {
    "svhn": ("dataset.train_size=40", "dataset.test_size=8"),
    "pneumonia": ("dataset.train_size=40", "dataset.test_size=8"),
}


def image_of(value):
    return np.full((32, 32, 3), value, np.uint8)


def made_up_svhn(root):
    import tensorflow_datasets as tfds

    features = {
        "image": tfds.features.Image(shape=(32, 32, 3)),
        "label": tfds.features.ClassLabel(num_classes=10),
    }
    examples = [{"image": image_of(i), "label": i % 10} for i in range(40)]
    splits = {"train": examples, "test": examples[:10], "extra": examples[:10]}
    prepared_tfds(root, "svhn_cropped", "3.1.0", features, splits)


def made_up_cifar100(root):
    """Ten classes in two superclasses."""
    import tensorflow_datasets as tfds

    features = {
        "image": tfds.features.Image(shape=(32, 32, 3)),
        "label": tfds.features.ClassLabel(num_classes=10),
        "coarse_label": tfds.features.ClassLabel(num_classes=2),
    }
    examples = [
        {"image": image_of(i % 10), "label": i % 10, "coarse_label": i % 10 // 5} for i in range(40)
    ]
    splits = {"train": examples, "test": examples[:8]}
    prepared_tfds(root, "cifar100", "3.0.2", features, splits)


def made_up_pneumonia(root):
    for split, count in (("train", 19), ("val", 1), ("test", 5)):
        for kind in ("NORMAL", "PNEUMONIA"):
            folder = root / "pneumonia" / split / kind
            folder.mkdir(parents=True)
            for number in range(count):
                Image.new("L", (9, 7), number).save(folder / f"{number}.jpeg")


MADE_UP = {
    "svhn": made_up_svhn,
    "pneumonia": made_up_pneumonia,
    "cifar100_superclasses": made_up_cifar100,
}


@pytest.mark.parametrize(
    ("variant", "table"),
    [
        ("", "fedct/2"),
        ("covertype,random_forest,dp", "fedct/2"),
        ("adult,network", ""),
        ("mixed", "fedct/3"),
        ("mushroom,mixed", ""),
        ("fashion_mnist,local,dd,pate,fedavg", "fedct/1"),
        ("brain_mri", "fedct/1"),
        ("pneumonia_mnist,pate", "fedct/4"),
        ("fashion_mnist,severe,fedavg,dd", "fedct/5"),
        ("fashion_mnist,heterogeneous", ""),
        ("cifar100_superclasses,fedmd", "fedct/C.4"),
        ("epsilons", ""),
    ],
)
def test_the_table_of_the_paper_that_a_variant_is_like(variant, table):
    assert file.load(f"{CONFIG}:{variant}").paper_table == table


def test_the_shares_of_table_5():
    wanted = {"heterogeneous": (2.0, 100.0), "severe": (0.01, 100.0), "pathological": (0.01, 0.01)}
    for variant, alphas in wanted.items():
        federation = file.load(f"{CONFIG}:fashion_mnist,{variant}").federation
        assert federation.partition == "dirichlet_mixture"
        assert (federation.dirichlet_alpha, federation.dirichlet_alpha_rest) == alphas
        assert federation.dirichlet_share == 0.9
    with pytest.raises(UsageError, match="severe and heterogeneous exclude"):
        file.load(f"{CONFIG}:fashion_mnist,severe,heterogeneous")


def test_epsilon_is_swept_for_three_mechanisms_at_once():
    plan = sweep_plan.plan(f"{CONFIG}:epsilons,decision_tree")
    epsilons = [point.overrides["dp_fedct.epsilon"] for point in plan.points]
    assert epsilons == sorted(epsilons)
    assert epsilons[0] == 0.1  # the paper's
    config = file.load(f"{CONFIG}:epsilons", ["dp_fedct.epsilon=7.0"])
    check.check(config)
    told = {
        name: tuple(
            all_keywords(config, name)[key] for key in ("release", "condition", "epsilon", "rows")
        )
        for name in ("dp_fedct", "dp_fedct_paper", "dp_fedct_answers")
    }
    assert told == {
        "dp_fedct": ("xor", "exact", 7.0, 0),
        "dp_fedct_paper": ("xor", "paper", 7.0, 0),
        "dp_fedct_answers": ("randomized_response", "exact", 7.0, 0),
    }
    assert all_keywords(config, "fedct")["release"] == "none"
    # What has no noise runs once.
    assert set(plan.points[0].reused) | set(plan.points[1].reused) == {"fedct", "local_learning"}
    named = file.load(f"{CONFIG}:epsilons,dd").baselines
    assert named[-2:] == ("fedct", "distributed_distillation")


@pytest.mark.parametrize(
    ("data", "last"),
    [
        ("breast_cancer", 1e5),  # |U| = 370
        ("wine_quality", 1e5),  # 4,100
        ("adult", 1e5),  # 10,000
        ("fashion_mnist", 1e6),  # 50,000
        ("fashion_mnist,paper_rows", 1e5),  # 1,500 of these
    ],
)
def test_epsilons_reach_where_labels_are_worth_learning_from(data, last):
    added = []
    file.load_module(CONFIG).sweep(lambda **point: added.append(point), f"{data},epsilons")
    epsilons = [point["dp_fedct.epsilon"] for point in added]
    assert epsilons[:10] == [0.1, 1, 10, 100, 300, 1e3, 3e3, 1e4, 3e4, 1e5]
    assert epsilons == sorted(epsilons)
    assert epsilons[-1] == last


@pytest.mark.parametrize(
    ("variant", "key", "value"),
    [("paper_rows", "rows", 1500), ("estimated", "sensitivity", "estimated")],
)
def test_what_is_sensitive_is_the_same_for_all_mechanisms(variant, key, value):
    config = file.load(f"{CONFIG}:fashion_mnist,epsilons,{variant}")
    check.check(config)
    for name in ("dp_fedct", "dp_fedct_paper", "dp_fedct_answers"):
        assert all_keywords(config, name)[key] == value
    with pytest.raises(UsageError, match="exclude each other"):
        file.load(f"{CONFIG}:dp,paper_rows,estimated")


@pytest.mark.parametrize("name", ["dp_fedavg", "dp_fedavg_records"])
def test_private_baselines_have_networks_without_batch_normalization(name):
    for data in ("fashion_mnist", "cifar10", "svhn", "pneumonia_mnist", "brain_mri", "adult"):
        config = file.load(f"{CONFIG}:{data},{name}")
        assert config.baselines == (name,)
        check.check(config)
    assert config.model.get("norm") is None
    assert file.load(f"{CONFIG}:cifar10,{name}").model.norm == "group"
    given = [f"algorithm={name}", "model.name=cnn", "training.labeled_only_rounds=0", "baselines="]
    config = file.load("fedavg_xclp:smoke", [*given, "model.norm=batch"])
    with pytest.raises(UsageError, match=r"BatchNorm.*model\.norm='group'"):
        prepared(config)


@pytest.mark.slow
def test_budgets_are_of_both_kinds_of_dp_fedavg():
    plan = sweep_plan.plan(f"{CONFIG}:mushroom,network,budgets")
    assert [point.overrides for point in plan.points] == [
        {"dp_fedavg_records.target_epsilon": budget} for budget in (0.5, 1, 2, 4, 8, 16, 32, 64)
    ]
    assert set(plan.points[1].reused) == {"fedavg", "local_learning"}
    config = file.load(f"{CONFIG}:cifar10,budgets", ["dp_fedavg_records.target_epsilon=3.0"])
    check.check(config)
    for name in ("dp_fedavg", "dp_fedavg_records"):
        given = all_keywords(config, name)
        assert (given["target_epsilon"], given["noise_multiplier"]) == (3.0, None)
    assert (config.model.norm, config.paper_table) == ("group", "")


def test_lines_name_the_key():
    leaving = ["fedct.sums=masked", "fedct.presence=9@upload"]
    with pytest.raises(UsageError, match=r"^config\.fedct\.presence: client 9: at most 4 of 5"):
        check.check(file.load(f"{CONFIG}:smoke", leaving))
    regressor = ["learner.name=estimator", "learner.estimator.estimator=sklearn.svm.SVR"]
    config = file.load(f"{CONFIG}:smoke", regressor)
    check.check(config)
    with pytest.raises(UsageError, match=r"^config\.learner\.estimator\.estimator='sklearn"):
        prepared(config)


def test_a_missing_accountant_names_the_method(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    config = file.load(f"{CONFIG}:smoke,network,dp_fedavg_records")
    with pytest.raises(
        UsageError, match=r"^config\.dp_fedavg_records\.noise_multiplier: epsilon of"
    ):
        prepared(config)
