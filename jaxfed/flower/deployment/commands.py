"""Commands of `launch.flower`: try a federation here, serve one, take part in one, check a folder."""

from __future__ import annotations

import ipaddress
import json
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from ml_collections import ConfigDict

from jaxfed.config import file as config_file
from jaxfed.config.keys import flatten
from jaxfed.config.reading import opened
from jaxfed.config.sections import section_of
from jaxfed.errors import UsageError
from jaxfed.experiment.store import compilation_cache, workdir
from jaxfed.flower.client import client_data
from jaxfed.flower.client.client_step import CONSOLE
from jaxfed.flower.deployment import certificates, local
from jaxfed.flower.deployment.comparison import compare, departed
from jaxfed.flower.deployment.control import Control, RunSettings, Status, check_flower
from jaxfed.flower.deployment.dealing import deal
from jaxfed.flower.deployment.following import follow, wait_for_link
from jaxfed.flower.deployment.guarded import KEY_IN_USE, UNKNOWN_KEY
from jaxfed.flower.deployment.output import NewLines, StageLines, seconds_text, traffic
from jaxfed.flower.deployment.processes import DeploymentError, Processes, Started
from jaxfed.flower.messages import setup
from jaxfed.flower.server import server_data, server_run

Say = Callable[[str], None]
Simulate = Callable[[ConfigDict, Path, Mapping[int, Sequence[int]]], None]

APP = Path(__file__).parents[1] / "app"
RUN, SIMULATION, NODES, SERVER, NETWORK = "run", "simulation", "nodes", "server", "network"
_OF_A_TRIAL = ("num_repeats=1", "baselines=()", "execution.plots=false")
_POLL_SECONDS = 0.5
_BETWEEN_LINES = 30.0  # seconds between lines of a client that has no connection
_BETWEEN_STARTS = 5.0  # seconds between starts of a client's node
_MOST_REFUSED = 90.0  # seconds of retries; Flower counts a killed node as connected for 60


class Experiment(NamedTuple):
    """A checked config, and what another process needs to load it again."""

    spec: str
    overrides: tuple[str, ...]
    config: ConfigDict

    @property
    def fingerprint(self) -> str:
        """Hash of the part that clients receive, as `config` in client.toml names it."""
        return setup.fingerprint(setup.config_text(self.config))

    def run_settings(self, place: Path, server: Path | None) -> RunSettings:
        """Return the settings of a run of the app."""
        return {
            "config": self.spec,
            "overrides": json.dumps(self.overrides),
            "workdir": str(place),
            "server": "" if server is None else str(server),
        }


def load(spec: str, overrides: Sequence[str]) -> Experiment:
    """Load and check a config for one run of its algorithm, without baselines.

    Raises:
        UsageError: as `launch.run`.
    """
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
    num_nodes: int | None = None,
    encrypted: bool = True,
    overwrite: bool = False,
    say: Say = print,
) -> int:
    """Play a config by real clients on this machine and in a simulation, and compare.

    Args:
        spec: FILE.py[:VARIANT].
        overrides: KEY=VALUE.
        place: gets run/, the workdir of the federation; simulation/, that of the simulation; nodes/J, each
            client's folder; server/, what the server holds; network/, keys and logs.
        simulate: runs a config in a workdir; its rounds lack the clients {round: clients}.
        num_nodes: sets federation.num_clients.
        encrypted: False for connections without TLS and keys.
        overwrite: begin again.
        say: receives lines.

    Returns:
        Exit status: 1 if the run failed, or differs from the simulation.

    Raises:
        UsageError: a mistake in the config or the arguments.
    """
    check_flower()
    place = place.absolute()  # the server is another process, in another folder
    if num_nodes is not None:
        overrides = [*overrides, f"federation.num_clients={num_nodes}"]
    experiment = load(spec, overrides)
    limits = section_of(experiment.config, "deployment")
    number = experiment.config.federation.num_clients
    limits.num_nodes(number)
    if overwrite:
        for name in (RUN, SIMULATION, NODES, SERVER):
            shutil.rmtree(place / name, ignore_errors=True)
    settings = experiment.config.to_dict()
    if not workdir.is_finished(place / RUN, settings):
        say(f"dealing {experiment.config.dataset.name} to {number} client{'s' * (number != 1)}")
        dealt = deal(experiment.config, place / NODES, place / SERVER)
        server_run.check(experiment.config, server_data.read(place / SERVER))
        cache = compilation_cache.folder(experiment.config.execution.compilation_cache)
        with local.Local(
            place / NETWORK,
            dealt.clients,
            encrypted=encrypted,
            programs_cache=cache,
            limits=local.Limits(nodes=limits.wait_for_nodes),
            say=say,
        ) as federation:
            federation.start()
            stages = StageLines(place / RUN, say)
            status = federation.run(
                APP,
                experiment.run_settings(place / RUN, place / SERVER),
                at_each_poll=stages.look,
            )
            stages.look()
        if not status.is_completed:
            say(_failure(status, place / NETWORK))
            return 1
    left, beside = departed(place / RUN)
    those_who_left = " without those who left" * bool(left)
    say(f"simulating the same{those_who_left}")
    simulate(experiment.config, place / SIMULATION, left)
    places, method = (place / RUN, place / SIMULATION), experiment.config.algorithm
    found = compare(*places, method, nodes=place / NODES)
    closing = [
        seconds_text(place / RUN),
        str(traffic(place / RUN, number)),
        f"network and simulation{those_who_left}: {found}",
        beside,
        f"results are in {place / RUN}",
    ]
    for line in filter(None, closing):
        say(line)
    return int(not found.is_none)


