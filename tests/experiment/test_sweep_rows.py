"""A baseline that the swept keys do not change runs once; grids from the command line."""

import json
from functools import partial

import pytest
from small_sweeps import launch, results_of, write_config

from jaxfed.experiment import sweep as sweep_plan
from jaxfed.experiment.store.records import read_sweep

ALPHAS = "def sweep(add):\n    for alpha in (0.5, 0.9): add(**{'xclp.alpha': alpha})\n"


@pytest.fixture
def config(tmp_path):
    return partial(write_config, tmp_path)


def test_baselines_run_where_the_swept_key_changes_them(config):
    first, second = sweep_plan.plan(config(ALPHAS)).points
    assert first.reused == {}
    assert first.settings["baselines"] == ("per_client_lp", "pooled_lp", "client_knn")
    # Those that follow XCLP's alpha by reference run again.
    assert second.reused == {"client_knn": "xclp.alpha=0.5"}
    assert second.settings["baselines"] == ("per_client_lp", "pooled_lp")
    assert second.texts == ("xclp.alpha=0.9", "baselines=per_client_lp,pooled_lp")
    assert second.overrides == {"xclp.alpha": 0.9}


def test_two_keys_share_what_both_leave_alone(config):
    plan = sweep_plan.plan(config(""), ["baselines=client_knn"], ["xclp.alpha=0.5,0.9", "seed=1,2"])
    assert {point.name: point.reused for point in plan.points} == {
        "seed=1,xclp.alpha=0.5": {},
        "seed=2,xclp.alpha=0.5": {},
        "seed=1,xclp.alpha=0.9": {"client_knn": "seed=1,xclp.alpha=0.5"},
        "seed=2,xclp.alpha=0.9": {"client_knn": "seed=2,xclp.alpha=0.5"},
    }


def test_a_real_sweep_has_every_row_and_says_who_ran_it(config, tmp_path):
    directory = tmp_path / "out"
    arguments = [
        *(f"--config={config('')}", f"--workdir={directory}", "--sweep.xclp.num_bits=64,128"),
        *("--config.num_repeats=1", "--config.dataset.train_size=200"),
        *("--config.baselines=client_knn", "--config.execution.plots=false"),
    ]
    done = launch(*arguments)
    assert done.returncode == 0, done.stderr
    assert "client_knn: the sweep does not change it at 2 points" in done.stderr
    rows = results_of(directory)
    first, second = "xclp.num_bits=64", "xclp.num_bits=128"
    assert list(rows) == [(at, name) for at in (first, second) for name in ("xclp", "client_knn")]
    sources = [found["test_accuracy"].source[0].name for found in rows.values()]
    assert sources == [first, first, second, first]
    assert rows[second, "client_knn"] == rows[first, "client_knn"]
    lines = (directory / second / "metrics.jsonl").read_text().splitlines()
    assert {json.loads(line)["algorithm"] for line in lines} == {"xclp"}
    points = read_sweep(directory).points
    assert [sorted(point.run.results) for point in points] == 2 * [["client_knn", "xclp"]]
    again = launch(*arguments)
    assert "2 points are finished already" in again.stdout
    other = launch(*arguments[:2], "--sweep.xclp.num_bits=64,256", *arguments[3:])
    assert other.returncode == 2
    assert "holds another sweep: grid is" in other.stderr


def test_a_grid_is_in_place_of_the_configs_own_points(config):
    plan = sweep_plan.plan(
        config(ALPHAS),
        ["baselines=fedavg"],  # which has a model
        ["xclp.num_bits=64,128", "model.hidden=(8,),(16, 32)"],
    )
    assert [point.overrides for point in plan.points] == [
        {"xclp.num_bits": bits, "model.hidden": hidden}
        for bits in (64, 128)
        for hidden in ((8,), (16, 32))
    ]
    assert plan.base == {"xclp.num_bits": 4096, "model.hidden": (512, 512)}
