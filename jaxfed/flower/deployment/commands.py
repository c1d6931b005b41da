"""Commands of `launch.flower`: try a federation here, serve one, take part in one, check a folder."""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
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
from jaxfed.flower.deployment.programs import Address, DeploymentError, Say, SuperLink
from jaxfed.flower.messages import setup
from jaxfed.flower.server import server_data, server_run

Simulate = Callable[[ConfigDict, Path], None]

APP = Path(__file__).parents[1] / "app"
RUN, SIMULATION, NODES, SERVER, NETWORK = "run", "simulation", "nodes", "server", "network"
KEYS = "keys"  # of the server, in its folder NETWORK
_OF_A_TRIAL = ("num_repeats=1", "baselines=()", "execution.plots=false")
_BETWEEN_STARTS = 5.0  # seconds between starts of a client's node
_OF_A_KILLED_ONE = 30.0  # seconds until the processes of a killed server have ended
_STEADY = 60.0  # seconds after which the end of a node is not of its start
_MOST_STARTS = 18  # one after another; Flower counts a killed node as connected for a minute


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
    overwrite: bool = False,
    say: Say = print,
) -> int:
    """Play a config by real clients on this machine and in a simulation, and compare.

    Args:
        spec: FILE.py[:VARIANT].
        overrides: KEY=VALUE.
        place: gets run/, the workdir of the federation; simulation/, that of the simulation; nodes/J, each
            client's folder; server/, what the server holds; network/, keys and logs.
        simulate: runs a config in a workdir.
        client: command that starts a client, `launch.flower client`; its flags follow.
        num_nodes: sets federation.num_clients.
        overwrite: begin again.
        say: receives lines.

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
    if overwrite:
        for name in (RUN, SIMULATION, NODES, SERVER):
            shutil.rmtree(place / name, ignore_errors=True)
    if not _is_finished(experiment, place):
        say(f"dealing {experiment.config.dataset.name} to {number} client{'s' * (number != 1)}")
        clients = deal(experiment.config, place / NODES, place / SERVER)
        server_run.check(experiment.config, server_data.read(place / SERVER))
        _claim(experiment, place)
        settings = experiment.run_settings(place / RUN, place / SERVER)
        command = partial(_client_command, client)
        play(place / NETWORK, clients, APP, settings, command, say=say)
        if not _is_finished(experiment, place):
            say(_failure(place / NETWORK))
            return 1
    say("simulating the same")
    simulate(experiment.config, place / SIMULATION)
    places, method = (place / RUN, place / SIMULATION), experiment.config.algorithm
    found = comparison.compare(*places, method, nodes=place / NODES)
    for line in comparison.costs(place / RUN, number):
        say(line)
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

    Args:
        network: gets keys and logs.
        clients: each client's folder.
        app: folder of the app.
        settings: its run config.
        command: command of a client, from its folder, the server, and its key.
        say: receives lines.
    """
    folder = network / KEYS
    certificates.make_server_certificate(folder, [])
    address = Address(programs.HERE, programs.free_port(), folder)
    nodes = {}
    with ExitStack() as stack:
        link = stack.enter_context(SuperLink(network, address, say=say))
        for number, data in enumerate(clients):
            key = folder / f"node-{number}.key"
            link.register(certificates.make_node_key(key))
            own = command(data, address, key)
            say(f"$ {shlex.join(own)}")
            log = network / programs.LOGS / f"node-{number}.log"
            variables = programs.environment(network / "flower" / f"node-{number}")
            nodes[number] = programs.start(own, variables, log)
            stack.callback(programs.end, nodes[number])

        def look() -> None:
            for number in [number for number, node in nodes.items() if node.poll() is not None]:
                status = nodes.pop(number).returncode
                log = network / programs.LOGS / f"node-{number}.log"
                say(f"node-{number} ended with status {status}; see {log}")

        link.run(app, settings, at_each_poll=look)


