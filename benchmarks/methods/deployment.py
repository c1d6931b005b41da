"""FedAvg by real processes on one machine: jaxfed on Flower, and plain Flower with the same task.

    start to the first round's end    one SuperLink, three SuperNodes, TLS, keys; from the first process
    a steady round                    median of rounds 2 to 5

Both have three clients with the same folders, one hidden layer of 64, five epochs in batches of 32, and the
same settings of Flower. The peer (`benchmarks/peers/flower_app`) is a ServerApp with Flower's FedAvg
and a ClientApp in JAX, without anything of jaxfed: it asks no client who it is, keeps no state and checks no
message. Its ClientApp imports JAX for each message; jaxfed's hands the message to the site's worker.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from benchmarks.timing.contest import Contest, optional_peer

SAMPLES, ROUNDS = 3, 5
CONFIG = "examples/flower/fedavg_digits.py"
_OVERRIDES = (f"rounds={ROUNDS}", "federation.labeled_fraction=1.0")
_ROOT = Path(__file__).parents[2]
_PEER = _ROOT / "benchmarks" / "peers" / "flower_app"


class Played(NamedTuple):
    """Seconds of a federation, and its accuracy."""

    first: float
    steady: float
    accuracy: float


class Plays:
    """Plays of one side: each is measured once, and read by both contests."""

    def __init__(self, play: Callable[[], Played]) -> None:
        self._play = play
        self._played: list[Played] = []
        self._read = 0

    def new(self) -> Played:
        """Play once more."""
        self._played.append(self._play())
        return self._played[-1]

    def again(self) -> Played:
        """Return the plays so far, one after another."""
        self._read += 1
        return self._played[self._read - 1]


def deployment(with_peers: bool) -> Iterator[Contest]:
    """Time to the first round's end, and of a steady round."""
    from jaxfed.flower.deployment.programs import check_flower

    check_flower()
    with tempfile.TemporaryDirectory(prefix="jaxfed-bench-") as kept:
        ours = Plays(partial(_ours, Path(kept)))
        plain = Plays(partial(_plain, Path(kept)))
        peers = optional_peer("flower", lambda: plain.new) if with_peers else {}

        def contest(task: str, field: str, play: str) -> Contest:
            return Contest(
                task=task,
                case={"clients": 3, "network": "mlp 64"},
                ours=getattr(ours, play),
                peers={name: getattr(plain, play) for name in peers},
                agreement=_agreement,
                samples=SAMPLES,
                timed=lambda played: float(getattr(played, field)),
            )

        yield contest("federation, a steady round", "steady", "new")
        yield contest("federation, start to first round", "first", "again")


def _agreement(ours: Played, peer: Played) -> str:
    assert abs(ours.accuracy - peer.accuracy) < 0.05, (ours.accuracy, peer.accuracy)
    return f"accuracies {ours.accuracy:.3f} and {peer.accuracy:.3f}"


def _ours(kept: Path) -> Played:
    from jaxfed.flower.deployment import commands, programs
    from jaxfed.flower.server.client_calls import STAGES

    with tempfile.TemporaryDirectory(dir=kept) as folder:
        place = Path(folder)
        experiment, clients = _dealt(place)
        settings = experiment.run_settings(place / "run", place / "server")
        began = time.time()
        with mock.patch.dict(os.environ, JAXFED_CACHE=str(kept / "programs")):
            address = _address(place)
            command = sys.executable, "-m", "launch.flower", "client"
            started = commands.started_with(address, clients, command)
            programs.run_app(
                place / "network", address, started, commands.APP, settings, say=_nothing
            )
        lines = map(json.loads, (place / "run" / STAGES).read_text().splitlines())
        ends = [line["time"] for line in lines if line["stage"] == "end"]
        summary = json.loads((place / "run" / "summary.json").read_text())
        return _played(began, ends, summary["test_accuracy"])


def _plain(kept: Path) -> Played:
    from jaxfed.flower.deployment import programs

    with tempfile.TemporaryDirectory(dir=kept) as folder:
        place = Path(folder)
        _, clients = _dealt(place)
        out = place / "out.json"
        settings: programs.RunSettings = {"out": str(out), "rounds": ROUNDS}
        began = time.time()
        with mock.patch.dict(os.environ, JAX_COMPILATION_CACHE_DIR=str(kept / "programs")):
            address, started = _address(place), {}
            for data in clients:
                public = programs.make_node_key(key := place / f"{data.name}.key")
                config = f'data="{data}"'
                here, port = address.here, programs.free_port()
                started[public] = programs.node_command(
                    here, config, port, root=address.root, key=key
                )
            programs.run_app(place / "network", address, started, _PEER, settings, say=_nothing)
        found = json.loads(out.read_text())
        return _played(began, found["ends"], found["accuracy"])


def _address(place: Path):  # type: ignore[no-untyped-def]
    """Make a server's certificate; return the address that it will have."""
    from jaxfed.flower.deployment import programs

    programs.make_server_certificate(place / "keys", [])
    return programs.Address(programs.HERE, programs.free_port(), place / "keys")


def _dealt(place: Path):  # type: ignore[no-untyped-def]
    """Deal the config's data to folders; return the experiment and the clients' folders."""
    from jaxfed.flower.deployment import commands
    from jaxfed.flower.deployment.trial import deal

    experiment = commands.load(str(_ROOT / CONFIG), list(_OVERRIDES))
    return experiment, deal(experiment.config, place / "nodes", place / "server")


def _played(began: float, ends: list[float], accuracy: float) -> Played:
    steps = [after - before for before, after in pairwise(ends)]
    return Played(ends[0] - began, statistics.median(steps), accuracy)


def _nothing(line: str) -> None:
    del line
