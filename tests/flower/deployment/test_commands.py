"""`launch.flower` at the command line: mistakes are one line and status 2; `check` uses no network."""

import importlib.util
import json
import socket
import ssl
import sys
import threading
from contextlib import suppress

import numpy as np
import pytest
import stand_in_flower
from invoking import ROOT, called, invoke

import jaxfed
from jaxfed.config import check as config_check
from jaxfed.config import file as config_file
from jaxfed.errors import UsageError
from jaxfed.experiment.store.workdir import Workdir
from jaxfed.flower import app
from jaxfed.flower.client import client_step, consent
from jaxfed.flower.client.client_data import ClientSettings
from jaxfed.flower.deployment import certificates, commands, comparison, control, guarded, local
from jaxfed.flower.deployment.processes import DeploymentError
from jaxfed.flower.messages import setup
from jaxfed.host.checkpoint import Checkpoints
from launch import flower

make_server = config_file.load_module(str(ROOT / "examples/flower/make_server.py"))
make_client = config_file.load_module(str(ROOT / "examples/flower/make_client.py"))

DIGITS = "ml_collections_configs/xclp_digits.py"


@pytest.fixture
def command():
    def run(*arguments):
        return invoke(arguments, flower.main)

    return run


@pytest.fixture
def with_flower(monkeypatch):
    """As if Flower were installed; what needs it is replaced by stand-ins."""
    monkeypatch.setattr(control, "check_flower", lambda: None)
    monkeypatch.setattr(commands, "check_flower", lambda: None)
    monkeypatch.setattr(commands, "Control", stand_in_flower.Control)
    monkeypatch.setattr(local, "PROGRAMS", stand_in_flower.programs())


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "client"
    place.mkdir(mode=0o700)
    (place / "client.toml").write_text('number = 0\nname = "north"\n')
    np.savez(place / "train.npz", x=np.ones((4, 3), np.float32), y=[0, 1, -1, -1])
    return place


def test_check(command, folder, capsys):
    assert commands.check(folder) == 0
    said = capsys.readouterr().out
    assert "client 0 (north): 4 examples of 3 float32, 2 of them labeled" in said
    np.savez(folder / "test.npz", x=np.ones((4, 3), np.float32))
    assert command("check", f"--data={folder}")[0] == 2


def test_without_flower_one_line_says_what_to_install(command, monkeypatch):
    found = importlib.util.find_spec
    missing = {"flwr": None}
    monkeypatch.setattr(control, "find_spec", lambda name: missing.get(name, found(name)))
    monkeypatch.setitem(missing, "flwr", None)
    assert command("try", f"--config={DIGITS}", "--workdir=w") == (
        2,
        "jaxfed: Flower is missing; pip install -r requirements-flower.txt\n",
    )


def test_a_server_checks_before_it_listens(with_flower, tmp_path):
    """What the server's process would refuse is one line at the command, and nothing has started."""
    keys, held, place = tmp_path / "keys", tmp_path / "held", tmp_path / "w"
    for name in "abc":
        certificates.make_node_key(keys / f"{name}.key")
    make_server.main(held)

    def serve(*overrides, held=held):
        commands.serve(
            str(ROOT / "examples/flower/fedavg_digits.py"),
            overrides,
            place,
            host="127.0.0.1",
            port=1,
            nodes=keys,
            held=held,
        )

    with pytest.raises(UsageError, match="--held is missing"):
        serve(held=None)
    with pytest.raises(UsageError, match=r"cannot read .*none/shared\.json"):
        serve(held=tmp_path / "none")
    with pytest.raises(UsageError, match="this method runs in one process alone"):
        serve("algorithm=fedsem")
    assert not place.exists()
    (place / "run").mkdir(parents=True)
    (place / "run" / "letter.txt").write_text("of something else")
    with pytest.raises(UsageError, match="run"):
        serve()
    assert not (place / "network").exists()


