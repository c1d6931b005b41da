"""What entries share: `--config.KEY=VALUE`, and one line and status 2 for the user's mistakes."""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from absl import app, flags, logging

from jaxfed.errors import UsageError
from jaxfed.host import garbage, storage
from jaxfed.host.interruption import Interrupted, Interruption
from jaxfed.host.jax_variables import check_variables

# (positional arguments, KEY=VALUE overrides, interruption) -> exit status, None is 0
Main = Callable[[list[str], list[str], Interruption], int | None]
_BROKEN_PIPE = 128 + 13


def start(main: Main) -> NoReturn:
    """Parse the command line with absl, run `main`, exit with its status.

    A `UsageError`, and a command line that absl rejects, print one line and exit with 2; a full disk is
    one line and 1; SIGINT, SIGTERM and SIGHUP exit with 130, 143 and 129; a reader of standard output
    who has gone (`| head`) makes it 141, as SIGPIPE would. Any other exception is a bug and keeps its
    traceback.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Results are worth more than their signs: what the encoding lacks is spelled out.
            stream.reconfigure(errors="backslashreplace")
    garbage.leave_at_exit()
    overrides: list[str] = []

    def parse(argv: Sequence[str]) -> list[str]:
        rest, found = split_overrides(argv)
        overrides.extend(found)
        try:
            positional = flags.FLAGS(rest)
        except flags.Error as error:
            sys.exit(_complain(str(error)))
        except SystemExit:  # of --help and its kin, which absl ends with 1
            sys.exit(_written(lambda: None))
        except BrokenPipeError as error:  # of the same, where nothing is buffered
            sys.exit(_unread(error))
        if flags.FLAGS["verbosity"].using_default_value:
            logging.set_verbosity(logging.WARNING)  # libraries inform at length
        return positional

    def guarded(argv: Sequence[str]) -> int | None:
        with Interruption() as interruption:
            try:
                check_variables()
                return _written(lambda: main(list(argv[1:]), overrides, interruption))
            except UsageError as error:
                return _complain(str(error))
            except Interrupted as signal:
                _complain(f"stopped by {signal}; {interruption.continues} continues")
                return signal.exit_status
            except OSError as error:
                if not storage.is_full(error):
                    raise
                place = error.filename or "the disk"
                _complain(
                    f"{place}: {error.strerror or error}; with more room {interruption.continues} "
                    "continues"
                )
                return 1

    app.run(guarded, flags_parser=parse)


def _written(work: Callable[[], int | None]) -> int | None:
    """The status of some work when all that it printed has been read, 141 if nobody reads it."""
    try:
        status = work()
        sys.stdout.flush()
    except BrokenPipeError as error:
        return _unread(error)
    return status


def _unread(error: BrokenPipeError) -> int:
    """141 where the pipe that broke is standard output's; another's error is raised again."""
    if not _nobody_reads():
        raise error
    # Python flushes once more at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return _BROKEN_PIPE


def _nobody_reads() -> bool:
    """Whether standard output is a pipe whose other end is closed."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def split_overrides(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Take `--config.KEY=VALUE` and `--config.KEY VALUE` out of a command line, as `KEY=VALUE`.

    `--sweep.KEY=VALUES` stays in it, as `--sweep=KEY=VALUES`: absl's flags have no dots.
    """
    rest, overrides = [], []
    arguments = iter(argv)
    for argument in arguments:
        section, dot, key = argument.lstrip("-").partition(".")
        if argument.startswith("-") and dot and section in ("config", "sweep"):
            setting = key if "=" in key else f"{key}={next(arguments, '')}"
            if section == "config":
                overrides.append(setting)
            else:
                rest.append(f"--sweep={setting}")
        elif argument.lstrip("-") == "help_keys" and argument != "help_keys":
            rest.append("--help_keys=")  # all of them
        else:
            rest.append(argument)
    return rest, overrides


def _complain(message: str) -> int:
    print(f"jaxfed: {' '.join(message.split())}", file=sys.stderr)
    return 2
