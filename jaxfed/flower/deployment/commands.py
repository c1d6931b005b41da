"""Commands of `launch.flower`: try a federation here, serve one, take part in one, check a folder."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from ml_collections import ConfigDict

from jaxfed.config import file as config_file
from jaxfed.config.keys import flatten
from jaxfed.config.reading import opened
from jaxfed.config.sections import section_of
from jaxfed.errors import UsageError
from jaxfed.experiment.store import workdir
from jaxfed.flower.client import client_data
from jaxfed.flower.deployment import certificates, comparison, programs
from jaxfed.flower.deployment.dealing import deal
from jaxfed.flower.deployment.programs import Address, Say
from jaxfed.flower.messages import setup
from jaxfed.flower.server import server_data, server_run

Simulate = Callable[[ConfigDict, Path], None]

APP = Path(__file__).parents[1] / "app"
WORKER = "jaxfed.flower.deployment.worker"
RUN, SIMULATION, NODES, SERVER, NETWORK = "run", "simulation", "nodes", "server", "network"
KEYS = "keys"  # of the server, in its folder NETWORK
_OF_A_TRIAL = ("num_repeats=1", "baselines=()", "execution.plots=false")
_OF_A_KILLED_ONE = 30.0  # seconds until the processes of a killed server have ended
_LONGEST_ADDRESS = 100  # bytes of a Unix socket's name


class Experiment(NamedTuple):
    """A checked config, and what the ServerApp, another process, needs to load it again."""

    spec: str
    overrides: tuple[str, ...]
    config: ConfigDict

    @property
    def fingerprint(self) -> str:
        """Hash of the part that clients receive, as `config` in client.toml names it."""
        return setup.fingerprint(setup.config_text(self.config))

    def run_settings(self, place: Path, server: Path) -> programs.RunSettings:
        """Return the settings of a run of the app."""
        return {
            "config": self.spec,
            "overrides": json.dumps(self.overrides),
            "workdir": str(place.absolute()),
            "server": str(server.absolute()),
        }


def load(spec: str, overrides: Sequence[str]) -> Experiment:
    """Load and check a config for one run of its algorithm, without baselines."""
    path, variant = config_file.split_variant(spec)
    if Path(path).is_file():
        spec = f"{Path(path).absolute()}{f':{variant}' * bool(variant)}"
    own = (*overrides, *_OF_A_TRIAL)
    config = opened(spec, own)
    own += tuple(_absolute_paths(config))  # the server is another process, in another folder
    return Experiment(spec, own, config_file.load(spec, own))


def _absolute_paths(config: ConfigDict) -> Iterator[str]:
    """Yield KEY=VALUE for each relative path of a state that training starts from."""
    for key, value in flatten(config.to_dict()):
        if setup.is_state(key, value):
            yield f"{key}={Path(value).expanduser().absolute()}"


def try_here(
    spec: str,
    overrides: Sequence[str],
    place: Path,
    *,
    simulate: Simulate,
    client: Sequence[str],
    num_nodes: int | None = None,
    say: Say = print,
) -> int:
    """Play a config by real clients on this machine and in a simulation, and compare.

    `place` gets run/, the workdir of the federation; simulation/, that of `simulate`; nodes/J, each client's
    folder; server/, what the server holds; network/, keys and logs. Clients are started by the command
    `client`, `launch.flower client`.

    Returns:
        Exit status: 1 if the run failed, or differs from the simulation.

    Raises:
        UsageError: a mistake in the config or the arguments; no process has started.
    """
    programs.check_flower()
    place = place.absolute()
    if num_nodes is not None:
        overrides = [*overrides, f"federation.num_clients={num_nodes}"]
    experiment = load(spec, overrides)
    number = experiment.config.federation.num_clients
    section_of(experiment.config, "deployment").num_nodes(number)
    if not _is_finished(experiment, place):
        say(f"dealing {experiment.config.dataset.name} to {number} client{'s' * (number != 1)}")
        clients = deal(experiment.config, place / NODES, place / SERVER)
        server_run.check(experiment.config, server_data.read(place / SERVER))
        _claim(experiment, place)
        settings = experiment.run_settings(place / RUN, place / SERVER)

        def command(data: Path, address: Address, key: Path) -> list[str]:
            server = f"--server={address.here}"
            return [*client, f"--data={data}", server, f"--ca={address.root}", f"--key={key}"]

        play(place / NETWORK, clients, APP, settings, command, say=say)
        if not _is_finished(experiment, place):
            say(_failure(place / NETWORK))
            return 1
    say("simulating the same")
    simulate(experiment.config, place / SIMULATION)
    places, method = (place / RUN, place / SIMULATION), experiment.config.algorithm
    found = comparison.compare(*places, method, nodes=place / NODES)
    say(f"network and simulation: {found}")
    say(f"results are in {place / RUN}")
    return int(not found.is_none)


def play(
    network: Path,
    clients: Sequence[Path],
    app: Path,
    settings: programs.RunSettings,
    command: Callable[[Path, Address, Path], list[str]],
    *,
    say: Say = print,
) -> None:
    """Run an app by a SuperLink and clients on this machine, which end with it.

    `command` makes the command of a client from its folder, the server, and its key.
    """
    keys = network / KEYS
    certificates.make_server_certificate(keys, [])
    address = Address(programs.HERE, programs.free_port(), keys)
    own = [keys / f"node-{number}.key" for number in range(len(clients))]
    public = list(map(certificates.make_node_key, own))
    started = [command(data, address, key) for data, key in zip(clients, own, strict=True)]
    programs.run_app(network, address, public, app, settings, clients=started, say=say)


def serve(
    spec: str,
    overrides: Sequence[str],
    place: Path,
    *,
    host: str,
    port: int,
    nodes: Path,
    held: Path,
    names: Sequence[str] = (),
    say: Say = print,
) -> int:
    """Serve a federation of clients on other machines, and play a config's rounds with them.

    `place` gets run/, the workdir, and network/, with logs and keys/ (`certificates`). `nodes` is a folder of
    the clients' public keys, `held` what the server holds (`jaxfed.flower.server.server_data`), `names` has
    the names by which clients reach this machine.

    Returns:
        Exit status: 1 if the run failed. The same command continues it.

    Raises:
        UsageError: a mistake in the config or the arguments.
    """
    programs.check_flower()
    keys = sorted(nodes.glob("*.pub"))
    experiment = load(spec, overrides)
    limits = section_of(experiment.config, "deployment")
    wanted = limits.num_nodes(experiment.config.federation.num_clients)
    if len(keys) < wanted:
        raise UsageError(
            f"--nodes={nodes}: {len(keys)} public key{'s' * (len(keys) != 1)} (*.pub) for {wanted} "
            "clients (config.deployment.nodes)"
        )
    if not _is_finished(experiment, place):
        server_run.check(experiment.config, server_data.read(held))
        _claim(experiment, place)
        address = Address(host, port, place / NETWORK / KEYS)
        known = {*names, host} - {"0.0.0.0", "::"}
        certificates.make_server_certificate(address.certificates, sorted(known))
        if host != programs.HERE:
            say(f"whoever reaches {host}:{port} can run code at all sites: see docs/network.md")
        say(f"listening at {host}:{port}; clients need {address.root}")
        say(f"the config's hash, for client.toml, is {experiment.fingerprint}")
        settings = experiment.run_settings(place / RUN, held)
        programs.run_app(place / NETWORK, address, keys, APP, settings, say=say)
    is_finished = _is_finished(experiment, place)
    say(f"results are in {place / RUN}" if is_finished else _failure(place / NETWORK))
    return int(not is_finished)


def fingerprint(spec: str, overrides: Sequence[str], *, say: Say = print) -> int:
    """Print the hash of a config, by which a site agrees to it (`config` in its client.toml)."""
    say(load(spec, overrides).fingerprint)
    return 0


def take_part(folder: Path, server: str, *, root: Path, key: Path, say: Say = print) -> NoReturn:
    """Run a client's worker and its SuperNode until a signal ends them.

    The worker prints a line for each message that leaves or is refused, and Flower its own lines. One of them
    that has ended is started again. A worker ends if its memory is not enough. A SuperNode ends when the
    server forgets it, as after a restart of the server, and while the server counts an earlier one with its
    key as connected. A key that does not exist is made; its public part goes to the server.

    Raises:
        UsageError: something is wrong in the folder, or with the arguments.
        DeploymentError: one of the two ends again and again.
    """
    programs.check_flower()
    _, colon, port = server.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"--server={server}: use HOST:PORT")
    client_data.read(folder)
    if not root.is_file():
        raise UsageError(f"--ca={root}: no such file")
    if not key.exists():
        public = certificates.make_node_key(key)
        say(f"made {key}; the server needs {public} before this client can connect")
    certificates.check_private(key)
    variables = programs.environment(
        client_data.private_folder(folder.absolute(), client_data.NODE)
    )
    with tempfile.TemporaryDirectory(prefix="jaxfed-") as private:
        address = str(Path(private) / "worker")
        if len(os.fsencode(address)) > _LONGEST_ADDRESS:
            raise UsageError(f"{address}: set TMPDIR to a folder with a short name")
        config = f'worker="{address}"'
        worker = [sys.executable, "-m", WORKER, str(folder.absolute()), address]
        node = programs.node_command(server, config, root=root, key=key)
        programs.keep_running({"worker": worker, node[0]: node}, variables, say=say)


def check(folder: Path, *, say: Say = print) -> int:
    """Print what a client's folder has."""
    data = client_data.read(folder)
    labeled = int((data.train.y >= 0).sum())
    shape = "x".join(map(str, data.train.x.shape[1:]))
    test = 0 if data.test is None else len(data.test.y)
    public = 0 if data.public is None else len(data.public)
    say(
        f"{folder}: client {data.settings.number} ({data.settings.name}): {len(data.train.y)} examples of "
        f"{shape} {data.train.x.dtype}, {labeled} of them labeled; {test} test and {public} public ones"
    )
    return 0


def _is_finished(experiment: Experiment, place: Path) -> bool:
    return workdir.is_finished(place / RUN, experiment.config.to_dict())


def _claim(experiment: Experiment, place: Path) -> None:
    """Check that the workdir can be written, is this config's, and is not in use.

    The ServerApp of a command that was killed may use it for some seconds more.
    """
    until = time.monotonic() + _OF_A_KILLED_ONE
    while True:
        try:
            with workdir.open_workdir(place / RUN, experiment.config.to_dict()):
                return
        except UsageError as error:
            if not isinstance(error.__context__, BlockingIOError) or time.monotonic() > until:
                raise
        time.sleep(1.0)


def _failure(network: Path) -> str:
    return f"the run has not finished; logs are in {network / programs.LOGS}, the same command continues"