NODE = """
import subprocess, sys, time
from pathlib import Path
file = Path({file!r})
starts = file.read_text() if file.exists() else ""
file.write_text(starts + "x")
text, status = {outputs!r}[len(starts)]
time.sleep(0.6 * len(starts))
print(text, flush=True)
if status is not None:  # a child of it ends later
    late = "import time; time.sleep(0.3); print('late' * 200, flush=True)"
    subprocess.Popen([sys.executable, "-S", "-c", late], start_new_session=True)
time.sleep(600 * (status is None))
sys.exit(status)
"""
REFUSED = "ERROR :  Exit Code: 305\nFailed.\n[code: 2004] Failed to activate SuperNode.\n{}\n"
UNKNOWN, IN_USE = ((REFUSED.format(text), 1) for text in (guarded.UNKNOWN_KEY, guarded.KEY_IN_USE))
CONNECTED = "INFO :  SuperNode ID: 17\n"
SENT = f"{client_step.CONSOLE}round 1, update: 4 bytes leave: delta 4\n"
# What nodes that are started one after another print, and their status or None for no end -> lines of the
# client's console, the last of which ends the test, or an error
CLIENTS = {
    "connected": ([(CONNECTED + SENT, None)], ["connected to", "round 1, update: 4 bytes leave"]),
    "away": ([("", None)], ["no connection to 127.0.0.1:1: Connection refused"]),
    "lost": (
        [(f"{CONNECTED}WARNING :  Connection attempt failed, retrying in 1 seconds", None)],
        ["connected to", "no connection to 127.0.0.1:1: Connection refused"],
    ),
    "unknown key": (
        [UNKNOWN, (CONNECTED, None)],
        ["127.0.0.1:1 refuses None: the server does not know this key", "connected to"],
    ),
    "key in use": (
        [IN_USE, IN_USE, (CONNECTED, None)],
        [*["127.0.0.1:1 refuses None: a node is connected with this key, or was"] * 2, "connected"],
    ),
    "server started again": (
        [(f"{CONNECTED}INFO :  SuperNode terminated gracefully.", 0), (CONNECTED, None)],
        [
            "connected",
            "127.0.0.1:1 does not know this node any more; connecting again",
            "connected",
        ],
    ),
    "refused for long": (
        [IN_USE] * 100,
        [*["127.0.0.1:1 refuses None: a node is"] * 2, DeploymentError],
    ),
    "failed": ([("ERROR : no memory", 1)], [DeploymentError]),
    "failed later": ([(f"{CONNECTED}ERROR : no memory", 1)], ["connected", DeploymentError]),
}


@pytest.mark.parametrize("case", CLIENTS)
def test_the_console_of_a_client(folder, with_flower, monkeypatch, tmp_path, case):
    outputs, expected = CLIENTS[case]
    seconds = {"away": 0.0, "lost": 3.0}.get(case, 20.0)
    monkeypatch.setattr(commands, "_BETWEEN_LINES", seconds)
    monkeypatch.setattr(commands, "_BETWEEN_STARTS", 0.05)
    monkeypatch.setattr(commands, "_MOST_REFUSED", 0.1 if case == "refused for long" else 600.0)
    script = NODE.format(file=str(tmp_path / "starts"), outputs=outputs)
    program = (sys.executable, "-S", "-c", script)
    monkeypatch.setattr(local, "PROGRAMS", local.Programs((), program))
    said = []

    def say(line):
        said.append(line)
        if len(said) > len(expected):
            raise KeyboardInterrupt

    error = DeploymentError if DeploymentError in expected else KeyboardInterrupt
    with pytest.raises(error) as caught:
        commands.take_part(folder, "127.0.0.1:1", root_certificate=None, key=None, say=say)
    lines = [text for text in expected if isinstance(text, str)]
    assert said[0].startswith("node of ")
    assert len(said) == len(lines) + 1
    for line, begin in zip(said[1:], lines, strict=True):
        assert line.startswith(begin)
    if error is DeploymentError:
        assert ("no memory" if case.startswith("failed") else guarded.KEY_IN_USE) in str(
            caught.value
        )


def test_why_a_server_cannot_be_reached(tmp_path):
    authority = certificates.make_authority(tmp_path)
    other = certificates.make_authority(tmp_path / "other")
    own = certificates.make_server_certificate(authority, tmp_path, [])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.public, own.private)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = f"127.0.0.1:{listening.getsockname()[1]}"

        def serve():
            while listening.fileno() >= 0:
                with suppress(OSError), listening.accept()[0] as there:
                    context.wrap_socket(there, server_side=True).close()

        threading.Thread(target=serve, daemon=True).start()
        assert commands._unreachable(server, authority.public).startswith("it answers; the node")
        refused = commands._unreachable(server, other.public)
    assert refused.startswith(f"its certificate is not accepted by {other.public}: ")
    nobody = f"127.0.0.1:{local.free_ports(1)[0]}"
    assert commands._unreachable(nobody, None).startswith("Connection refused; check that the ser")


def test_the_hash_of_a_config_is_that_of_the_hello():
    """For client.toml: that of the server's own line, whatever belongs to a machine."""
    config = "examples/flower/fedavg_digits.py"
    done = called(flower.main, "fingerprint", f"--config={ROOT / config}", "--config.rounds=3")
    assert (done.returncode, done.stderr) == (0, "")
    printed = done.stdout.strip()
    there = commands.load(str(ROOT / config), ["rounds=3", "execution.workers=2"])
    assert there.fingerprint == printed
    text = setup.config_text(there.config)
    settings = ClientSettings(number=0, name="north", config=printed)
    assert consent.accepted(settings, text, "fedavg", f"{printed}-run").rounds == 3


