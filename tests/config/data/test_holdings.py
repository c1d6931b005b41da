"""One line of who holds what; and sizes, which belong to the data set that they were written for."""

import pytest
from small_simulations import simulation

from jaxfed.config import check, file
from jaxfed.config.base import PUBLIC_FRACTION, SIZES_OF_A_SET
from jaxfed.config.data.simulation import Simulation, few_rows
from jaxfed.config.keys import flatten
from jaxfed.config.overrides import with_overrides
from jaxfed.config.reading import opened

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
    keys = {
        "name": path,
        "label_key": "diagnosis",
        "client_key": "hospital",
    }
    own = [f"dataset.{key}={value}" for key, value in keys.items()]
    return [*own, "federation.partition=natural"]


def test_another_data_set_has_shares_and_not_the_sizes_of_the_configs_own(patients):
    config = file.load(FEDCT, patients)
    check.check(config)
    held = Simulation(config).holdings()
    assert held.clients == 5
    assert held.dropped == 0
    assert held.test == 152  # a fifth of 760 with a label
    assert held.public == 324  # half of the 648 others
    assert held.labeled + held.unlabeled == 324
    assert held.without_label == 40
    assert not few_rows(held.test, held.validation)
    assert not few_rows(100, 30)
    said = few_rows(99, 29)
    assert [line[:19] for line in said] == ["99 test rows, fewer", "29 validation rows,"]
    assert held.line("patients") == (
        f"patients: 5 clients {held.labeled} labeled and {held.unlabeled} unlabeled, public 324, "
        "validation 0, test 152, dropped 0; 40 came without a label"
    )


def test_a_config_object_has_them_as_its_file(patients):
    assert (
        with_overrides(file.load(FEDCT), patients).to_dict() == file.load(FEDCT, patients).to_dict()
    )


def test_what_is_given_beside_the_name_stays(patients):
    sizes = ["dataset.train_size=400", "dataset.test_size=100", "federation.public_size=50"]
    held = Simulation(file.load(FEDCT, [*patients, *sizes])).holdings()
    assert (held.test, held.public, held.dropped) == (100, 50, 300)


@pytest.mark.parametrize(
    "spec",
    [
        *("audit.py", "fedavg_xclp.py:fashion_mnist", "fedct.py:adult,epsilons", "fedct.py:public"),
        *("labels_at_server.py:cifar10", "protofssl.py:cifar10_iid", "protofssl.py:stl10"),
        *("xclp_auto.py:covertype", "xclp_fashion_mnist.py", "xclp_cifar10.py:few_labels"),
        *("fedavg_xclp.py:cifar10_iid_50_1000", "labels_at_server.py:smoke"),
    ],
)
def test_no_config_keeps_a_size_for_other_data(spec):
    there = dict(flatten(file.load(spec, ["dataset.name=mine.csv"]).to_dict()))
    assert {key: there[key] for key in SIZES_OF_A_SET} == SIZES_OF_A_SET
    own = file.load(spec)
    has_public = own.federation.public_size > 0
    assert there["federation.public_fraction"] == (PUBLIC_FRACTION if has_public else 0)
    assert file.load(spec, [f"dataset.name={own.dataset.name}"]).to_dict() == own.to_dict()


def test_a_share_of_labels_counts_for_other_data_where_the_config_has_a_number(patients):
    given = [*patients, "federation.labeled_fraction=0.5", "federation.num_clients=5"]
    given.append("preprocessing.kind=standardized")
    config = opened("fedavg_xclp.py", given)
    held = Simulation(config).holdings()
    assert held.labeled == pytest.approx(0.5 * (held.labeled + held.unlabeled - 40), abs=40)
    assert held.validation == 61


def test_all_roles_add_up(tmp_path):
    keys = {
        "federation.public_size": 20,
        "federation.own_size": 60,
        "dataset.train_size": 120,
        "dataset.test_size": 15,
        "dataset.validation_fraction": 0.1,
        "federation.test": "central",
    }
    held = simulation(tmp_path, 30, **keys).holdings()
    assert held._asdict() == {
        "clients": 4,
        "labeled": 6,
        "unlabeled": 54,
        "server": 0,
        "public": 20,
        "validation": 12,
        "test": 15,
        "dropped": 210 - 60 - 20 - 12 - 15,
        "without_label": 0,
    }
    at_server = {"federation.labels_at": "server", "federation.num_labeled": 12}
    held = simulation(tmp_path, 30, **at_server).holdings()
    assert (held.server, held.labeled, held.unlabeled, held.dropped) == (12, 0, 168, 0)
    assert held.line("set").startswith("set: the server 12 labeled, 4 clients 0 labeled and 168 ")
