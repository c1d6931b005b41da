"""After a run over a network: model, predictor and names, at the server, without anybody's data."""

import shutil

import numpy as np
import pytest
from network_deployment import METHODS, Deployment, config_of
from on_demand import on_demand

import jaxfed
from jaxfed.errors import UsageError

ALIKE = ("rounds=1", "federation.partition=iid")  # clients of one size have one program
TABLE = ("preprocessing.kind=standardized", "dataset.train_size=0", "dataset.label_key=sick")
NAMES = ["age", "weight", "job=miner", "job=nurse", "weight is missing"]
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
    config = config_of(name, *settings, *ALIKE, "dataset.train_size=90")
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


def test_a_server_of_sites_with_names_of_columns_takes_rows_by_name(tmp_path, table):
    there = Deployment(tmp_path, config_of("fedavg", f"dataset.name={table}", *TABLE, *ALIKE))
    there.serve()
    x, columns = there.held.parts["test"].x[:2], there.held.shared.columns
    assert list(columns) == NAMES
    result = jaxfed.open(alone(there))
    rows = [dict(zip(columns, row, strict=True)) for row in x.tolist()]
    np.testing.assert_array_equal(result.predictor()(rows), result.model()(x))
    assert result.federation().num_clients == 3


def rewritten(folder, columns, order=None):
    """Give a client's examples these names, and its columns this order."""
    arrays = dict(np.load(folder / "train.npz"))
    arrays["columns"] = () if columns is None else columns
    if order is not None:
        arrays["x"] = arrays["x"][:, order]
    np.savez(folder / "train.npz", **arrays)


COLUMNS = {"swapped": ["weight", "age", *NAMES[2:]], "another": ["Alter", *NAMES[1:]], "none": None}


@pytest.mark.parametrize("case", COLUMNS)
def test_names_of_columns_are_compared_at_the_registration(tmp_path, table, case):
    there = Deployment(tmp_path, config_of("fedavg", f"dataset.name={table}", *TABLE, "rounds=1"))
    rewritten(there.folders[1], COLUMNS[case], [1, 0, 2, 3, 4] if case == "swapped" else None)
    with pytest.raises(UsageError, match="client-1 has examples of columns ") as caught:
        there.serve()
    assert "\n" not in str(caught.value)
    assert ("in another order, not ('age', 'wei" in str(caught.value)) == (case == "swapped")
    assert not (there.place / "stages.jsonl").exists()
    if case == "swapped":
        rewritten(there.folders[1], NAMES, [1, 0, 2, 3, 4])
        there.serve()