STOPPED = [
    {"stage": "turn", "round": 1},
    {"stage": "upload", "round": 1},
    {
        "stage": "upload ended",
        "round": 1,
        "why": {"1": "late"},
        "lost": 1,
        "replies": 2,
        "seconds": 1,
    },
    {"stage": "turn", "round": 2},
    {
        "stage": "turn ended",
        "round": 2,
        "why": {"0": "late"},
        "lost": 1,
        "replies": 1,
        "seconds": 1,
    },
]


SECURE = ["xclp.hamming=masked", "xclp.row_sums=masked", "xclp.influence=columns"]


def test_a_trial_by_stand_ins(with_flower, monkeypatch, tmp_path):
    """From the config to the comparison, with a run in which nothing happens, and one that nodes leave."""
    monkeypatch.setattr(
        local.Local, "__init__", stand_in_init(local.Local.__init__, stand_in_flower)
    )
    said, simulated = [], []
    place = tmp_path / "w"
    (place / "run").mkdir(parents=True)
    stages = place / "run" / "stages.jsonl"

    def try_here():
        return commands.try_here(
            f"{DIGITS}:smoke",
            SECURE,
            place,
            simulate=lambda config, folder, left: simulated.append(left),
            num_nodes=3,
            say=said.append,
        )

    monkeypatch.setattr(commands.workdir, "is_finished", lambda *_: False)
    with pytest.raises(UsageError, match=r"xclp\.hamming='plaintext': does not run on a network"):
        commands.try_here(f"{DIGITS}:smoke", [], place, simulate=None, say=said.append)
    assert not (place / "network").exists()  # no process was started
    assert try_here() == 0
    assert said[-2] == "network and simulation: no states to compare; no labels to compare"
    stages.write_text("".join(json.dumps(line) + "\n" for line in STOPPED))
    assert try_here() == 0
    assert simulated == [{}, {1: [1], 2: [0]}]
    assert said[-3].startswith("network and simulation without those who left: ")
    assert said[-2] == "what was sent before may count: client 1 left round 1 at 'upload'"
    assert sorted(path.name for path in place.iterdir()) == ["network", "nodes", "run", "server"]
    differs = comparison.Difference(0.0, 1, 1, 100)
    monkeypatch.setattr(commands, "compare", lambda *_, **__: differs)
    assert try_here() == 1


def stand_in_init(init, flower):
    def changed(self, *arguments, **keywords):
        init(self, *arguments, **keywords, connect=flower.Control, programs=flower.programs())

    return changed


def test_differences_of_two_workdirs(tmp_path):
    states = [{"w": np.float32([1, 2]), "round": 3}, {"w": np.float32([1, 2.5]), "round": 3}]
    for name, state in zip("ab", states, strict=True):
        files = Workdir(tmp_path / name)
        Checkpoints(files.final_state("m", 0)).save(1, state, {})
    places = tmp_path / "a", tmp_path / "b"
    assert str(comparison.compare(*places, "m")) == (
        "max |difference| 0.5 of 2 arrays; no labels to compare"
    )
    assert comparison.compare(places[0], places[0], "m").largest == 0.0
    assert comparison.compare(*places, "other").largest is None


def test_a_state_to_start_from_is_found_from_another_folder(tmp_path, monkeypatch):
    """The server that reads it is a process in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    spec = str(ROOT / "examples/flower/fedavg_digits.py:smoke")
    jaxfed.run(spec, workdir="before", **{"execution.plots": False})
    state = "training.initial_model=before/states/fedavg-{repeat}"
    experiment = commands.load(spec, [state])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    config_check.check(config_file.load(experiment.spec, experiment.overrides))
    assert experiment.config.training.initial_model.startswith(str(tmp_path))


def test_the_app_is_two_thin_files():
    """What Flower sends to sites: no code that a site has not installed itself, and all of it packaged."""
    files = {path.relative_to(commands.APP) for path in commands.APP.rglob("*") if path.is_file()}
    names = {str(path) for path in files if "__pycache__" not in path.parts}
    package = "jaxfed_app"
    assert names == {
        *("pyproject.toml", "__init__.py"),
        *(f"{package}/{name}.py" for name in ("__init__", "client", "server")),
    }
    assert commands.APP.samefile(app.__path__[0])
    assert sum(len((commands.APP / name).read_text().splitlines()) for name in names) < 100


def test_the_example_is_right(tmp_path, capsys):
    config = commands.load(str(ROOT / "examples/flower/fedavg_digits.py:smoke"), []).config
    assert (config.rounds, config.deployment.quorum) == (2, 0.6)
    make_client.main(tmp_path / "north", 0, "north")
    assert capsys.readouterr().out == f"{tmp_path / 'north'} is ready\n"
    assert commands.check(tmp_path / "north", num_classes=10) == 0
