"""Numbers in tables, settings and CSV; what of a run a table tells."""

import csv

import numpy as np
import pytest
from small_workdirs import PER_CLIENT, XCLP, bold, make_run

from jaxfed.experiment.store.records import Measurement, read_run
from jaxfed.reports import tables
from jaxfed.reports.names import (
    difference_text,
    markdown_text,
    measurement_text,
    setting_label,
    setting_text,
)
from jaxfed.reports.report import build


@pytest.mark.parametrize(
    ("name", "mean", "std", "text"),
    [
        ("test_accuracy", 0.93456, 0.01, "93.46 ± 1.00"),
        ("test_accuracy", 1.0, None, "100.00"),
        ("seconds", 12.345, 0.5, "12.3 ± 0.5 s"),
        ("communication.upload_bytes", 920_064.0, 0.0, "920 ± 0 kB"),
        ("communication.upload_bytes", 12.0, None, "12 B"),
        ("communication.upload_bytes", 1.5e9, None, "1.50 GB"),
        ("unreached", 0.0, 0.0, "0 ± 0"),
        ("cosine_rmse", 0.01334, None, "0.0133"),
    ],
)
def test_measurement_text(name, mean, std, text):
    assert measurement_text(name, Measurement(mean, std, (mean,))) == text


@pytest.mark.parametrize(
    ("mean", "text"), [(-1e-6, "0.00"), (0.0, "0.00"), (-5.1e-5, "−0.01"), (0.1, "+10.00")]
)
def test_a_difference_that_rounds_to_zero_has_no_sign(mean, text):
    assert difference_text(Measurement(mean, None, (mean,))) == text
    assert measurement_text("silhouette", Measurement(-1e-9, None, (-1e-9,))) == "0.000000"
    assert setting_text(-0.0) == "0"


@pytest.mark.parametrize(
    "text",
    ["84.00 ± 4.00 †", "12.3 ± 0.5 s", "920 ± 0 kB", "1.3 points", "5 %", "n = 125", "0.1 to 0.9"],
)
def test_a_number_stays_with_its_unit_and_deviation(text):
    assert " " not in markdown_text(text)
    assert markdown_text(text).replace("\xa0", " ") == text
    assert markdown_text("kB or 5 samples to see") == "kB or 5 samples to see"


@pytest.mark.parametrize(
    ("key", "label"),
    [
        ("fedct.steps", "steps of FedCT"),
        ("local_learning.steps", "steps of Each client alone"),
        ("fedprox.training.learning_rate", "learning rate of FedProx"),
        ("training.learning_rate", "learning rate"),
        ("learner.name", "learner"),
        ("xclp.num_bits", "LSH bits L"),
        ("feddyn.alpha", "alpha of FedDyn"),
    ],
)
def test_a_setting_says_whose_it_is(key, label):
    assert setting_label(key) == label


def test_no_two_columns_are_named_alike(tmp_path):
    for number in (1, 2):
        keys = {"rounds": number, "preprocessing__rounds": 3 - number}
        make_run(tmp_path / str(number), **keys, learner__name=f"tree{number}")
    overview, *_ = build([tmp_path])[0].tables
    assert [*overview.texts][:4] == ["run", "rounds", "rounds (preprocessing)", "learner"]


def test_run_table_by_hand(tmp_path):
    table = tables.run_table(read_run(make_run(tmp_path / "r")), "r")
    texts = table.texts.set_index("method").iloc[:, 0]
    # 0.80, 0.84, 0.88: mean 0.84, sample deviation 0.04; 0.70, 0.76, 0.76: 0.74 and sqrt(0.0012)
    assert texts["XCLP"] == "84.00 ± 4.00"
    assert texts["Per-client LP"] == "74.00 ± 3.46"
    # Pooled data are no federated method: never bold, however good.
    assert texts["LP on pooled data"] == "90.00 ± 0.00"
    assert bold(table) == {"XCLP"}
    # Seed by seed: 0.10, 0.08, 0.12
    assert texts["XCLP − Per-client LP"] == "+10.00 ± 2.00"
    assert texts["XCLP − LP on pooled data"] == "−6.00 ± 4.00"
    facts = dict(build([tmp_path / "r"])[0].origin)
    assert facts["seeds"] == "7, 8, 9"
    assert facts["commit"] == "0123456789ab with uncommitted changes"
    assert facts["device"] == "<cpu & co>"
    assert "divisor n − 1" in table.caption


