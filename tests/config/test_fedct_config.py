"""FedCT's config: the paper's tables beside its variants, and the sweep over epsilon."""

import pytest

from jaxfed.config import check, file
from jaxfed.config.methods import all_keywords
from jaxfed.errors import UsageError
from jaxfed.experiment import sweep_plan

CONFIG = "ml_collections_configs/fedct.py"


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


@pytest.mark.parametrize("name", ["dp_fedavg", "dp_fedavg_records"])
def test_private_baselines_have_networks_without_batch_normalization(name):
    for data in ("fashion_mnist", "cifar10", "pneumonia_mnist", "brain_mri", "adult"):
        config = file.load(f"{CONFIG}:{data},{name}")
        assert config.baselines == (name,)
        check.check(config)
    assert config.model.get("norm") is None
    assert file.load(f"{CONFIG}:cifar10,{name}").model.norm == "group"
    with pytest.raises(UsageError, match=r"BatchNorm.*model\.norm='group'"):
        check.check(file.load(f"{CONFIG}:cifar10,{name}", ["model.norm=batch"]))


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
        assert (given["target_epsilon"], given["noise_multiplier"]) == (3.0, 0.0)
    assert (config.model.norm, config.paper_table) == ("group", "")
