"""What methods take to a target accuracy: first rounds, sums up to them, repeats that never reach it."""

import json
import re

import pytest
from invoking import called
from small_workdirs import make_run, make_sweep

from jaxfed.experiment.store.records import find
from jaxfed.reports.target import target_table
from launch import report

ACCURACIES = {"xclp": (0.9, 0.9), "fedavg": (0.5, 0.5)}
# Accuracy of rounds 0 to 3 of each repeat; None: the round is not evaluated.
ROUNDS = {
    "xclp": [(0.1, 0.6, 0.8, 0.9), (0.1, 0.7, None, 0.85)],
    "fedavg": [(0.1, 0.8, 0.2, 0.3), (0.1, 0.2, 0.3, 0.5)],
}


def run_with(path, judge):
    run = make_run(path, ACCURACIES, evaluate_every=2)
    lines = [
        {"repeat": repeat, "algorithm": name, "round": number}
        | ({} if accuracy is None else {judge: accuracy})
        | ({} if number == 0 else {"seconds": 10.0**number, "communication": sent(number)})
        for name, repeats in ROUNDS.items()
        for repeat, accuracies in enumerate(repeats)
        for number, accuracy in enumerate(accuracies)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def sent(number):
    return {"upload_bytes": number * 1000, "download_bytes": 500}


@pytest.mark.parametrize(
    ("judge", "words"),
    [("round_test_accuracy", "the test set"), ("validation_accuracy", "validation examples")],
)
def test_the_first_round_and_the_sums_up_to_it(tmp_path, judge, words):
    (run,) = find([run_with(tmp_path / "r", judge)]).runs
    table = target_table(run, 0.8, "target")
    cells = {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}
    xclp = ["2 of 2", "2.50 ± 0.71", "610 ± 707 s", "4.50 ± 2.12 kB", "1.25 ± 0.35 kB"]
    assert cells == {"XCLP": xclp, "FedAvg": ["1 of 2", "1", "10 s", "1 kB", "500 B"]}
    assert words in table.caption
    assert "every 2 rounds" in table.caption
    rounds = [row for row in table.records if row["metric"] == "round_to_target"]
    assert [row["values"] for row in rounds] == ["2.0 3.0", "1.0"]
    none = target_table(run, 0.95, "target")
    assert [[cell.text for cell in row[1:]] for row in none.rows] == [
        ["0 of 2", *"––––"],
        ["0 of 2", *"––––"],
    ]
    assert not none.records


def test_simulated_seconds_are_a_column_of_runs_with_a_clock(tmp_path):
    path = run_with(tmp_path / "r", "validation_accuracy")
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line |= {"simulated_seconds": 7.0 * line["round"]} if line["round"] else {}
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run,) = find([path]).runs
    table = target_table(run, 0.8, "target")
    assert table.columns[3] == "simulated"
    times = {row[0].text: row[3].text for row in table.rows}
    assert times == {"XCLP": "17.5 ± 4.9 s", "FedAvg": "7 s"}
    rows = [row for row in table.records if row["metric"] == "simulated_seconds_to_target"]
    assert [row["values"] for row in rows] == ["14.0 21.0", "7.0"]
    at_once = target_table(run, 0.1, "target")  # the state before the first round
    assert {row[3].text for row in at_once.rows} == {"0 ± 0 s"}


def test_a_one_shot_method_has_no_rounds_to_reach_a_target_in(tmp_path):
    path = run_with(tmp_path / "r", "validation_accuracy")
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line["algorithm"] == "xclp":
            line.pop("validation_accuracy", None)
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run,) = find([path]).runs
    table = target_table(run, 0.8, "target")
    assert {row[0].text: row[1].text for row in table.rows} == {"XCLP": "–", "FedAvg": "1 of 2"}
    assert "rounds have no accuracy" in table.caption


def test_it_is_a_table_of_the_report(tmp_path):
    run = run_with(tmp_path / "r", "validation_accuracy")
    done = called(report.main, run, "--target=0.8")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"r:\sto\s80\s% accuracy", (run / "report" / "report.md").read_text())
    assert (run / "report" / "tables" / "r-target.csv").is_file()


def test_a_sweep_has_no_such_table(tmp_path):
    make_sweep(tmp_path / "s", [("a", {"xclp.alpha": 0.5}, {"xclp": (0.5,)})], {"xclp.alpha": 0.9})
    done = called(report.main, tmp_path / "s", "--target=0.8")
    assert (done.returncode, done.stderr) == (
        2,
        "jaxfed: --target=0.8: for runs alone, and there is none here\n",
    )
