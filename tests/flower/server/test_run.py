"""Whole runs by the code of Flower's processes, in this process: the simulation's, with faults too."""

import csv
import io
import json
import stat
from dataclasses import replace
from functools import wraps

import numpy as np
import pytest
from local_network import FAULTS
from network_deployment import (
    CONSISTENT,
    FIRST_NODE,
    VIEWS,
    Deployment,
    config_of,
    last_state,
    state_of,
)
from on_demand import on_demand

from jaxfed.api.run import run as simulate
from jaxfed.config.assembly import make_algorithm
from jaxfed.config.data.simulation import Simulation
from jaxfed.errors import UsageError
from jaxfed.experiment.run.loop import Experiment
from jaxfed.experiment.run.progress import RunProgress
from jaxfed.experiment.store.records import read_predictions
from jaxfed.experiment.store.workdir import open_workdir
from jaxfed.flower.client import client_data
from jaxfed.flower.deployment import trial
from jaxfed.flower.server import server_run
from jaxfed.host.interruption import Interruption


def played(place, config, faults=None, *, revives=False):
    """A deployment after its run."""
    there = Deployment(place, config, faults)
    there.network.revives = revives
    there.serve()
    return there


def compared(there, **options):
    """The difference of a run to its simulation, which is in `simulation` beside it."""
    place = there.place.parent / "simulation"
    simulate(there.config, workdir=place, progress=False)
    return trial.compare(there.place, place, there.config.algorithm, **options)


AT_ONCE = ["fedavg", "fedavg_per_client_lp"]  # the latter has other bits if padded otherwise


@pytest.mark.parametrize("name", on_demand([*AT_ONCE, "scaffold", *CONSISTENT], at_once=AT_ONCE))
def test_a_run_is_the_simulation(tmp_path, name):
    found = compared(played(tmp_path, config_of(name, *(VIEWS * (name in CONSISTENT)))))
    assert (found.largest, found.labels) == (0, 0)


def test_examples_are_vectors_too(tmp_path):
    """The check has no clients' sums of features yet, and there is one for each feature."""
    config = config_of("fedavg", "preprocessing.kind=standardized", "model.name=mlp")
    server_run.check(config, Deployment(tmp_path, config).held)


MASKED = ("training.sums=masked_resilient", "federation.num_clients=4", "rounds=2")


@pytest.mark.parametrize("method", ["fedavg", pytest.param("scaffold", marks=pytest.mark.slow)])
def test_a_client_killed_under_masks_is_a_departure(tmp_path, method):
    """It sends its upload in no round, as `training.presence` says to the simulation."""
    there = played(tmp_path, config_of(method, *MASKED), {(FIRST_NODE + 1, "upload", 1): "killed"})
    reasons = there.reasons()
    assert reasons.pop(("upload", 1)) == {1: "code 5"}
    assert list(reasons.values()) == [{1: "its node is not connected"}]
    there.config.training.presence = ("1@upload",)
    found = compared(there)
    assert found.num_arrays > 2
    assert (found.largest, found.labels) == (0, 0)


TREES = ("learner.name=decision_tree", "federation.public_size=60", "deployment.quorum=0.6")
SUMS = ("plaintext", "masked", "masked_resilient")


@pytest.mark.sample(1)
@pytest.mark.parametrize("sums", on_demand(SUMS, at_once=["plaintext", "masked"]))
def test_labels_are_the_simulations(tmp_path, sums):
    there = played(tmp_path, config_of("fedct", *TREES, f"fedct.sums={sums}"))
    found = compared(there)
    assert found.num_arrays > 2
    assert found.largest == 0
    (last,) = (tmp_path / "simulation" / "states" / "fedct-0-last").glob("*.npz")
    with np.load(last) as arrays:
        names = [name for name in arrays.files if name.startswith("state/learner.")]
        models = [arrays[name] for name in names]
    for client, folder in enumerate(there.folders):
        with np.load(io.BytesIO(state_of(folder)["model"])) as own:
            for number, rows in enumerate(models):
                np.testing.assert_array_equal(own[str(number)], rows[client])
    for folder in there.folders:  # between sessions a client keeps its model and no secret
        own = state_of(folder)
        assert own["model"]
        assert own["once"] is False
        assert own["seed"] == own["past"] == own["tally"] == b""


