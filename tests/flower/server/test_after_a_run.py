"""After a run over a network: model, predictor, report and sites, at the server, without anybody's data."""

import json
import shutil

import numpy as np
import pytest
from network_deployment import METHODS, Deployment, config_of
from on_demand import on_demand

import jaxfed
from jaxfed.errors import UsageError
from jaxfed.flower.server import server_data
from jaxfed.reports.report import write_report

TABLE = ("preprocessing.kind=standardized", "dataset.train_size=0", "dataset.label_key=sick")
ROWS = [{"age": 41, "weight": 60, "job": "nurse"}, {"age": 80, "weight": None, "job": "miner"}]
WITHOUT_MODELS = {
    "fedct": "its models and labels stay at the clients of the network",
    "xclp": "it labels its clients' points",
}


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    lines = ["age,weight,job,sick"]
    for _ in range(120):
        age, weight, job = (
            rng.integers(20, 90),
            rng.integers(50, 99),
            rng.choice(["nurse", "miner"]),
        )
        weight = "" if rng.random() < 0.1 else weight
        lines.append(f"{age},{weight},{job},{int(age + 20 * (job == 'miner') > 60)}")
    file = tmp_path / "patients.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


def alone(there):
    """The run's workdir in another place, where no data are."""
    place = there.place.rename(there.place.parent / "moved")
    for folder in ("nodes", "server"):
        shutil.rmtree(there.place.parent / folder)
    return place


@pytest.mark.parametrize("case", on_demand(METHODS, at_once=["scaffold", "xclp"]))
def test_the_model_is_that_of_a_simulation(tmp_path, case):
    name, settings = METHODS[case]
    config = config_of(name, *settings, "rounds=1", "dataset.train_size=90")
    there = Deployment(tmp_path, config)
    there.serve()
    x = there.held.parts["test"][0][:5]
    result = jaxfed.open(alone(there))
    if name in WITHOUT_MODELS:
        for asked in (result.model, result.predictor):
            with pytest.raises(UsageError, match=WITHOUT_MODELS[name]):
                asked()
        return
    simulated = jaxfed.run(config, workdir=tmp_path / "simulation", progress=False)
    for last in (False, True):
        np.testing.assert_array_equal(result.model(last=last)(x), simulated.model(last=last)(x))
    np.testing.assert_array_equal(result.predictor()(x), simulated.predictor()(x))
    assert result.predictor().classes == simulated.predictor().classes


def test_rows_are_encoded_as_before_the_run(tmp_path, table):
    config = config_of("fedavg", f"dataset.name={table}", *TABLE, "rounds=2")
    there = Deployment(tmp_path, config)
    there.serve()
    assert there.held.shared.columns[-1] == "weight is missing"
    result = jaxfed.open(alone(there))
    simulated = jaxfed.run(config, workdir=tmp_path / "simulation", progress=False)
    predict = result.predictor()
    np.testing.assert_array_equal(predict(ROWS), simulated.predictor()(ROWS))


def test_a_server_of_sites_with_names_of_columns_takes_rows_by_name(tmp_path, table):
    there = Deployment(tmp_path, config_of("fedavg", f"dataset.name={table}", *TABLE, "rounds=1"))
    shared = tmp_path / "server" / "shared.json"
    given = json.loads(shared.read_text())
    del given["encoding"]  # as an operator writes it
    shared.write_text(json.dumps(given))
    there.held = server_data.read(tmp_path / "server")
    there.serve()
    x = there.held.parts["test"][0][:2]
    result = jaxfed.open(alone(there))
    rows = [dict(zip(given["columns"], row, strict=True)) for row in x.tolist()]
    np.testing.assert_array_equal(result.predictor()(rows), result.model()(x))


def test_a_report_has_the_sites(tmp_path):
    there = Deployment(tmp_path, config_of("fedavg", "rounds=2"), {(12, "update", 2): "late"})
    there.serve()
    place = alone(there)
    sites = jaxfed.open(place).summary["sites"]
    assert [site["site"] for site in sites] == ["client-0", "client-1", "client-2"]
    assert [(site["rounds"], site["left"]) for site in sites] == [(2, 0), (2, 0), (1, 1)]
    assert sites[2]["last_reason"] == "no reply within 300 s"
    assert all(site["train_loss"] > 0 and site["local_steps"] > 0 for site in sites)
    assert sum(site["examples"] for site in sites) > sum(site["labels"] for site in sites) > 0
    write_report([place], tmp_path / "report")
    text = (tmp_path / "report" / "report.md").read_text()
    assert "| client-2 |" in text
    assert "no reply within" in text
    result = jaxfed.open(place)
    assert "fedavg" in repr(result)
    assert result.plot()
    assert result.federation().num_clients == 3


def rewritten(folder, columns, order=None, name="train"):
    """Give a client's examples these names, and its columns this order."""
    with np.load(folder / f"{name}.npz") as found:
        arrays = dict(found)
    arrays["columns"] = columns
    if columns is None:
        del arrays["columns"]
    if order is not None:
        arrays["x"] = arrays["x"][:, order]
    np.savez(folder / f"{name}.npz", **arrays)


NAMES = ["age", "weight", "job=miner", "job=nurse", "weight is missing"]
COLUMNS = {  # names at client 1 -> why it is refused
    "swapped": (
        ["weight", "age", *NAMES[2:]],
        "client 1 (client-1) has its columns in another order: ['weight', 'age', ",
    ),
    "another": (["Alter", *NAMES[1:]], "has other columns: ['Alter', "),
    "none": (None, "has other columns: [], shared.json of the server ['age', "),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_names_of_columns_are_compared_at_the_hello(tmp_path, table, case):
    there = Deployment(tmp_path, config_of("fedavg", f"dataset.name={table}", *TABLE, "rounds=1"))
    assert list(there.held.shared.columns) == NAMES
    columns, reason = COLUMNS[case]
    rewritten(there.folders[1], columns, [1, 0, 2, 3, 4] if case == "swapped" else None)
    with pytest.raises(UsageError) as caught:
        there.serve()
    assert "\n" not in str(caught.value)
    assert reason in str(caught.value)
    assert not (there.place / "stages.jsonl").exists()
    if case == "swapped":
        rewritten(there.folders[1], NAMES, [1, 0, 2, 3, 4])
        there.serve()


@pytest.mark.parametrize("content", ["{", "[]", '{"encoding": {}}', '{"encoding": 3}'])
def test_a_damaged_record_of_the_network_is_one_line(tmp_path, content):
    there = Deployment(tmp_path, config_of("fedavg", "rounds=1"))
    there.serve()
    (there.place / "network.json").write_text(content)
    with pytest.raises(UsageError, match=r"network\.json has changed since the run wrote it"):
        jaxfed.open(there.place)
    (there.place / "manifest.json").unlink()
    with pytest.raises(UsageError, match=r"cannot read .*network\.json: ") as caught:
        jaxfed.open(there.place).model()
    assert "\n" not in str(caught.value)
