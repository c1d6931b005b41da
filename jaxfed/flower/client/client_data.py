"""A client's folder: its examples and its settings, checked before anything is sent.

    train.npz      x [n, ...] and y int [n], -1 for unlabeled; columns, the names of x's last axis, optional
    test.npz       the same; new points, which take part as `Federation.new` does; optional
    public.npz     x [n_u, ...], the examples that everybody has; optional
    client.toml    fields of `ClientSettings`; number and name are needed
    labels.csv     written by a method that labels the client's examples; mode 0600
    state/         written by jaxfed: mode 0700, its files 0600
    node/          written by `launch.flower client`: Flower's own files, in the same modes

labels.csv has a row for each example: `file`, train.npz or test.npz; `index`, its row there; `label`, -1 if
the method gave none; `confidence`, 0 to 1; `given`, the label in train.npz, if any. A later run replaces it.

x is uint8, or any numbers, read as float32; uint8 [n, h, w] are grey images and get a channel. Classes are
numbers, which all clients agree on.
"""

from __future__ import annotations

import csv
import io
import re
import stat
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np

from jaxfed.data.dataset import UNLABELED
from jaxfed.data.given_examples import examples_of, pair_of
from jaxfed.data.readers.arrays import plain_arrays
from jaxfed.errors import UsageError, suggestion
from jaxfed.flower.messages.records import one_line
from jaxfed.host.storage import whole_file
from jaxfed.settings import REQUIRED, Allowed, Count, CountOrZero, Described, check, settings_of

Settings = TypeVar("Settings")

TRAIN, TEST, PUBLIC, SETTINGS = "train.npz", "test.npz", "public.npz", "client.toml"
LABELS = "labels.csv"
STATE, NODE = "state", "node"
PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
_HASH = re.compile(r"([0-9a-f]{16})?")


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """Settings in client.toml: who this client is, and what may leave it.

    Attributes:
        number: number of this client, from 0 on; no two clients have the same.
        name: name of this client in the server's lines.
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


def read(folder: Path, *, num_classes: int | None = None) -> ClientData:
    """Read a client's folder."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder")
    _check_modes(folder)
    settings = _settings(folder / SETTINGS)
    if not (folder / TRAIN).exists():
        raise UsageError(f"{folder / TRAIN}: no such file; it has the arrays x and y")
    train, columns = _points(folder / TRAIN, num_classes)
    test, public = None, None
    if (file := folder / TEST).exists():
        test, own = _points(file, num_classes)
        if own != columns:
            raise UsageError(f"{file}: columns differ from those of {TRAIN}, or have another order")
        _check_like(file, test.x, train.x)
    if (file := folder / PUBLIC).exists():
        public = as_examples(examples_of(arrays_of(file, "x")["x"], where=str(file)))
        _check_like(file, public, train.x)
    if not len(train.x) and test is None:
        raise UsageError(f"{folder / TRAIN}: has no examples")
    return ClientData(folder, settings, train, test, public, columns)


def write_labels(data: ClientData, label: np.ndarray, confidence: np.ndarray) -> None:
    """Write labels.csv: labels int32 [n] and confidences float32 [n] of all examples, labeled ones first."""
    stream = io.StringIO(newline="")
    lines = csv.writer(stream)
    lines.writerow(("file", "index", "label", "confidence", "given"))
    known, num_training = data.points.y, len(data.train.y)
    for index, row in enumerate(np.argsort(labeled_first(known)).tolist()):
        file, place = (TRAIN, index) if index < num_training else (TEST, index - num_training)
        given = "" if known[index] < 0 else int(known[index])
        lines.writerow([file, place, int(label[row]), f"{confidence[row]:.6g}", given])
    write_private(data.folder / LABELS, stream.getvalue().encode())


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


def _settings(file: Path) -> ClientSettings:
    if not file.is_file():
        raise UsageError(f"{file}: no such file; write number = 0 and name = 'NAME' into it")
    try:
        given = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: not a readable TOML file ({one_line(f'{error}')})") from error
    return settings_from(ClientSettings, given, file)


def settings_from(kind: Callable[..., Settings], given: Mapping[str, Any], file: Path) -> Settings:
    """Make the settings that a file has; each error names the file and the key."""
    known = settings_of(kind)
    for key in given:
        if key not in known:
            raise UsageError(f"{file}: {key}: unknown key{suggestion(key, known)}")
    for key, one in known.items():
        if one.default is REQUIRED and key not in given:
            raise UsageError(f"{file}: {key} is missing; use {one.allowed}")
    try:
        return kind(**given)
    except UsageError as error:
        raise UsageError(f"{file}: {error.renamed(error.key)}") from None


def arrays_of(file: Path, *wanted: str) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file, which must have those that are wanted."""
    try:
        arrays = plain_arrays(file)
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error
    if missing := [key for key in wanted if key not in arrays]:
        names = ", ".join(arrays) or "none"
        raise UsageError(f"{file}: no array {' and '.join(missing)}; its arrays are {names}")
    return arrays


def _points(file: Path, num_classes: int | None) -> tuple[Points, tuple[str, ...]]:
    """Return the examples of a file, and the names of their columns, () without the array."""
    arrays = arrays_of(file, "x", "y")
    x, y = pair_of((arrays["x"], arrays["y"]), where=str(file), num_classes=num_classes)
    columns, width = arrays.get("columns", np.zeros(0, "U")), arrays["x"].shape[-1:]
    if "columns" in arrays and (columns.dtype.kind != "U" or columns.shape != width):
        form = f"{columns.dtype}{list(columns.shape)}"
        allowed = f"use texts, one for each column of x {list(width)}"
        raise UsageError(f"{file}: columns is {form}; {allowed}")
    names = tuple(columns.tolist())
    if len(set(names)) < len(names):
        raise UsageError(f"{file}: columns contains a name twice")
    return Points(as_examples(x), y), names


def _check_like(file: Path, x: np.ndarray, train: np.ndarray) -> None:
    found, wanted = (f"{each.dtype}{list(each.shape[1:])}" for each in (x, train))
    if found != wanted:
        raise UsageError(f"{file}: examples are {found}, those of {TRAIN} {wanted}")


def _check_modes(folder: Path) -> None:
    """Refuse a file or folder that other users can read, or state that a group can."""
    state = folder / STATE
    if state.exists() and (mode := stat.S_IMODE(state.stat().st_mode)) & 0o077:
        raise UsageError(f"{state}: others can read it (mode {mode:04o}); chmod -R go= {state}")
    if not folder.stat().st_mode & stat.S_IXOTH:
        return  # nobody else gets at its files
    for file in (folder / TRAIN, folder / TEST):
        if file.exists() and file.stat().st_mode & stat.S_IROTH:
            raise UsageError(f"{file}: every user of this machine can read it; chmod o= {file}")
