"""A client's folder: its examples and its settings, checked before anything is sent.

    train.npz      x [n, ...] and y int [n], -1 for unlabeled; columns, the names of x's last axis, optional
    test.npz       the same; new points, which take part as `Federation.new` does; optional
    public.npz     x [n_u, ...], the examples that everybody has; optional
    client.toml    fields of `ClientSettings`; number and name are needed
    labels.csv     written by a method that labels the client's examples (`labels_file`); mode 0600
    state/         written by jaxfed: mode 0700, its files 0600
    node/          written by `launch.flower client`: logs and Flower's own files, in the same modes

x is uint8, or any numbers, read as float32; uint8 [n, h, w] are grey images and get a channel. Classes are
numbers, which all clients agree on.
"""

from __future__ import annotations

import re
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import numpy as np

from jaxfed.data.dataset import UNLABELED
from jaxfed.data.given_examples import examples_of, pair_of
from jaxfed.data.readers.npz import plain_arrays
from jaxfed.errors import UsageError, suggestion
from jaxfed.federation.clients import Federation
from jaxfed.host.storage import whole_file
from jaxfed.settings import (
    REQUIRED,
    Allowed,
    Count,
    CountOrZero,
    Described,
    check,
    check_value,
    settings_of,
)

TRAIN, TEST, PUBLIC, SETTINGS = "train.npz", "test.npz", "public.npz", "client.toml"
STATE, NODE = "state", "node"
PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
T = TypeVar("T")

Errors = Literal["class only", "full"]
_HASH = re.compile(r"([0-9a-f]{16})?")


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """Settings in client.toml: who this client is, and what may leave it.

    Attributes:
        number: number of this client, from 0 on; no two clients have the same.
        name: name of this client in the server's lines.
        counts: true if numbers of examples and labels may leave; methods that need them refuse otherwise.
        errors: text of this client's errors that the server receives: "class only", or all of it, "full".
        least_clients: smallest number of clients of a round in which this one takes part.
        least_examples: smallest number of training examples whose sums of features may leave; methods that
            need these sums are refused with fewer.
        config: hash of the only config that this client takes part in; "" for any. The server says it.
        estimators: classes that a config may name as `learner.estimator.estimator`.
    """

    number: CountOrZero
    name: Annotated[
        str, Allowed(lambda name: name.strip() and name.isprintable(), "a text of one line")
    ]
    counts: bool = True
    errors: Errors = "class only"
    least_clients: Count = 3
    least_examples: CountOrZero = 10
    config: Annotated[str, Allowed(_HASH.fullmatch, "16 hexadecimal digits")] = ""
    estimators: Annotated[
        Sequence[str], Described("a list of classes, such as ['sklearn.svm.SVC']")
    ] = ()

    def __post_init__(self) -> None:
        """Check the fields."""
        check(self)


class Points(NamedTuple):
    """Examples [n, ...], uint8 or float32, and classes int32 [n], -1 for unknown."""

    x: np.ndarray
    y: np.ndarray


class ClientData(NamedTuple):
    """Contents of a client's folder.

    Fields:
        folder: the folder.
        settings: client.toml.
        train: train.npz.
        test: test.npz; None without the file.
        public: x of public.npz; None without the file.
        columns: names of the columns of x; () if train.npz has none.
    """

    folder: Path
    settings: ClientSettings
    train: Points
    test: Points | None
    public: np.ndarray | None
    columns: tuple[str, ...] = ()

    @property
    def points(self) -> Points:
        """Examples of train.npz, then those of test.npz, whose classes no method receives."""
        if self.test is None:
            return self.train
        hidden = np.full(len(self.test.y), UNLABELED, np.int32)
        x = np.concatenate([self.train.x, self.test.x])
        return Points(x, np.concatenate([self.train.y, hidden]))

    def federation(self, num_classes: int) -> Federation:
        """Return a federation of this client alone; its test points are its new ones."""
        return Federation.from_clients(
            [self.train],
            new=None if self.test is None else [self.test],
            public=self.public,
            num_classes=num_classes,
        )


def read(folder: Path, *, num_classes: int | None = None) -> ClientData:
    """Read a client's folder.

    Args:
        folder: the folder.
        num_classes: C, if it is known.

    Raises:
        UsageError: the first thing that is wrong, and the number of others.
    """
    found = _Reading(folder, num_classes)
    if found.wrong:
        more = len(found.wrong) - 1
        others = f"; {more} more, see python -m launch.flower check --data={folder}" * bool(more)
        raise UsageError(f"{found.wrong[0]}{others}")
    assert found.settings is not None
    assert found.train is not None
    return ClientData(
        folder, found.settings, found.train, found.test, found.public, found.columns[TRAIN]
    )


def problems(folder: Path, *, num_classes: int | None = None) -> list[str]:
    """Return one line for each thing that is wrong in a client's folder; arguments as for `read`."""
    return _Reading(folder, num_classes).wrong


def private_folder(folder: Path, name: str = STATE) -> Path:
    """Return a folder within a client's, made or closed to everybody else."""
    place = folder / name
    place.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    place.chmod(PRIVATE_FOLDER)
    return place


def write_private(file: Path, content: bytes) -> None:
    """Write a file that its owner alone can read; an existing one is replaced at once."""
    with whole_file(file, "wb", PRIVATE_FILE) as stream:
        stream.write(content)


def labeled_first(y: np.ndarray) -> np.ndarray:
    """Return the rows in the order of a simulation: labeled ones before unlabeled ones."""
    return np.argsort(y < 0, kind="stable")


def as_examples(x: np.ndarray) -> np.ndarray:
    """Return examples as methods use them: bytes as bytes, grey images with a channel, else float32."""
    if x.dtype != np.uint8:
        with np.errstate(over="ignore"):  # to inf, which is refused
            return x.astype(np.float32, copy=False)
    return x[..., None] if x.ndim == 3 else x


