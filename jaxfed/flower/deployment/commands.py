"""Commands of `launch.flower`: try a federation here, serve one, take part in one."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, NoReturn

from ml_collections import ConfigDict

from jaxfed.config import file as config_file
from jaxfed.config.check import opened
from jaxfed.errors import UsageError
from jaxfed.experiment.store import workdir
from jaxfed.flower.client import client_data
from jaxfed.flower.deployment import programs, trial
from jaxfed.flower.deployment.programs import HERE, Address, Say
from jaxfed.flower.messages import setup
from jaxfed.flower.server import server_data, server_run
from jaxfed.host import storage

Simulate = Callable[[ConfigDict, Path], None]

APP = Path(__file__).parents[1] / "app"
WORKER = "jaxfed.flower.client.client_run"
RUN, SIMULATION, NODES, SERVER, NETWORK = "run", "simulation", "nodes", "server", "network"
KEYS = "keys"  # of the server, in its folder NETWORK
_OF_A_TRIAL = ("num_repeats=1", "baselines=()", "execution.plots=false")


class Experiment(NamedTuple):
    """A checked config, and what the ServerApp, another process, needs to load it again."""

    spec: str
    overrides: tuple[str, ...]
    config: ConfigDict

    @property
    def fingerprint(self) -> str:
        """Hash of the part that clients receive, as `config` in client.toml names it."""
        return setup.fingerprint(setup.config_text(self.config))

    def run_settings(self, path: Path, server: Path) -> programs.RunSettings:
        """Return the settings of a run of the app."""
        return {
            "config": self.spec,
            "overrides": json.dumps(self.overrides),
            "workdir": str(path.absolute()),
            "server": str(server.absolute()),
        }


def load(spec: str, overrides: Sequence[str]) -> Experiment:
    """Load and check a config for one run of its algorithm, without baselines."""
    path, variant = config_file.split_variant(spec)
    if Path(path).is_file():
        spec = f"{Path(path).absolute()}{f':{variant}' * bool(variant)}"
    settings = (*overrides, *_OF_A_TRIAL)
    return Experiment(spec, settings, opened(spec, settings))


def try_here(
    experiment: Experiment,
    path: Path,
    *,
    simulate: Simulate,
    client: Sequence[str],
    say: Say = print,
) -> int:
    """Play a config by real clients on this machine and in a simulation, and compare.

    `path` gets run/, the workdir of the federation; simulation/, that of `simulate`; nodes/J, each client's
    folder; server/, what the server holds; network/, keys and logs. `client` is `launch.flower client`.

    Returns:
        Exit status: 1 if the run failed, or differs from the simulation.

    Raises:
        UsageError: a mistake in the config or the arguments; no process has started.
    """
    config, path = experiment.config, path.absolute()
    if not _is_finished(experiment, path):
        say(f"dealing {config.dataset.name} to clients")
        folders = trial.deal(config, path / NODES, path / SERVER)
        server_run.check(config, server_data.read(path / SERVER))
        address = Address(HERE, programs.free_port(), path / NETWORK / KEYS)
        clients = started_with(address, folders, client)
        if serve(experiment, path, address, held=path / SERVER, clients=clients, say=say):
            return 1
    say("simulating the same")
    simulate(config, path / SIMULATION)
    difference = trial.compare(path / RUN, path / SIMULATION, config.algorithm, nodes=path / NODES)
    say(f"network and simulation: {difference}")
    return int(not difference.is_none)


def started_with(
    address: Address, folders: Sequence[Path], client: Sequence[str]
) -> dict[Path, list[str]]:
    """Make a key for the client of each folder, and the command that starts it: public key -> command."""
    command_of = {}
    for number, folder in enumerate(folders):
        public = programs.make_node_key(key := address.certificates / f"node-{number}.key")
        server = f"--server={address.here}", f"--ca={address.root}"
        command_of[public] = [*client, f"--data={folder}", *server, f"--key={key}"]
    return command_of


def serve(
    experiment: Experiment,
    path: Path,
    address: Address,
    *,
    held: Path,
    clients: Mapping[Path, Sequence[str]],
    names: Sequence[str] = (),
    say: Say = print,
) -> int:
    """Serve a federation of clients, and play a config's rounds with them.

    `path` gets run/, the workdir, and network/, with logs. `held` is what the server holds
    (`jaxfed.flower.server.server_data`). `clients` are public keys, with commands of clients that start here.
    `names` has the names by which clients reach this machine.

    Returns:
        Exit status: 1 if the run failed. The same command continues it.
    """
    wanted = experiment.config.federation.num_clients
    if len(clients) < wanted:
        raise UsageError(f"--nodes: {len(clients)} public keys (*.pub) for {wanted} clients")
    if not _is_finished(experiment, path):
        server_run.check(experiment.config, server_data.read(held))
        for tries in range(30, -1, -1):  # processes of a killed server end some seconds after it
            try:
                with workdir.open_workdir(path / RUN, experiment.config.to_dict()):
                    break  # it is not in use, nor another config's
            except UsageError as error:
                if not tries or not isinstance(error.__context__, BlockingIOError):
                    raise
            time.sleep(1.0)
        programs.check_free(address)
        known = {*names, address.host} - {"0.0.0.0"}
        programs.make_server_certificate(address.certificates, sorted(known))
        if address.host != programs.HERE:
            say(f"whoever reaches {address.here} can run code at all sites: see docs/network.md")
        say(f"listening at {address.host}:{address.port}; clients need {address.root}")
        say(f"the config's hash, for client.toml, is {experiment.fingerprint}")
        settings = experiment.run_settings(path / RUN, held)
        programs.run_app(path / NETWORK, address, clients, APP, settings, say=say)
    is_finished, logs = _is_finished(experiment, path), path / NETWORK / programs.LOGS
    failure = f"the run has not finished; logs are in {logs}, the same command continues"
    say(f"results are in {path / RUN}" if is_finished else failure)
    return int(not is_finished)


def take_part(
    folder: Path, server: str, *, root: Path, key: Path, apps: Sequence[str], say: Say = print
) -> NoReturn:
    """Run a client's worker, `apps` (`launch.client_apps`) and Flower's node until a signal ends them.

    The worker prints a line for each message that leaves or is refused, and Flower its own lines. One of them
    that has ended is started again. A worker ends if its memory is not enough. A SuperNode ends when the
    server forgets it, as after a restart of the server, and while the server counts an earlier one with its
    key as connected. A key that does not exist is made; its public part goes to the server.
    """
    folder = folder.absolute()
    client_data.read(folder)
    if not root.is_file():
        raise UsageError(f"--ca={root}: no such file")
    if not key.exists():
        public = programs.make_node_key(key)
        say(f"made {key}; the server needs {public} before this client can connect")
    programs.check_private(key)
    home = client_data.private_folder(folder, client_data.NODE)
    try:
        with (
            storage.lock(home / ".lock"),
            TemporaryDirectory(prefix="jaxfed-", dir="/tmp") as private,  # sockets have short names
        ):
            earlier = home / "sockets"
            shutil.rmtree(earlier.resolve(), ignore_errors=True)  # of a client that was killed
            earlier.unlink(missing_ok=True)
            earlier.symlink_to(private)
            variables = programs.environment(home)
            variables["PATH"] = f"{private}{os.pathsep}{variables['PATH']}"
            address, port = f"{private}/worker", programs.free_port()
            worker = [sys.executable, "-m", WORKER, str(folder), address]
            forking = [*apps, private, str(programs.program(programs.CLIENT_APP))]
            node = programs.node_command(server, f'worker="{address}"', port, root=root, key=key)
            # A SuperNode would start it too, but not again after its end.
            starting = ["flower-superexec", "--insecure", "--runtime-api-address", f"{HERE}:{port}"]
            commands = {"worker": worker, "apps": forking, node[0]: [*node, "--isolation=process"]}
            programs.keep_running(commands | {starting[0]: starting}, variables, say=say)
    except BlockingIOError:
        raise UsageError(f"--data={folder}: another client runs in this folder") from None


def _is_finished(experiment: Experiment, path: Path) -> bool:
    return workdir.is_finished(path / RUN, experiment.config.to_dict())
