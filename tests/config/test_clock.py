"""The section `clock` and `concurrency`: mistakes in one line, methods that can be asynchronous."""

import numpy as np
import pytest
from invoking import invoke

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import clock, methods
from jaxfed.config import file as config_file
from jaxfed.config.build.assembly import make_algorithm
from jaxfed.config.checks.check import check
from jaxfed.config.data.simulation import Simulation
from jaxfed.config.sections import section_of
from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation
from jaxfed.federation.clock.settings import Clock
from jaxfed.testing.method_checks import arranged, has_learners, trains

CONFIG = "ml_collections_configs/federated_optimization.py"
TIMED = "clock.seconds_per_example=0.01"
AT_SERVER = "ml_collections_configs/labels_at_server.py:smoke"


def loaded(*overrides, config=CONFIG):
    return config_file.load(config, overrides)


def test_it_is_off_by_default_and_whole_where_it_is_on():
    assert section_of(loaded(), "clock") == Clock()
    assert not Clock().is_on
    config = loaded(config=f"{CONFIG}:clock")
    check(config)
    assert section_of(config, "clock").is_on
    own = methods.with_own_training(config, "fedbuff").training
    assert (own.concurrency, own.staleness_exponent) == (10, 0.5)
    assert methods.with_own_training(config, "fedprox").training.concurrency == 0


def test_a_table_is_read_before_anything_runs(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("client,from,to\n0,0,9\n20,0,9\n")
    arguments = [f"--config={CONFIG}:smoke", f"--workdir={tmp_path / 'w'}", f"--config.{TIMED}"]
    status, err = invoke([*arguments, f"--config.clock.availability={table}"])
    assert status == 2
    assert err == (
        f"jaxfed: config.clock.availability='{table}': line 3: client 20 is unknown; use 0 to 19\n"
    )
    assert not (tmp_path / "w").exists()


def test_a_deadline_that_nobody_meets_leaves_nothing_behind(tmp_path):
    arguments = [f"--config={CONFIG}:clock,smoke", f"--workdir={tmp_path / 'w'}"]
    status, err = invoke([*arguments, "--config.clock.deadline=0.1"])
    assert status == 2
    assert err.splitlines()[-1].startswith(
        "jaxfed: config.clock.deadline=0.1: no client of 'fedavg' finishes a round by then, the fastest "
    )
    assert err.endswith("; allow more, or fewer seconds_per_example\n")
    assert not (tmp_path / "w").exists()


LABELED, UNLABELED = [0, 1] * 5, [-1] * 2  # 10 examples are 0.1 s, 2 are 0.02 s


@pytest.mark.parametrize(
    ("algorithm", "stage_1", "labels_at", "is_refused"),
    [
        ("fedavg", 0, "clients", True),  # clients without labels have no work
        ("fixmatch", 1, "clients", True),  # in stage 1
        ("fixmatch", 0, "clients", False),  # they train on what they hold
        ("fedct", 1, "clients", False),  # without a stage 1
        ("fedavg", 0, "server", False),  # no client has work
        ("fixmatch", 1, "server", False),
    ],
)
def test_a_deadline_is_compared_with_clients_that_have_work(
    algorithm, stage_1, labels_at, is_refused
):
    labels = [LABELED if labels_at == "clients" else [-1] * 10, UNLABELED]
    clients = [(np.zeros((len(own), 2), np.float32), own) for own in labels]
    server = (np.zeros((2, 2), np.float32), [0, 1]) if labels_at == "server" else None
    federation = Federation.from_clients(clients, server=server, num_classes=2)
    config = loaded(
        *(TIMED, "clock.deadline=0.05", f"algorithm={algorithm}", "baselines=()"),
        *("training.epochs=1", "training.local_steps=0"),
        *(f"training.labeled_only_rounds={stage_1}", f"federation.labels_at={labels_at}"),
    )
    if not is_refused:
        clock.check_deadlines(config, federation, 0)
        return
    with pytest.raises(UsageError, match=r"no client of .* the fastest takes 0\.1 s"):
        clock.check_deadlines(config, federation, 0)


def test_a_table_belongs_to_the_data_of_a_run(tmp_path):
    """A changed table under an unfinished run is refused as changed data are."""
    table = tmp_path / "t.csv"
    sums = []
    for end in (9, 8):
        table.write_text(f"client,from,to\n0,0,{end}\n")
        config = loaded(TIMED, f"clock.availability={table}", config=f"{CONFIG}:smoke")
        sums.append(Simulation(config).data_checksums()["clock.availability"])
    assert sums[0] != sums[1]
    table.unlink()
    with pytest.raises(UsageError, match=r"config\.clock\.availability='.*t\.csv': no such file"):
        Simulation(config).data_checksums()


AVERAGING = [
    name
    for name in ALGORITHMS
    if trains(name)
    and not has_learners(name)
    and name not in ("semifl", "fl2", "fedcon")  # need labels at the server
]


@pytest.mark.parametrize("name", AVERAGING)
def test_what_a_method_declares_is_what_it_does(name):
    """A method that declares to average changes alone has no other part in its round, and no other does."""
    config, _, algorithm = arranged(name, "auto", ("training.strong_augmentation=('cutout:2',)",))
    needed = methods.needs(config, name)
    declares = needed.averages and needed.pseudo_label in ("none", "unlabeled")
    assert declares == (algorithm.with_arrivals is not None)
    has_guarantee = "participation" in needed.takes
    assert has_guarantee == (algorithm.check_participation is not None)


@pytest.mark.parametrize("place", ["local", "static"])
def test_statistics_that_are_no_mean_make_it_synchronous(place):
    config = loaded(f"training.batch_statistics={place}", config=f"{CONFIG}:smoke")
    federation = Simulation(config).federation(0)
    assert make_algorithm(config, "fedavg", federation).with_arrivals is None