@pytest.mark.parametrize(
    ("xclp", "per_client", "best"),
    [
        # 0.10, 0.08, 0.12: mean 0.10, standard error 0.0115.
        (XCLP, PER_CLIENT, {"XCLP"}),
        # 0.02, 0.08, -0.01: mean 0.03, standard error 0.026.
        (XCLP, (0.78, 0.76, 0.89), {"XCLP", "Per-client LP"}),
        # The same mean gain, alike in every seed.
        (XCLP, (0.77, 0.81, 0.85), {"XCLP"}),
        # 0.05, 0.01, 0.03: mean 0.03 is 2.6 standard errors of 0.0115, and Student's quantile 4.3.
        (XCLP, (0.75, 0.83, 0.85), {"XCLP", "Per-client LP"}),
        # Two seeds and one: how large the noise is, is not known.
        ((0.5, 0.6), (0.5, 0.6), set()),
        ((0.5,), (0.49,), set()),
    ],
)
def test_a_gain_within_noise_is_not_bold_alone(tmp_path, xclp, per_client, best):
    accuracies = {"xclp": xclp, "per_client_lp": per_client, "pooled_lp": xclp}
    run = read_run(make_run(tmp_path / "r", accuracies))
    table = tables.run_table(run, "r")
    assert bold(table) == best
    rows = tables.settings_table("s", "s", ["seed"], [tables.Row([7], run)], "test_accuracy")
    assert {*rows.texts.columns[rows.best.iloc[0]]} == best
    assert "by a two-sided t test at 5 %, paired by seed" in table.caption
    assert "by a two-sided t test at 5 %, paired by seed" in rows.caption


def test_no_worse_mean_is_bold_where_a_better_one_is_not(tmp_path):
    """However much its repeats vary: a method that is behind by 3 points for sure, one by 5 that varies."""
    accuracies = {
        "xclp": (0.65, 0.66, 0.64),
        "fedavg": (0.62, 0.63, 0.61),
        "fixmatch": (0.50, 0.74, 0.56),
    }
    run = read_run(make_run(tmp_path / "r", accuracies))
    table = tables.run_table(run, "r")
    assert bold(table) == {"XCLP"}


def test_csv_has_the_numbers_unrounded(tmp_path):
    run = read_run(make_run(tmp_path / "r"))
    tables.run_table(run, "r").write(tmp_path / "t")
    with (tmp_path / "t" / "r.csv").open(newline="") as stream:
        rows = {(row["algorithm"], row["metric"]): row for row in csv.DictReader(stream)}
    row = rows["per_client_lp", "test_accuracy"]
    assert float(row["mean"]) == np.mean(PER_CLIENT)
    assert float(row["std"]) == np.std(PER_CLIENT, ddof=1)
    assert tuple(map(float, row["values"].split())) == PER_CLIENT
    assert row["num_repeats"] == "3"


def test_overview_says_what_differs_and_what_is_unfinished(tmp_path):
    make_run(tmp_path / "a")
    make_run(tmp_path / "b", federation__labeled_fraction=0.05, finished=False)
    (section, *_) = build([tmp_path])
    (table,) = section.tables
    assert [*table.texts][:2] == ["run", "labeled fraction"]
    assert [*table.texts["labeled fraction"]] == ["0.1", "0.05"]
    assert [*table.texts.iloc[:, 2]] == ["84.00 ± 4.00", "–"]


def test_a_setting_of_all_runs_stands_before_one_of_a_single_run(tmp_path):
    make_run(tmp_path / "a", k0=50, k1=1)
    make_run(tmp_path / "b", k1=2)
    table, *_ = build([tmp_path])[0].tables
    assert [*table.texts][1:3] == ["k1", "k0"]
