"""Real clients over a network, by Flower: pip install -r requirements-flower.txt

python -m launch.flower try --config=FILE.py[:VARIANT] --workdir=DIR [--config.KEY=VALUE ...]
python -m launch.flower server --config=FILE.py[:VARIANT] --workdir=DIR --port=PORT --nodes=KEYS --held=FOLDER
    [--host=0.0.0.0] [--name=HOST ...] [--config.KEY=VALUE ...]
python -m launch.flower client --data=FOLDER --server=HOST:PORT --ca=ca.crt --key=KEY

`try` deals the config's data into one folder a client, starts a server and all clients as processes on this
machine, runs the same in a simulation, and prints the largest difference.
`server` and `client` are for real sites.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NoReturn

from absl import flags

from jaxfed.errors import UsageError
from jaxfed.host import gc_tuning
from jaxfed.host.interruption import Interruption
from jaxfed.host.location import location

from . import entry

_CONFIG = entry.config_flag()
_WORKDIR = entry.workdir_flag()
_NODES = flags.DEFINE_string(
    "nodes", None, "server: folder of the clients' public keys, *.pub; try: their number."
)
_HOST = flags.DEFINE_string(
    "host", "127.0.0.1", "server: address to listen at; 0.0.0.0 for all (docs/network.md: who can)."
)
_PORT = flags.DEFINE_integer("port", None, "server: port to listen at.", 1, 65535)
_NAMES = flags.DEFINE_multi_string(
    "name", [], "server: host name or address by which clients reach it; may be repeated."
)
_HELD = flags.DEFINE_string("held", None, "server: folder of the examples that the server holds.")
_DATA = flags.DEFINE_string("data", None, "client: its folder.")
_SERVER = flags.DEFINE_string("server", None, "client: HOST:PORT of the server.")
_CA = flags.DEFINE_string("ca", None, "client: the certificate ca.crt of the server's authority.")
_KEY = flags.DEFINE_string("key", None, "client: file of its private key; made if missing.")


def main(arguments: list[str], overrides: list[str], interruption: Interruption) -> int:
    """Run the command that the first argument names."""
    commands = {"try": _try, "server": _serve, "client": _take_part}
    if len(arguments) != 1 or arguments[0] not in commands:
        raise UsageError(
            f"{' '.join(arguments) or 'a command is missing'}: use one of {', '.join(commands)}"
        )
    # Imported late, so that --helpshort and a mistyped flag get a fast answer.
    with gc_tuning.importing():
        from jaxfed.flower.deployment.programs import DeploymentError, check_flower

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

    devices.one_device_a_core()

    def simulate(config: ConfigDict, path: Path) -> None:
        from jaxfed.api.run import execute
        from jaxfed.config.assembly import make_algorithm
        from jaxfed.experiment.run.progress import RunProgress
        from jaxfed.experiment.store import workdir

        settings = config.to_dict()
        if not workdir.is_finished(path, settings):
            with RunProgress(settings) as progress:
                execute(config, path, progress, interruption, make_algorithm)

    if _NODES.value:
        overrides.append(f"federation.num_clients={_NODES.value}")
    return commands.try_here(
        commands.load(_given("config", _CONFIG.value), overrides),
        location(_given("workdir", _WORKDIR.value), "--workdir"),
        simulate=simulate,
        client=(sys.executable, "-m", f"{__package__}.flower", "client"),
        say=_say,
    )


def _serve(overrides: list[str], interruption: Interruption) -> int:
    del interruption  # the entry's own handling is enough: all processes end with the command
    from jaxfed.flower.deployment import commands
    from jaxfed.flower.deployment.programs import Address

    path = location(_given("workdir", _WORKDIR.value), "--workdir")
    keys = path / commands.NETWORK / commands.KEYS
    return commands.serve(
        commands.load(_given("config", _CONFIG.value), overrides),
        path,
        Address(_HOST.value, int(_given("port", _PORT.value)), keys),
        clients=dict.fromkeys(sorted(_path("nodes", _NODES.value).glob("*.pub")), ()),
        held=_path("held", _HELD.value),
        names=_NAMES.value,
        say=_say,
    )


def _take_part(overrides: list[str], interruption: Interruption) -> NoReturn:
    del interruption
    from jaxfed.flower.deployment import commands

    if overrides:
        raise UsageError(f"--config.{overrides[0]}: a client has no config")

    commands.take_part(
        location(_given("data", _DATA.value), "--data"),
        _given("server", _SERVER.value),
        root=_path("ca", _CA.value),
        key=_path("key", _KEY.value),
        apps=(sys.executable, "-m", f"{__package__}.client_apps"),
        say=_say,
    )


def _given(flag: str, value: Any) -> Any:
    if not value:
        raise UsageError(f"--{flag} is missing")
    return value


def _path(flag: str, value: str | None) -> Path:
    return location(_given(flag, value), f"--{flag}").absolute()


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    entry.start(main)
