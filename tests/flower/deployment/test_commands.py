"""`launch.flower` at the command line: mistakes are one line and status 2, before a process starts."""

import shutil
import socket
import stat
import sys
from pathlib import Path

import numpy as np
import pytest
from invoking import ROOT, invoke

from jaxfed.config import file as config_file
from jaxfed.errors import UsageError
from jaxfed.experiment.store.workdir import Workdir, open_workdir
from jaxfed.flower.deployment import commands, programs, trial
from jaxfed.host import storage
from jaxfed.host.checkpoint import Checkpoints
from launch import flower

make_server = config_file.load_module(str(ROOT / "examples/flower/make_server.py"))
make_client = config_file.load_module(str(ROOT / "examples/flower/make_client.py"))

DIGITS = "ml_collections_configs/xclp_digits.py"


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "client"
    place.mkdir(mode=0o700)
    (place / "client.toml").write_text('number = 0\nname = "north"\n')
    np.savez(place / "train.npz", x=np.ones((4, 3), np.float32), y=[0, 1, -1, -1])
    return place


def test_without_flower_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(programs, "find_spec", lambda name: None)
    assert invoke(("try", f"--config={DIGITS}", "--workdir=w"), flower.main) == (
        2,
        "jaxfed: Flower is missing; pip install -r requirements-flower.txt\n",
    )


