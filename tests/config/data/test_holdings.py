"""One line of who holds what; and sizes, which belong to the data set that they were written for."""

import pytest
from small_simulations import simulation

from jaxfed.config import check, file
from jaxfed.config.base import SIZES_OF_A_SET
from jaxfed.config.data.simulation import Simulation
from jaxfed.config.keys import flatten
from jaxfed.config.overrides import with_overrides

FEDCT = "fedct.py:decision_tree"


@pytest.fixture
def patients(tmp_path):
    """800 rows of five hospitals, 40 of them without a diagnosis."""
    path = tmp_path / "patients.csv"
    rows = [
        f"{i % 7},{i % 11},hospital {i % 5},{'' if i < 40 else ('ill', 'well')[i % 2]}"
        for i in range(800)
    ]
    path.write_text("\n".join(["age,pressure,hospital,diagnosis", *rows]) + "\n")
    keys = {"name": path, "label_key": "diagnosis", "client_key": "hospital"}
    own = [f"dataset.{key}={value}" for key, value in keys.items()]
    return [*own, "federation.partition=natural", "federation.public_size=324"]


def test_another_data_set_has_shares_and_not_the_sizes_of_the_configs_own(patients):
    config = file.load(FEDCT, patients)
    check.check(config)
    assert with_overrides(file.load(FEDCT), patients).to_dict() == config.to_dict()
    held = Simulation(config).holdings()
    assert (held.clients, held.dropped, held.without_label) == (5, 0, 40)
    assert held.test == 152  # a fifth of 760 with a label
    assert held.labeled + held.unlabeled == 324
    assert held.line("patients") == (
        f"patients: 5 clients {held.labeled} labeled and {held.unlabeled} unlabeled, public 324, "
        "validation 0, test 152, dropped 0; 40 came without a label"
    )
    sizes = ["dataset.train_size=400", "dataset.test_size=100", "federation.public_size=50"]
    held = Simulation(file.load(FEDCT, [*patients, *sizes])).holdings()
    assert (held.test, held.public, held.dropped) == (100, 50, 300)


@pytest.mark.parametrize(
    "spec",
    [
        *("audit.py", "fedct.py:adult,epsilons", "labels_at_server.py:cifar10"),
        *("protofssl.py:stl10", "xclp_auto.py:covertype", "xclp_cifar10.py:few_labels"),
    ],
)
def test_no_config_keeps_a_size_for_other_data(spec):
    there = dict(flatten(file.load(spec, ["dataset.name=mine.csv"]).to_dict()))
    assert {key: there[key] for key in SIZES_OF_A_SET} == SIZES_OF_A_SET
    own = file.load(spec)
    assert file.load(spec, [f"dataset.name={own.dataset.name}"]).to_dict() == own.to_dict()


def test_all_roles_add_up(tmp_path):
    keys = {
        **{"federation.public_size": 20, "federation.own_size": 60, "federation.test": "central"},
        **{"dataset.train_size": 120, "dataset.test_size": 15, "dataset.validation_fraction": 0.1},
    }
    held = simulation(tmp_path, 30, **keys).holdings()
    assert held == (4, 6, 54, 0, 20, 12, 15, 210 - 60 - 20 - 12 - 15, 0)
    at_server = {"federation.labels_at": "server", "federation.num_labeled": 12}
    held = simulation(tmp_path, 30, **at_server).holdings()
    assert (held.server, held.labeled, held.unlabeled, held.dropped) == (12, 0, 168, 0)
    assert held.line("set").startswith("set: the server 12 labeled, 4 clients 0 labeled and 168 ")
