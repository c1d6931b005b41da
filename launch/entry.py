"""Shared code of entries: `--config.KEY=VALUE`, and one line with status 2 for user errors."""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from absl import app, flags, logging

from jaxfed.errors import UsageError
from jaxfed.host import gc_tuning, storage
from jaxfed.host.interruption import Interrupted, Interruption
from jaxfed.host.jax_variables import check_variables

# (positional arguments, KEY=VALUE overrides, interruption) -> exit status, None is 0
Main = Callable[[list[str], list[str], Interruption], int | None]
_BROKEN_PIPE = 128 + 13

flags.disclaim_key_flags()  # those defined here belong to the entries that ask for them


def workdir_flag() -> flags.FlagHolder[str | None]:
    """Define the flag --workdir of the calling entry; entries in one process share it."""
    text = "Where results go; made if it does not exist."
    return flags.DEFINE_string("workdir", None, text, allow_override=True)


def start(main: Main) -> NoReturn:
    """Parse the command line with absl, run `main`, exit with its status.

    A `UsageError`, and a command line that absl rejects, print one line and exit with 2. A full disk prints
    one line and exits with 1. SIGINT, SIGTERM and SIGHUP exit with 130, 143 and 129. A closed reader of
    standard output (`| head`) gives 141, as SIGPIPE would. Any other exception is a bug and keeps its
    traceback.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Characters missing from the encoding are escaped, to keep the results.
            stream.reconfigure(errors="backslashreplace")
    gc_tuning.leave_at_exit()
    overrides: list[str] = []

    def parse(argv: Sequence[str]) -> list[str]:
        rest, found = split_overrides(argv)
        overrides.extend(found)
        try:
            positional = flags.FLAGS(rest)
        except flags.Error as error:
            sys.exit(_complain(str(error)))
        except SystemExit:  # of --help and similar flags, where absl exits with 1
            sys.exit(_written(lambda: None))
        except BrokenPipeError as error:  # of the same, without buffering
            sys.exit(_unread(error))
        if flags.FLAGS["verbosity"].using_default_value:
            logging.set_verbosity(logging.WARNING)  # libraries log a lot
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
    """Status of some work if all its output has been read, 141 if the reader has closed."""
    try:
        status = work()
        sys.stdout.flush()
    except BrokenPipeError as error:
        return _unread(error)
    return status


def _unread(error: BrokenPipeError) -> int:
    """Return 141 if the broken pipe is standard output; else raise the error again."""
    if not _nobody_reads():
        raise error
    # Python flushes again at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return _BROKEN_PIPE


def _nobody_reads() -> bool:
    """True if standard output is a pipe with a closed other end."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def split_overrides(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Take `--config.KEY=VALUE` and `--config.KEY VALUE` out of a command line, as `KEY=VALUE`.

    `--sweep.KEY=VALUES` becomes `--sweep=KEY=VALUES`, as absl's flags have no dots.
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
