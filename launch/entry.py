"""Shared code of entries: `--config.KEY=VALUE`, and one line with status 2 for user errors."""

from __future__ import annotations

import atexit
import gc
import io
import os
import select
import sys
from collections.abc import Callable, Iterable, Sequence
from logging import Formatter
from typing import Any, NoReturn

from absl import app, flags, logging

from jaxfed.errors import UsageError
from jaxfed.host import storage
from jaxfed.host.interruption import Interrupted, Interruption

# (positional arguments, KEY=VALUE overrides, interruption) -> exit status, None is 0
Main = Callable[[list[str], list[str], Interruption], int | None]
_BROKEN_PIPE = 128 + 13
_OF_A_WARNING = "jaxfed: %(levelname)s: %(message)s"
_NUM_DEVICES = "JAX_NUM_CPU_DEVICES"
# Packages that the core of the wheel lacks (setup.py).
_OPTIONAL = (
    *("PIL", "tensorflow_datasets", "pyarrow", "array_record", "sklearn"),
    *("cryptography", "nacl", "phe", "gmpy2", "matplotlib", "markdown_it", "pandas"),
)

flags.disclaim_key_flags()  # those defined here belong to the entries that ask for them


def out_flag(text: str) -> flags.FlagHolder[Any]:
    """Define the flag --out of the calling entry."""
    return flags.DEFINE_string("out", None, text, allow_override=True)


def config_flag() -> flags.FlagHolder[Any]:
    """Define the flag --config of the calling entry; entries in one process share it."""
    text = "A config file and its variant, FILE.py[:VARIANT]; --config.KEY=VALUE sets a key."
    return flags.DEFINE_string("config", None, text, allow_override=True)


def workdir_flag() -> flags.FlagHolder[Any]:
    """Define the flag --workdir likewise."""
    text = "Where results go; made if it does not exist."
    return flags.DEFINE_string("workdir", None, text, allow_override=True)


def tracker_flag() -> flags.FlagHolder[Any]:
    """Define the flag --tracker likewise."""
    text = (
        "tensorboard or wandb; repeat the flag for both. Each receives "
        "the config and every round's numbers; a run resumes with or without it (docs/running.md)."
    )
    return flags.DEFINE_multi_string("tracker", [], text, allow_override=True)


def refuse(arguments: Iterable[str]) -> None:
    """Raise a UsageError if there are arguments that the entry does not take."""
    for argument in arguments:
        raise UsageError(f"{argument}: no such argument; see --helpshort")


def require(**arguments: str | None) -> None:
    """Raise a UsageError for the first of these flags that is not given."""
    usual = {"config": "ml_collections_configs/NAME.py", "workdir": "DIR", "out": "DIR"}
    for name, value in arguments.items():
        if not value:
            raise UsageError(f"--{name}={usual[name]} is missing")


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
    atexit.register(gc.freeze)  # skips the scan at exit: 0.3 s
    overrides: list[str] = []

    def parse(argv: Sequence[str]) -> list[str]:
        rest, overridden = split_overrides(argv)
        overrides.extend(overridden)
        try:
            positional = flags.FLAGS(rest)
        except flags.Error as error:
            sys.exit(_complain(f"{error}{_hint(error)}"))
        except SystemExit:  # of --help and similar flags, where absl exits with 1
            sys.exit(_written(lambda: None))
        except BrokenPipeError as error:  # of the same, without buffering
            sys.exit(_unread(error))
        if flags.FLAGS["verbosity"].using_default_value:
            logging.set_verbosity(logging.WARNING)  # libraries log a lot
            # Lines like the others: time, process and source line are for developers.
            logging.get_absl_handler().setFormatter(Formatter(_OF_A_WARNING))
        return positional

    def guarded(argv: Sequence[str]) -> int | None:
        with Interruption() as interruption:
            try:
                _check_variables()
                return _written(lambda: main(list(argv[1:]), overrides, interruption))
            except UsageError as error:
                return _complain(str(error))
            except ModuleNotFoundError as error:
                name = (error.name or "").partition(".")[0]
                if name not in _OPTIONAL:
                    raise
                return _complain(
                    f"{name} is not installed; pip install -r requirements.txt, or jaxfed[all]"
                )
            except Interrupted as signal:
                _complain(f"stopped by {signal}; {interruption.continues} continues")
                return signal.exit_status
            except OSError as error:
                if not storage.is_full(error):
                    raise
                file = error.filename or "the disk"
                _complain(
                    f"{file}: {error.strerror or error}; with more room {interruption.continues} "
                    "continues"
                )
                return 1

    app.run(guarded, flags_parser=parse)


def _hint(error: flags.Error) -> str:
    """Return advice for an unknown flag that resembles none, else an empty text."""
    if not isinstance(error, flags.UnrecognizedFlagError) or "Did you mean" in str(error):
        return ""
    setting = "a setting of the config is --config.KEY=VALUE; " if "config" in flags.FLAGS else ""
    return f"; {setting}see --helpshort"


def _check_variables() -> None:
    """Refuse a value of a variable that JAX would answer with a traceback, before JAX is imported."""
    text = os.environ.get(_NUM_DEVICES)
    try:
        is_number = text is None or int(text) != 0  # below 0: JAX's own default
    except ValueError:
        is_number = False
    if not is_number:
        raise UsageError(f"${_NUM_DEVICES}={text}: use integers from 1 on, or unset it")


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