@pytest.mark.sample(1)
@pytest.mark.parametrize("fault", ["late", "garbage"])
def test_a_client_lost_in_a_session_keeps_its_model(tmp_path, fault):
    config = config_of("fedct", *TREES, "fedct.sums=masked_resilient")
    faults = {(FIRST_NODE + 1, "upload", 2): fault}
    there = played(tmp_path, config, faults)
    ((where, lost),) = there.reasons().items()
    assert where == ("upload", 2)
    assert lost.keys() == {1}
    votes = [
        json.loads(line)["clients"]
        for line in (there.place / "metrics.jsonl").read_text().splitlines()
        if json.loads(line).get("round")
    ]
    assert votes == [3, 3, 3]  # all take their turn in round 3, too
    assert state_of(there.folders[1])["model"]
    state, _ = last_state(there.place, "fedct")
    assert any(np.frombuffer(leaf, np.int32).size == 60 for leaf in state.values())


ONE_SHOT = (
    *("xclp.hamming=masked", "xclp.influence=columns", "xclp.num_bits=64"),
    *("xclp.row_sums=masked", "preprocessing.kind=identity"),
)


def labels_of(folder):
    """The labels that a client has stored, and no secret beside them."""
    state = state_of(folder)
    assert state["once"] is False
    assert state["seed"] == state["past"] == b""
    assert len(list(folder.glob("state/*/*.state"))) == 1  # earlier ones served once
    return np.frombuffer(state["label"], np.int32)


@pytest.mark.sample(1)
@pytest.mark.parametrize("row_sums", ["masked", "masked_resilient"])
def test_labels_at_clients_are_the_simulations(tmp_path, row_sums):
    """Those of new points in test.npz, too, which are in the graph."""
    more = f"xclp.row_sums={row_sums}", "federation.test=clients"
    config = config_of("xclp", *ONE_SHOT, *more)
    there = played(tmp_path, config)
    nodes = there.folders[0].parent
    found = compared(there, nodes=nodes)
    rows = read_predictions(tmp_path / "simulation", "xclp", 0)
    assert (found.labels, found.num_labels, found.is_none) == (0, len(rows), True)
    for client, folder in enumerate(there.folders):
        expected = [row for row in rows if int(row["client"]) == client]
        assert expected
        assert labels_of(folder).tolist() == [int(row["label"]) for row in expected]
        assert_in_a_file(folder, expected)
    file = there.folders[1] / "labels.csv"
    text = file.read_text()
    file.write_text(text.replace("npz,0,", "npz,0,7", 1))
    places = there.place, tmp_path / "simulation"
    assert trial.compare(*places, "xclp", nodes=nodes).labels == 1
    assert trial.compare(*places, "xclp").labels is None


def assert_in_a_file(folder, expected):
    """The client's labels.csv has the simulation's labels, by the rows of its own two files."""
    file = folder / "labels.csv"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with file.open(encoding="utf-8", newline="") as stream:
        found = list(csv.DictReader(stream))
    data = client_data.read(folder)
    y, num_new = data.points.y, len(data.test.y)
    assert num_new > 0
    assert [row["file"] for row in found] == ["train.npz"] * len(data.train.y) + [
        "test.npz"
    ] * num_new
    places = [*range(len(data.train.y)), *range(num_new)]
    assert [int(row["index"]) for row in found] == places
    assert [row["given"] for row in found] == ["" if label < 0 else str(label) for label in y]
    order = [*np.flatnonzero(y >= 0), *np.flatnonzero(y < 0)]  # the simulation's
    assert [found[row]["label"] for row in order] == [row["label"] for row in expected]
    np.testing.assert_allclose(
        [float(found[row]["confidence"]) for row in order],
        [float(row["confidence"]) for row in expected],
        atol=1e-5,
    )


def test_what_cannot_run_says_so_before_anybody_is_asked(tmp_path):
    there = Deployment(tmp_path, config_of("xclp"))
    every = (
        r"hamming=.*does not run on a network; use 'masked'; .*row_sums=.*; .*influence='labels'"
    )
    with pytest.raises(UsageError, match=every):
        there.serve()
    assert not there.network.received


