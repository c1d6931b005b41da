"""What clients of FedCT and its relatives send."""

import pytest
from invoking import ROOT

from jaxfed.config import file as config_file
from jaxfed.experiment.costs import answer_costs

CONFIG = "ml_collections_configs/fedct.py"
BASELINES = ("distributed_distillation", "fedmd", "pate", "fedavg")


def digits(*changes):
    names = ",".join(BASELINES)
    public = ("dataset.name=digits", "preprocessing.kind=images", "federation.public_size=100")
    small = ("dataset.train_size=400", "dataset.test_size=0", "model.hidden=(32,)", "rounds=3")
    learner = ("learner.name=network", f"baselines={names}", "fedmd.subset=40")
    return config_file.load(str(ROOT / CONFIG), [*public, *small, *learner, *changes])


@pytest.mark.sample(1)
@pytest.mark.parametrize("sums", ["plaintext", "masked"])
def test_methods_send_what_their_rounds_count(sums):
    costs = answer_costs(digits(f"fedct.sums={sums}", "pate.teacher_rounds=2"))
    parameters = 64 * 32 + 32 + 32 * 10 + 10
    assert tuple(costs[f"num_{what}"] for what in ("public", "classes", "parameters")) == (
        100,
        10,
        parameters,
    )
    of = {row["method"]: row for row in costs["methods"]}
    up = {
        "fedct": 50,
        "distributed_distillation": 4000,
        "fedmd": 1600,
        "pate": 50,
        "fedavg": 4 * parameters,
    }
    down = {**up, "fedmd": 1600 + 4 * 40, "pate": 0}
    if sums == "masked":
        assert of["fedct"]["upload_bytes"] > 50
        del up["fedct"], down["fedct"]
    for name, num_bytes in up.items():
        assert of[name]["upload_bytes"] == num_bytes
        assert of[name]["factor"] == pytest.approx(4 * parameters / num_bytes)
        assert of[name]["download_bytes"] == down[name]


@pytest.mark.parametrize(
    ("baselines", "is_compared"), [("local_learning", False), ("fedavg", True)]
)
def test_trees_are_compared_with_a_network_that_somebody_trains(baselines, is_compared):
    costs = answer_costs(digits("learner.name=decision_tree", f"baselines={baselines}"))
    assert costs["methods"][0]["upload_bytes"] == 50
    assert (costs["num_parameters"] is not None) == is_compared
    assert (costs["methods"][0]["factor"] is not None) == is_compared