@pytest.mark.parametrize("command", ["try", "server", "client"])
def test_a_missing_program_of_flower_is_one_line(monkeypatch, tmp_path, command):
    for name in programs._PROGRAMS.split()[:-1]:
        (tmp_path / name).touch(0o700)
    monkeypatch.setattr(programs.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    status, line = invoke((command, f"--config={DIGITS}", "--workdir=w"), flower.main)
    assert status == 2
    assert line == (
        f"jaxfed: Flower's program flwr-clientapp is neither beside Python in {tmp_path} nor in PATH; "
        "install Flower into a virtual environment and use its Python\n"
    )


def test_a_server_checks_before_it_listens(tmp_path, monkeypatch):
    """What the server's process would refuse is one line at the command, and nothing has started."""
    held, place = tmp_path / "held", tmp_path / "w"
    make_server.main(held)
    address = programs.Address("127.0.0.1", 1, tmp_path / "keys")

    def serve(*overrides, held=held, clients="abc"):
        experiment = commands.load(f"{ROOT}/examples/flower/fedavg_digits.py", overrides)
        commands.serve(experiment, place, address, held=held, clients=dict.fromkeys(clients, ()))

    with pytest.raises(UsageError, match=r"--nodes: 2 public keys \(\*\.pub\) for 3 clients"):
        serve(clients="ab")

    with pytest.raises(UsageError, match=r"cannot read .*none/shared\.json"):
        serve(held=tmp_path / "none")
    with pytest.raises(UsageError, match="this method runs in one process alone"):
        serve("algorithm=fedsem")
    assert not place.exists()
    with socket.create_server((programs.HERE, 0)) as taken:
        address = address._replace(port=taken.getsockname()[1])
        with pytest.raises(UsageError, match=r"--port=[0-9]+: Address already in use"):
            serve()
    shutil.rmtree(place)
    assert not place.exists()
    config, slept = commands.load(f"{ROOT}/examples/flower/fedavg_digits.py", ()).config, []
    monkeypatch.setattr(commands.time, "sleep", slept.append)
    with (
        open_workdir(place / "run", config.to_dict()),
        pytest.raises(UsageError, match="run: another process is running here"),
    ):
        serve()
    assert slept == [1.0] * 30  # a killed server's processes end by then
    (place / "run" / "config.json").unlink()
    (place / "run" / "letter.txt").write_text("of something else")
    with pytest.raises(UsageError, match="run: is no workdir"):
        serve()
    assert not (place / "network").exists()


def test_a_node_that_ends_is_started_again(folder, monkeypatch):
    """The server may have forgotten it. The worker's socket is its user's alone; no process is left."""
    monkeypatch.setattr(programs, "_BETWEEN_STARTS", 0.01)
    monkeypatch.setattr(programs, "_POLL_SECONDS", 0.01)
    found, processes, real, said = [], [], programs.start, []
    apps = (sys.executable, "apps")

    def node(server, config, port, **_):
        found.append(Path(config.removeprefix('worker="').removesuffix('"')).parent)
        assert stat.S_IMODE(found[0].stat().st_mode) == 0o700
        return ["flower-supernode", "-c", "exit(7)"]

    def start(command, variables):
        own = command[1:] if "supernode" in command[0] else ["-c", "import time; time.sleep(600)"]
        processes.append(real([sys.executable, *own], variables))
        return processes[-1]

    def say(line):
        said.extend([line] * (line[0] != "$"))
        if len(said) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(programs, "node_command", node)
    monkeypatch.setattr(programs, "start", start)
    key = folder / "client.toml"  # any file
    key.chmod(0o644)
    with pytest.raises(UsageError, match="others can read this private key"):
        commands.take_part(folder, "127.0.0.1:1", root=key, key=key, apps=apps)
    key.chmod(0o600)
    (folder / "node").mkdir()
    with (
        storage.lock(folder / "node" / ".lock"),
        pytest.raises(UsageError, match="client: another client runs in this folder"),
    ):
        commands.take_part(folder, "127.0.0.1:1", root=key, key=key, apps=apps)
    (folder / "of a client that was killed").mkdir()
    (folder / "node" / "sockets").symlink_to(folder / "of a client that was killed")
    with pytest.raises(KeyboardInterrupt):
        commands.take_part(folder, "127.0.0.1:1", root=key, key=key, apps=apps, say=say)
    assert said == ["flower-supernode ended with status 7; starting it again"] * 3
    assert not found[0].exists()
    assert not (folder / "of a client that was killed").exists()
    assert [process.poll() is None for process in processes] == [False] * 6


SECURE = ["xclp.hamming=masked", "xclp.row_sums=masked", "xclp.influence=columns"]


def test_a_trial_without_processes(monkeypatch, tmp_path):
    """From the config to the comparison, with a run in which nothing happens."""
    said, simulated, played = [], [], []
    place = tmp_path / "w"
    (place / "run").mkdir(parents=True)

    def try_here(*settings):
        return commands.try_here(
            commands.load(f"{DIGITS}:smoke", ("federation.num_clients=3", *settings)),
            place,
            simulate=lambda config, folder: simulated.append(folder.name),
            client=("client",),
            say=said.append,
        )

    def run_app(network, address, clients, app, settings, **_):
        played.append([command[1] for command in clients.values()])

    monkeypatch.setattr(programs, "run_app", run_app)
    monkeypatch.setattr(commands.workdir, "is_finished", lambda *_: bool(played))
    with pytest.raises(UsageError, match=r"xclp\.hamming='plaintext': does not run on a network"):
        try_here()
    assert not played
    assert not (place / "network").exists()  # nor a key
    assert try_here(*SECURE) == 1  # nothing was compared
    assert played == [[f"--data={place / 'nodes' / number}" for number in "012"]]
    assert said[-1] == "network and simulation: no states to compare; no labels to compare"
    assert simulated == ["simulation"]
    for num_different in (0, 1):
        differs = trial.Difference(0.0, 1, num_different, 100)
        monkeypatch.setattr(trial, "compare", lambda *_, differs=differs, **__: differs)
        assert try_here(*SECURE) == num_different


def test_differences_of_two_workdirs(tmp_path):
    states = [{"w": np.float32([1, 2]), "round": 3}, {"w": np.float32([1, 2.5]), "round": 3}]
    for name, state in zip("ab", states, strict=True):
        files = Workdir(tmp_path / name)
        Checkpoints(files.final_state("m", 0)).save(1, state, {})
    places = tmp_path / "a", tmp_path / "b"
    assert str(trial.compare(*places, "m")) == (
        "max |difference| 0.5 of 2 arrays; no labels to compare"
    )
    assert trial.compare(places[0], places[0], "m").largest == 0.0
    nothing = trial.compare(*places, "other")
    assert (nothing.largest, nothing.is_none) == (None, False)


def test_the_example_is_right(tmp_path, capsys):
    config = commands.load(str(ROOT / "examples/flower/fedavg_digits.py:smoke"), []).config
    assert (config.rounds, config.deployment.quorum) == (2, 0.6)
    make_client.main(tmp_path / "north", 0, "north")
    assert capsys.readouterr().out == f"{tmp_path / 'north'} is ready\n"