WITHIN_ROUNDS = (
    *("xclp.hamming=masked", "xclp.influence=columns", "xclp.row_sums=masked_resilient"),
    *("xclp.num_bits=64", "training.labeled_only_rounds=0", "dataset.train_size=90"),
    *("deployment.quorum=0.6", "rounds=2"),
)
LETTERS = (
    *("embed", "join", "give_group_secret", "send_own", "send_positions", "announce"),
    *("share_secrets", "upload", "reveal", "end", "update"),
)
CASES = [
    f"{fault} at {letter}"
    for letter in LETTERS
    for fault in ("late", "garbage", "crash after", "twice with other content")
]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_client_lost_at_a_letter_has_left_its_round(tmp_path, case):
    fault, letter = case.split(" at ")
    config = config_of("fedavg_xclp", *WITHIN_ROUNDS)
    there = played(tmp_path, config, {(FIRST_NODE + 1, letter, 1): fault})
    ((where, lost),) = there.reasons().items()
    assert where == (letter, 1)
    assert lost.keys() == {1}
    asked = {
        (line["stage"], line["round"]): line["clients"]
        for line in there.lines()
        if "clients" in line and "why" not in line
    }
    if letter != "update":
        assert asked["update", 1] == [0, 2]
    assert asked["update", 2] == [0, 1, 2]  # it is back
    first, second = (
        json.loads(line)
        for line in (there.place / "metrics.jsonl").read_text().splitlines()
        if json.loads(line).get("round")
    )
    assert min(first["pseudo_labeled"], second["pseudo_labeled"]) > 0.5
    for folder in there.folders:
        state = state_of(folder)
        assert state["label"]
        assert state["once"] is False
        assert not any(state[name] for name in ("seed", "past", "vectors"))


# One makes all whole numbers negative, of which an update need not have any.
PLAYED = [fault for fault in FAULTS if fault != "out of range"]


def without(algorithm, left):
    """The method whose rounds are played as if clients {round: clients} had not been drawn."""

    @wraps(algorithm.round)
    def played(state, cohort, key):
        gone = left.get(int(state.round) + 1, ())
        is_there = ~np.isin(cohort.client_id, list(gone))
        fewer = cohort._replace(
            client_id=np.where(is_there, cohort.client_id, -1),
            y=np.where(is_there[:, None], cohort.y, -1),
            mask=cohort.mask & is_there[:, None],
        )
        return algorithm.round(state, fewer, key)

    return algorithm._replace(round=played)


def simulate_without(config, place, left):
    def make(*arguments, **keywords):
        return without(make_algorithm(*arguments, **keywords), left)

    settings = config.to_dict()
    with RunProgress(settings) as progress, open_workdir(place, settings) as directory:
        experiment = Experiment(config, Simulation(config), directory, progress, Interruption())
        directory.finish(replace(experiment, make=make).run())


@pytest.mark.parametrize(
    ("name", "clients", "rounds", "seed"),
    [
        ("fedavg", 3, 5, 7),
        *(
            pytest.param(name, clients, 30, seed, marks=pytest.mark.slow)
            for name, clients in (("fedavg", 4), ("scaffold", 3))
            for seed in (3, 4)
        ),
    ],
)
def test_random_faults_are_departures(tmp_path, name, clients, rounds, seed):
    rng = np.random.default_rng(seed)
    faults = {
        (FIRST_NODE + client, "update", number): str(rng.choice(PLAYED))
        for number in range(1, rounds + 1)
        for client in range(1, clients)  # client 0 stays, so that a round has somebody
        if rng.random() < 0.4
    }
    config = config_of(
        name,
        f"rounds={rounds}",
        f"federation.num_clients={clients}",
        "deployment.quorum=0.01",
    )
    there = played(tmp_path, config, faults, revives=True)
    left = {number: lost for (_, number), lost in there.reasons().items()}
    assert len(left) > rounds // 4
    simulate_without(config, tmp_path / "simulation", left)
    found = trial.compare(there.place, tmp_path / "simulation", name)
    assert (found.largest, found.labels) == (0, 0)
