"""What `launch.costs` prints: a config's methods in two cuts, beside the paper's formulas."""

import json

from invoking import ROOT, called

from jaxfed.config import file as config_file
from jaxfed.experiment.costs import cohort_of, method_costs
from launch import costs

CONFIG = "ml_collections_configs/protofssl.py"
SMALL = ["cohort_size=2", "model.hidden=(32,)"]


def test_the_papers_formulas_are_of_this_network_and_these_clients():
    config = config_file.load(str(ROOT / CONFIG), [*SMALL, "baselines=()"])
    [costs] = method_costs(config)
    labeled, helpers, classes = 30, 5, 10
    unlabeled = sum(map(len, cohort_of(config).partition.unlabeled)) / 2
    parameters = 64 * 32 + 32
    forward, model_bytes = 2 * 64 * 32, 4 * parameters
    operations, num_bytes = costs.formula
    passes = forward * (2 * labeled + unlabeled)
    # A sum of normalization, biases and rectifiers beside the products, and distances.
    extra = operations - passes - 4 * 32 * helpers * classes * unlabeled
    assert 0 < extra < 0.1 * passes
    sent = 2 * model_bytes + 4 * 32 * (1 + helpers) * classes
    assert num_bytes == sent
    # Two clients in the round: two helpers, not five; ten bits with the prototypes of each, and one's own.
    counted = costs.one_pass.upload_bytes + costs.one_pass.download_bytes
    assert counted == sent - 3 * 4 * 32 * 10 + 3 * 2
    assert costs.paper == (447.9e9, 52.6e6)
    assert (costs.one_pass.steps, costs.as_run.steps) == (1, 10)
    # There and back, and the distances to helpers' prototypes and one's own.
    assert 2 * passes < costs.one_pass.operations < costs.as_run.operations


def test_convolutions_are_counted_by_their_definition():
    """Not as the algorithm with fewer multiplications that a CPU would choose."""
    network = ["preprocessing.kind=images", "model.name=cnn", "model.channels=(64,64)"]
    changes = ["cohort_size=2", "algorithm=fedavg", "baselines=()", *network]
    [costs] = method_costs(config_file.load(f"{CONFIG}:smoke", changes))
    examples, there_and_back = 30, 3
    assert costs.one_pass.operations > there_and_back * examples * (2 * 9 * 64 * 64 * 4 * 4)


def run(*arguments):
    return called(costs.main, *arguments)


def test_the_command_prints_and_writes(tmp_path):
    out = tmp_path / "costs" / "costs.json"
    changes = [f"--config.{change}" for change in (*SMALL, "algorithm=fedavg", "baselines=()")]
    done = run(f"--config={CONFIG}", *changes, f"--out={out}")
    assert done.returncode == 0, done.stderr
    [row] = json.loads(out.read_text())["methods"]
    assert row["method"] == "fedavg"
    assert row["as_run"]["upload_bytes"] == 4 * (64 * 32 + 32 + 32 * 10 + 10)
    assert row["formula"] is None
    [line] = [line for line in done.stdout.splitlines() if line.startswith("fedavg")]
    assert f"{(2 * row['as_run']['upload_bytes']) / 1e6:.4g}" in line