def _client_command(client: Sequence[str], data: Path, address: Address, key: Path) -> list[str]:
    return [
        *(*client, f"--data={data}", f"--server={address.here}", f"--ca={address.root}"),
        f"--key={key}",
    ]


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

    Args:
        spec: FILE.py[:VARIANT].
        overrides: KEY=VALUE.
        place: gets run/, the workdir, and network/, with logs and keys/ (`certificates`).
        host: address to listen at.
        port: to listen at.
        nodes: folder of the clients' public keys, *.pub.
        held: folder with what the server holds (`jaxfed.flower.deployment.dealing`).
        names: host names and addresses by which clients reach this machine, for its certificate.
        say: receives lines.

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
    if _is_finished(experiment, place):
        say(f"{place / RUN} is finished")
        return 0
    server_run.check(experiment.config, server_data.read(held))
    _claim(experiment, place)
    network = place / NETWORK
    known = {*names, host} - {"0.0.0.0", "::"}
    certificates.make_server_certificate(network / KEYS, sorted(known))
    address = Address(host, port, network / KEYS)
    with SuperLink(network, address, say=say) as link:
        for key in keys:
            link.register(key)
        if host != programs.HERE:
            say(f"whoever reaches {host}:{port} can run code at all sites: see docs/network.md")
        say(f"listening at {host}:{port}; clients need {address.root}")
        say(f"the config's hash, for client.toml, is {experiment.fingerprint}")
        link.run(APP, experiment.run_settings(place / RUN, held))
    is_finished = _is_finished(experiment, place)
    say(f"results are in {place / RUN}" if is_finished else _failure(network))
    return int(not is_finished)


def fingerprint(spec: str, overrides: Sequence[str], *, say: Say = print) -> int:
    """Print the hash of a config, by which a site agrees to it (`config` in its client.toml)."""
    say(load(spec, overrides).fingerprint)
    return 0


def take_part(
    folder: Path,
    server: str,
    *,
    root: Path,
    key: Path,
    say: Say = print,
) -> NoReturn:
    """Run a client's worker and its SuperNode until a signal ends them.

    The worker prints a line for each message that leaves or is refused, and Flower its own lines. A SuperNode
    that has ended is started again: it ends when the server forgets it, as after a restart of the server,
    and while the server counts an earlier one with its key as connected.

    Args:
        folder: the client's (`jaxfed.flower.client.client_data`).
        server: HOST:PORT.
        root: the server's ca.crt.
        key: the client's private key, made here if it does not exist; its public key goes to the server.
        say: receives lines.

    Raises:
        UsageError: something is wrong in the folder, or with the arguments.
        DeploymentError: the SuperNode ends again and again.
    """
    from jaxfed.flower.deployment import worker

    programs.check_flower()
    _, colon, port = server.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"--server={server}: use HOST:PORT")
    client_data.read(folder)
    folder = folder.absolute()
    if not root.is_file():
        raise UsageError(f"--ca={root}: no such file")
    if not key.exists():
        public = certificates.make_node_key(key)
        say(f"made {key}; the server needs {public} before this client can connect")
    certificates.check_private(key)
    variables = programs.environment(client_data.private_folder(folder, client_data.NODE))
    with worker.serving(folder) as address:
        starts = 0
        while True:
            config = f'worker="{address}"'
            command = programs.node_command(server, config, root=root, key=key)
            say(f"$ {shlex.join(command)}")
            began = time.monotonic()
            node = programs.start(command, variables)
            try:
                status = node.wait()
            finally:
                programs.end(node)
            starts = starts + 1 if time.monotonic() - began < _STEADY else 1
            if starts >= _MOST_STARTS:
                raise DeploymentError(
                    f"flower-supernode ended {starts} times; the last status is {status}"
                )
            say(f"flower-supernode ended with status {status}; starting it again")
            time.sleep(_BETWEEN_STARTS)


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