class _Reading:
    """A folder read as far as possible, with a line for each thing that is wrong."""

    def __init__(self, folder: Path, num_classes: int | None) -> None:
        self._folder, self._num_classes = folder, num_classes
        self.wrong: list[str] = []
        self.settings: ClientSettings | None = None
        self.train: Points | None = None
        self.test: Points | None = None
        self.public: np.ndarray | None = None
        self.columns: dict[str, tuple[str, ...]] = {}
        if not folder.is_dir():
            self.wrong.append(f"{folder}: no such folder")
            return
        self.wrong += _exposed(folder)
        self.settings = self._settings()
        self.train = self._points(TRAIN, is_needed=True)
        self.test = self._points(TEST)
        arrays = self._arrays(PUBLIC, ("x",))
        if arrays is not None:
            public = self._checked(PUBLIC, partial(examples_of, arrays["x"]))
            self.public = None if public is None else as_examples(public)
        self._compare()

    def _settings(self) -> ClientSettings | None:
        file = self._folder / SETTINGS
        if not file.is_file():
            self.wrong.append(f"{file}: no such file; write number = 0 and name = 'NAME' into it")
            return None
        try:
            given = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            self.wrong.append(f"{file}: not a readable TOML file ({' '.join(str(error).split())})")
            return None
        wrong = list(_wrong_settings(file, given))
        self.wrong += wrong
        return None if wrong else ClientSettings(**given)

    def _points(self, name: str, *, is_needed: bool = False) -> Points | None:
        arrays = self._arrays(name, ("x", "y"), is_needed=is_needed)
        if arrays is None:
            return None
        self.columns[name] = self._columns(name, arrays)
        given = arrays["x"], arrays["y"]
        pair = self._checked(name, partial(pair_of, given, num_classes=self._num_classes))
        return None if pair is None else Points(as_examples(pair[0]), pair[1])

    def _arrays(
        self, name: str, wanted: tuple[str, ...], *, is_needed: bool = False
    ) -> dict[str, np.ndarray] | None:
        file = self._folder / name
        if not file.exists():
            if is_needed:
                self._say(name, "no such file; it has the arrays x and y")
            return None
        try:
            arrays = plain_arrays(file)
        except UsageError as error:
            self.wrong.append(str(error))
            return None
        except OSError as error:
            self._say(name, str(error.strerror))
            return None
        if missing := [key for key in wanted if key not in arrays]:
            names = ", ".join(arrays) or "none"
            self._say(name, f"no array {' and '.join(missing)}; its arrays are {names}")
            return None
        return arrays

    def _columns(self, name: str, arrays: dict[str, np.ndarray]) -> tuple[str, ...]:
        """Return the names of the columns of x; () without the array."""
        columns, width = arrays.get("columns"), arrays["x"].shape[-1:]
        if columns is None:
            return ()
        if columns.dtype.kind != "U" or columns.shape != width:
            form = f"{columns.dtype}{list(columns.shape)}"
            self._say(name, f"columns is {form}; use texts, one for each column of x {list(width)}")
        elif len(set(columns.tolist())) < len(columns):
            self._say(name, "columns contains a name twice")
        return tuple(columns.tolist())

    def _checked(self, name: str, check: Callable[..., T]) -> T | None:
        """Return the result of a check; None, after storing its error, if it refuses the arrays."""
        try:
            return check(where=str(self._folder / name))
        except UsageError as error:
            self.wrong.append(str(error))
            return None

    def _compare(self) -> None:
        """Compare test and public examples with training examples."""
        if self.train is None:
            return
        if not len(self.train.x) and self.test is None:
            self._say(TRAIN, "has no examples")
        others = {TEST: None if self.test is None else self.test.x, PUBLIC: self.public}
        for name, x in others.items():
            kinds = [f"{a.dtype}{list(a.shape[1:])}" for a in (x, self.train.x) if a is not None]
            if self.columns.get(name, own := self.columns[TRAIN]) != own:
                self._say(name, f"columns differ from those of {TRAIN}, or have another order")
            if x is not None and kinds[0] != kinds[1]:
                self._say(name, f"examples are {kinds[0]}, those of {TRAIN} {kinds[1]}")

    def _say(self, name: str, wrong: str) -> None:
        self.wrong.append(f"{self._folder / name}: {wrong}")


def _wrong_settings(file: Path, given: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each wrong key of client.toml."""
    known = settings_of(ClientSettings)
    for key, value in given.items():
        if key not in known:
            yield f"{file}: {key}: unknown key{suggestion(key, known)}"
            continue
        try:
            check_value(key, value, known[key].hint)
        except UsageError as error:
            yield f"{file}: {error.renamed(key)}"
    for key, one in known.items():
        if one.default is REQUIRED and key not in given:
            yield f"{file}: {key} is missing; use {one.allowed}"


def _exposed(folder: Path) -> Iterator[str]:
    """Yield a line for each file or folder that other users can read, or state that a group can."""
    state = folder / STATE
    if state.exists() and stat.S_IMODE(state.stat().st_mode) & 0o077:
        yield f"{state}: others can read it (mode {_mode(state)}); chmod -R go= {state}"
    if not folder.stat().st_mode & stat.S_IXOTH:
        return  # nobody else gets at its files
    for name in (TRAIN, TEST):
        file = folder / name
        if file.exists() and file.stat().st_mode & stat.S_IROTH:
            yield f"{file}: every user of this machine can read it; chmod o= {file}"


def _mode(path: Path) -> str:
    return f"{stat.S_IMODE(path.stat().st_mode):04o}"
