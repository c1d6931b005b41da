"""Real clients over a network, by Flower: pip install -r requirements-flower.txt

python -m launch.flower try --config=FILE.py[:VARIANT] --workdir=DIR [--nodes=3] [--config.KEY=VALUE ...]
python -m launch.flower server --config=FILE.py[:VARIANT] --workdir=DIR --port=PORT --nodes=KEYS --held=FOLDER
    [--host=0.0.0.0] [--name=HOST ...] [--config.KEY=VALUE ...]
python -m launch.flower client --data=FOLDER --server=HOST:PORT --ca=ca.crt --key=KEY
python -m launch.flower check --data=FOLDER
python -m launch.flower fingerprint --config=FILE.py[:VARIANT] [--config.KEY=VALUE ...]

`try` deals the config's data into one folder a client, starts a server and all clients as processes on this
machine, runs the same in a simulation, and prints the largest difference.
`server` and `client` are for real sites; `check` says what is wrong in a client's folder and uses no network.
`fingerprint` prints the hash of a config, which a site that agrees to it writes into client.toml.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

from absl import flags

from jaxfed.errors import UsageError
from jaxfed.host import gc_tuning
from jaxfed.host.interruption import Interruption
from jaxfed.host.location import location

from . import entry

_CONFIG = flags.DEFINE_string(
    "config",
    None,
    "try, server, fingerprint: a config file, FILE.py[:VARIANT]; --config.KEY=VALUE sets a key.",
    allow_override=True,
)
_WORKDIR = entry.workdir_flag()
_NODES = flags.DEFINE_string(
    "nodes", None, "try: number of clients; server: folder of the clients' public keys, *.pub."
)
_HOST = flags.DEFINE_string(
    "host", "127.0.0.1", "server: address to listen at; 0.0.0.0 for all (docs/network.md: who can)."
)
_PORT = flags.DEFINE_integer("port", None, "server: port to listen at.", 1, 65535)
_NAMES = flags.DEFINE_multi_string(
    "name", [], "server: host name or address by which clients reach it; may be repeated."
)
_HELD = flags.DEFINE_string("held", None, "server: folder of the examples that the server holds.")
_DATA = flags.DEFINE_string("data", None, "client, check: the client's folder.")
_SERVER = flags.DEFINE_string("server", None, "client: HOST:PORT of the server.")
_CA = flags.DEFINE_string("ca", None, "client: the certificate ca.crt of the server's authority.")
_KEY = flags.DEFINE_string("key", None, "client: file of its private key; made if missing.")


def main(arguments: list[str], overrides: list[str], interruption: Interruption) -> int:
    """Run the command that the first argument names."""
    commands = {
        "try": _try,
        "server": _serve,
        "client": _take_part,
        "check": _check,
        "fingerprint": _fingerprint,
    }
    if len(arguments) != 1 or arguments[0] not in commands:
        raise UsageError(
            f"{' '.join(arguments) or 'a command is missing'}: use one of {', '.join(commands)}"
        )
    if overrides and arguments[0] in ("client", "check"):
        raise UsageError(f"--config.{overrides[0]}: {arguments[0]} has no config")
    # Imported late, so that --helpshort and a mistyped flag get a fast answer.
    with gc_tuning.importing():
        from jaxfed.flower.deployment.programs import DeploymentError, check_flower

        if arguments[0] not in ("check", "fingerprint"):
            check_flower()
    try:
        return commands[arguments[0]](overrides, interruption)
    except DeploymentError as error:
        print(f"jaxfed: {error}", file=sys.stderr)
        return 1


def _try(overrides: list[str], interruption: Interruption) -> int:
    from ml_collections import ConfigDict

    from jaxfed.flower.deployment import commands
    from jaxfed.host.parallel import devices

    number = _NODES.value
    if number is not None and not (number.isdigit() and int(number)):
        raise UsageError(f"--nodes={number}: use integers from 1 on")
    devices.one_device_a_core()

    def simulate(config: ConfigDict, place: Path) -> None:
        from jaxfed.api.conduct import conduct
        from jaxfed.experiment.run.progress import RunProgress
        from jaxfed.experiment.store import workdir

        settings = config.to_dict()
        if not workdir.is_finished(place, settings):
            with RunProgress(settings) as progress:
                conduct(config, place, progress, interruption)

    return commands.try_here(
        _given("config", _CONFIG.value),
        overrides,
        location(_given("workdir", _WORKDIR.value), "--workdir"),
        simulate=simulate,
        client=(sys.executable, "-m", f"{__package__}.flower", "client"),
        num_nodes=None if number is None else int(number),
        say=_say,
    )


def _serve(overrides: list[str], interruption: Interruption) -> int:
    del interruption  # the entry's own handling is enough: all processes end with the command
    from jaxfed.flower.deployment import commands

    port = _PORT.value
    if port is None:
        raise UsageError("--port=PORT is missing")
    return commands.serve(
        _given("config", _CONFIG.value),
        overrides,
        location(_given("workdir", _WORKDIR.value), "--workdir"),
        host=_HOST.value,
        port=port,
        names=_NAMES.value,
        nodes=_path("nodes", _NODES.value),
        held=_path("held", _HELD.value),
        say=_say,
    )


def _take_part(overrides: list[str], interruption: Interruption) -> NoReturn:
    del overrides, interruption
    from jaxfed.flower.deployment import commands

    commands.take_part(
        location(_given("data", _DATA.value), "--data"),
        _given("server", _SERVER.value),
        root=_path("ca", _CA.value),
        key=_path("key", _KEY.value),
        say=_say,
    )


def _check(overrides: list[str], interruption: Interruption) -> int:
    del overrides, interruption
    from jaxfed.flower.deployment import commands

    return commands.check(location(_given("data", _DATA.value), "--data"), say=print)


def _fingerprint(overrides: list[str], interruption: Interruption) -> int:
    del interruption
    from jaxfed.flower.deployment import commands

    return commands.fingerprint(_given("config", _CONFIG.value), overrides, say=print)


def _given(flag: str, value: str | None) -> str:
    if not value:
        raise UsageError(f"--{flag} is missing")
    return value


def _path(flag: str, value: str | None) -> Path:
    return location(_given(flag, value), f"--{flag}").absolute()


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    entry.start(main)
