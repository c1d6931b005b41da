"""What entries share: `--config.KEY=VALUE`, and one line and status 2 for the user's mistakes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from absl import app, flags, logging

from jaxfed.errors import UsageError
from jaxfed.interruption import Interrupted, Interruption

# (positional arguments, KEY=VALUE overrides, interruption) -> exit status, None is 0
Main = Callable[[list[str], list[str], Interruption], int | None]


def start(main: Main) -> NoReturn:
    """Parse the command line with absl, run `main`, exit with its status.

    A `UsageError`, and a command line that absl rejects, print one line and exit with 2; SIGINT and
    SIGTERM exit with 130 and 143. Any other exception is a bug and keeps its traceback.
    """
    overrides: list[str] = []

    def parse(argv: Sequence[str]) -> list[str]:
        rest, found = split_overrides(argv)
        overrides.extend(found)
        try:
            positional = flags.FLAGS(rest)
        except flags.Error as error:
            sys.exit(_complain(str(error)))
        if flags.FLAGS["verbosity"].using_default_value:
            logging.set_verbosity(logging.WARNING)  # libraries inform at length
        return positional

    def guarded(argv: Sequence[str]) -> int | None:
        with Interruption() as interruption:
            try:
                return main(list(argv[1:]), overrides, interruption)
            except UsageError as error:
                return _complain(str(error))
            except Interrupted as signal:
                print(f"jaxfed: stopped by {signal}; the same command continues", file=sys.stderr)
                return signal.exit_status

    app.run(guarded, flags_parser=parse)


def split_overrides(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Take `--config.KEY=VALUE` and `--config.KEY VALUE` out of a command line, as `KEY=VALUE`."""
    rest, overrides = [], []
    arguments = iter(argv)
    for argument in arguments:
        name = argument.lstrip("-")
        if argument.startswith("-") and name.startswith("config."):
            value = "" if "=" in argument else "=" + next(arguments, "")
            overrides.append(name.removeprefix("config.") + value)
        else:
            rest.append(argument)
    return rest, overrides


def _complain(message: str) -> int:
    print(f"jaxfed: {' '.join(message.split())}", file=sys.stderr)
    return 2