def serve(
    spec: str,
    overrides: Sequence[str],
    place: Path,
    *,
    host: str,
    port: int,
    names: Sequence[str] = (),
    nodes: Path | None = None,
    held: Path | None = None,
    encrypted: bool = True,
    say: Say = print,
) -> int:
    """Serve a federation of clients on other machines, and play a config's rounds with them.

    Args:
        spec: FILE.py[:VARIANT].
        overrides: KEY=VALUE.
        place: gets run/, the workdir, and network/, with keys, certificates and logs.
        host: address to listen at.
        port: to listen at.
        names: host names and addresses by which clients reach this machine, for its certificate.
        nodes: folder of the clients' public keys, *.pub; needed if encrypted.
        held: folder with what the server holds (`jaxfed.flower.deployment.dealing`).
        encrypted: False for connections without TLS and keys, on loopback only.
        say: receives lines.

    Returns:
        Exit status: 1 if the run failed. The same command continues it.

    Raises:
        UsageError: a mistake in the config or the arguments.
    """
    check_flower()
    if not encrypted and not _is_loopback(host):
        raise UsageError(f"--insecure: only at loopback, --host=127.0.0.1; --host is {host}")
    if encrypted and nodes is None:
        raise UsageError("--nodes is missing: the folder of the clients' public keys, *.pub")
    keys = certificates.public_keys(nodes) if encrypted and nodes is not None else ()
    experiment = load(spec, overrides)
    limits = section_of(experiment.config, "deployment")
    wanted = limits.num_nodes(experiment.config.federation.num_clients)
    if keys and len(keys) < wanted:
        raise UsageError(
            f"--nodes={nodes}: {len(keys)} public key{'s' * (len(keys) != 1)} for {wanted} clients "
            "(config.deployment.nodes)"
        )
    if workdir.is_finished(place / RUN, experiment.config.to_dict()):
        say(f"{place / RUN} is finished")
        return 0
    if held is None:
        raise UsageError("--held is missing: the server's folder, with shared.json and test.npz")
    server_run.check(experiment.config, server_data.read(held))
    place = place.absolute()
    with workdir.open_workdir(place / RUN, experiment.config.to_dict()):
        pass  # it can be written, and is this config's
    network = place / NETWORK
    with Processes(network) as processes:
        server = _server(network, host, port, names, encrypted=encrypted)
        home = network / local.HOMES / "link"
        home.mkdir(mode=client_data.PRIVATE_FOLDER, parents=True, exist_ok=True)
        cache = compilation_cache.folder(experiment.config.execution.compilation_cache)
        processes.start(
            "link",
            server.command(local.PROGRAMS.superlink),
            environment=local.environment(home, cache, "superlink"),
        )
        root = None if server.authority is None else server.authority.public
        with Control(server.address_here, root) as control:
            wait_for_link(control, processes, local.Limits().link)
            for key in keys:
                control.register(key)
            say(f"listening at {host}:{port}; clients need {root}" if root else f"at {host}:{port}")
            say(f"the config's hash, for client.toml, is {experiment.fingerprint}")
            run = control.submit(APP, experiment.run_settings(place / RUN, held))
            stages = StageLines(place / RUN, say)
            status = follow(control, run, processes, say=say, at_each_poll=stages.look)
            stages.look()
    if not status.is_completed:
        say(_failure(status, network))
        return 1
    say(f"results are in {place / RUN}")
    return 0


def fingerprint(spec: str, overrides: Sequence[str], *, say: Say = print) -> int:
    """Print the hash of a config, by which a site agrees to it (`config` in its client.toml)."""
    say(load(spec, overrides).fingerprint)
    return 0


