"""Commands of `launch.flower`: try a federation here, serve one, take part in one, check a folder."""

from __future__ import annotations

import ipaddress
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from jaxfed.config import file as config_file
from jaxfed.config.checks import check as config_check
from jaxfed.config.checks.unread import check_given
from jaxfed.config.deployment import deployment_of
from jaxfed.config.keys import flatten
from jaxfed.errors import UsageError
from jaxfed.experiment.store import compilation_cache, workdir
from jaxfed.flower.client import client_data
from jaxfed.flower.deployment import certificates, local
from jaxfed.flower.deployment.comparison import compare
from jaxfed.flower.deployment.control import Control, RunSettings, Status, check_flower
from jaxfed.flower.deployment.dealing import deal
from jaxfed.flower.deployment.following import follow, wait_for_link
from jaxfed.flower.deployment.kills import Kill, departed, killing, kills_never_met
from jaxfed.flower.deployment.output import StageLines, seconds_text, traffic
from jaxfed.flower.deployment.processes import DeploymentError, Processes
from jaxfed.flower.messages.setup import is_state
from jaxfed.flower.server import server_data, server_run
from jaxfed.flower.server.stages import STAGES

Say = Callable[[str], None]
Simulate = Callable[[ConfigDict, Path, Mapping[int, Sequence[int]]], None]

APP = Path(__file__).parents[1] / "app"
RUN, SIMULATION, NODES, SERVER, NETWORK = "run", "simulation", "nodes", "server", "network"
_OF_A_TRIAL = ("num_repeats=1", "baselines=()", "execution.plots=false")
_POLL_SECONDS = 0.5
_BETWEEN_LINES = 30.0  # seconds between lines of a client that has no connection


class Experiment(NamedTuple):
    """A checked config, and what another process needs to load it again."""

    spec: str
    overrides: tuple[str, ...]
    config: ConfigDict

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
    config = config_file.load(spec, own)
    config_check.check(config)
    check_given(partial(config_file.load, spec), own)
    absolute = tuple(_absolute_paths(config))  # the server is another process, in another folder
    return Experiment(spec, own + absolute, config_file.load(spec, own + absolute))


def _absolute_paths(config: ConfigDict) -> Iterator[str]:
    """Yield KEY=VALUE for each relative path of a state that training starts from."""
    for key, value in flatten(config.to_dict()):
        if is_state(key, value):
            yield f"{key}={Path(value).expanduser().absolute()}"


def try_here(
    spec: str,
    overrides: Sequence[str],
    place: Path,
    *,
    simulate: Simulate,
    num_nodes: int | None = None,
    kills: Sequence[str] = (),
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
        kills: NODE@STAGE, nodes to be killed.
        encrypted: False for connections without TLS and keys.
        overwrite: begin again.
        say: receives lines.

    Returns:
        Exit status: 1 if the run failed.

    Raises:
        UsageError: a mistake in the config or the arguments.
    """
    check_flower()
    place = place.absolute()  # the server is another process, in another folder
    if num_nodes is not None:
        overrides = [*overrides, f"federation.num_clients={num_nodes}"]
    experiment = load(spec, overrides)
    limits = deployment_of(experiment.config)
    number = experiment.config.federation.num_clients
    limits.num_nodes(number)
    planned = [Kill.parse(text, number) for text in kills]
    if overwrite:
        for name in (RUN, SIMULATION, NODES, SERVER):
            shutil.rmtree(place / name, ignore_errors=True)
    settings = experiment.config.to_dict()
    if not workdir.is_finished(place / RUN, settings):
        say(f"dealing {experiment.config.dataset.name} to {number} client{'s' * (number != 1)}")
        dealt = deal(experiment.config, place / NODES, place / SERVER)
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
            kill_in_time = killing(planned, federation.kill, place / RUN / STAGES, say)
            stages = StageLines(place / RUN, say)

            def at_each_poll() -> None:
                kill_in_time()
                stages.look()

            status = federation.run(
                APP,
                experiment.run_settings(place / RUN, place / SERVER),
                at_each_poll=at_each_poll,
            )
            stages.look()
        if not status.is_completed:
            say(_failure(status, place / NETWORK))
            return 1
        kills_never_met(planned, place / RUN / STAGES)
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
    return 0


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
        held: folder with what the server holds (`deployment.dealing`).
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
    limits = deployment_of(experiment.config)
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
            run = control.submit(APP, experiment.run_settings(place / RUN, held))
            stages = StageLines(place / RUN, say)
            status = follow(control, run, processes, say=say, at_each_poll=stages.look)
            stages.look()
    if not status.is_completed:
        say(_failure(status, network))
        return 1
    say(f"results are in {place / RUN}")
    return 0


def take_part(
    folder: Path,
    server: str,
    *,
    root_certificate: Path | None,
    key: Path | None,
    say: Say = print,
) -> int:
    """Run a client's node until it ends or a signal ends it.

    Args:
        folder: the client's (`jaxfed.flower.client.client_data`).
        server: HOST:PORT.
        root_certificate: the server's ca.crt; None for a connection without encryption, on loopback only.
        key: the node's private key, made here if it does not exist; its public key goes to the server.
        say: receives lines.

    Returns:
        Exit status 1: the node ended by itself.

    Raises:
        UsageError: something is wrong in the folder, or with the arguments.
    """
    check_flower()
    host, colon, port = server.rpartition(":")
    if not colon or not port.isdigit():
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
        command = local.node_command(
            local.PROGRAMS.supernode,
            folder.absolute(),
            server,
            port=local.free_ports(1)[0],
            root_certificate=None if root_certificate is None else root_certificate.absolute(),
            key=None if key is None or root_certificate is None else key.absolute(),
        )
        cache = compilation_cache.folder("auto")
        node = processes.start(
            "node", command, environment=local.environment(home, cache, "supernode")
        )
        say(f"node of {folder} for {server}; its output is in {node.log}")
        is_connected, next_line = False, time.monotonic() + _BETWEEN_LINES
        while not (ended := processes.newly_ended()):
            if not is_connected and "SuperNode ID" in node.log.read_text(errors="replace"):
                is_connected = True
                say(f"connected to {server}")
            if not is_connected and time.monotonic() > next_line:
                next_line += _BETWEEN_LINES
                say(f"no connection to {server} yet; is the server started, and the port right?")
            time.sleep(_POLL_SECONDS)
    raise DeploymentError(ended[0])


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
    return local.Server(host, port, authority, own, network / "superlink.db")


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