def take_part(
    folder: Path,
    server: str,
    *,
    root_certificate: Path | None,
    key: Path | None,
    say: Say = print,
) -> NoReturn:
    """Run a client's node until a signal ends it, with a line for each message that it sends or refuses.

    The node is started again if the server no longer knows it, as after a restart of the server. If the
    server refuses it, it is started again for a while: a killed node with its key may count as connected.

    Args:
        folder: the client's (`jaxfed.flower.client.client_data`).
        server: HOST:PORT.
        root_certificate: the server's ca.crt; None for a connection without encryption, on loopback only.
        key: the node's private key, made here if it does not exist; its public key goes to the server.
        say: receives lines.

    Raises:
        UsageError: something is wrong in the folder, or with the arguments.
        DeploymentError: the node ended by itself, or the server refuses it.
    """
    check_flower()
    host, colon, port = server.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"--server={server}: use HOST:PORT")
    client_data.read(folder)
    if root_certificate is None and not _is_loopback(host.strip("[]")):
        raise UsageError(f"--insecure: only for a server at loopback; --server is {server}")
    if root_certificate is not None:
        certificates.check_certificate(root_certificate)
        if key is None:
            raise UsageError("--key is missing: the file of this client's private key")
        if not key.exists():
            pair = certificates.make_node_key(key)
            say(f"made {key}; the server needs {pair.public} before this client can connect")
        certificates.read_node_key(key)
    place = client_data.private_folder(folder.absolute(), client_data.NODE)
    with Processes(place) as processes:
        home = place / local.HOMES
        home.mkdir(mode=client_data.PRIVATE_FOLDER, exist_ok=True)
        cache = compilation_cache.folder("auto")
        say(f"node of {folder} for {server}; its output is in {place / 'logs' / 'node.log'}")
        until: float | None = None  # time of the last try, once the server has refused the node
        while True:
            command = local.node_command(
                local.PROGRAMS.supernode,
                folder.absolute(),
                server,
                port=local.free_ports(1)[0],
                root_certificate=None if root_certificate is None else root_certificate.absolute(),
                key=None if key is None or root_certificate is None else key.absolute(),
            )
            node = processes.start(
                "node", command, environment=local.environment(home, cache, "supernode")
            )
            is_connected = _watch(node, server, root_certificate, say)
            (ended,) = processes.newly_ended()
            reason = next((text for text in (UNKNOWN_KEY, KEY_IN_USE) if text in ended), "")
            if reason:
                until = until or time.monotonic() + _MOST_REFUSED
                say(f"{server} refuses {key}: {reason}")
            elif is_connected and not node.process.returncode:
                until = None
                say(f"{server} does not know this node any more; connecting again")
            else:
                raise DeploymentError(ended)
            if until is not None and time.monotonic() > until:
                raise DeploymentError(f"{server} refuses {key}: {reason}")
            time.sleep(_BETWEEN_STARTS)


def _watch(node: Started, server: str, root_certificate: Path | None, say: Say) -> bool:
    """Print a node's lines for the console until it ends; return True if it was ever connected."""
    lines = NewLines(node.log)
    was_connected = is_connected = False
    next_line = time.monotonic() + _BETWEEN_LINES
    while True:
        has_ended = node.process.poll() is not None
        for line in lines.read():
            if line.startswith(CONSOLE):
                say(line.removeprefix(CONSOLE))
            elif "SuperNode ID" in line or (was_connected and "Connection successful" in line):
                if not is_connected:
                    say(f"connected to {server}")
                was_connected = is_connected = True
            elif is_connected and "Connection attempt failed" in line:
                is_connected, next_line = False, time.monotonic() + _BETWEEN_LINES
        if has_ended:
            return was_connected
        if not is_connected and time.monotonic() > next_line:
            next_line += _BETWEEN_LINES
            say(f"no connection to {server}: {_unreachable(server, root_certificate)}")
        time.sleep(_POLL_SECONDS)


def _unreachable(server: str, root_certificate: Path | None) -> str:
    """Return why a server cannot be reached."""
    host, _, port = server.rpartition(":")
    host = host.strip("[]")
    try:
        with socket.create_connection((host, int(port)), timeout=_BETWEEN_STARTS) as connection:
            if root_certificate is not None:
                context = ssl.create_default_context(cafile=root_certificate)
                context.wrap_socket(connection, server_hostname=host).close()
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is not accepted by {root_certificate}: {error.verify_message}"
    except OSError as error:
        return f"{error.strerror or error}; check that the server runs and the port is right"
    return "it answers; the node is not ready yet"


def check(folder: Path, *, num_classes: int | None = None, say: Say = print) -> int:
    """Print what is wrong in a client's folder, one line each, or what it has.

    Returns:
        Exit status: 2 if something is wrong.
    """
    wrong = client_data.problems(folder, num_classes=num_classes)
    for line in wrong:
        say(line)
    if wrong:
        return 2
    data = client_data.read(folder, num_classes=num_classes)
    labeled = int((data.train.y >= 0).sum())
    shape = "x".join(map(str, data.train.x.shape[1:]))
    test = 0 if data.test is None else len(data.test.y)
    public = 0 if data.public is None else len(data.public)
    say(
        f"{folder}: client {data.settings.number} ({data.settings.name}): {len(data.train.y)} examples of "
        f"{shape} {data.train.x.dtype}, {labeled} of them labeled; {test} test and {public} public ones"
    )
    return 0


def _server(
    network: Path, host: str, port: int, names: Sequence[str], *, encrypted: bool
) -> local.Server:
    if not encrypted:
        return local.Server(host, port)
    keys = network / "keys"
    authority = certificates.make_authority(keys)
    known = [name for name in (*names, host) if name not in ("0.0.0.0", "::")]
    own = certificates.make_server_certificate(authority, keys, known)
    return local.Server(host, port, authority, own)


def _failure(status: Status, network: Path) -> str:
    details = " ".join(status.details.split())
    return (
        f"the run ended: {status.outcome}{f' ({details})' * bool(details)}; logs are in {network / 'logs'}, "
        "the same command continues"
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
