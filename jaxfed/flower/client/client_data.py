"""A client's folder: its examples and its settings, checked before anything is sent.

    train.npz      x [n, ...]; y int [n], -1 for unlabeled; columns, the names of x's last axis, optional
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
import re
import stat
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np

from jaxfed.data.dataset import UNLABELED
from jaxfed.data.given_examples import examples_of, labels_of
from jaxfed.errors import UsageError, suggestion
from jaxfed.flower.messages.records import one_line
from jaxfed.host import safe_files
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
    """Contents of a client's folder; None without test.npz or public.npz, () if train.npz has no columns."""

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
    file = folder / SETTINGS
    try:
        content = tomllib.loads(safe_files.content_of(file).decode())
    except ValueError as error:
        raise UsageError(f"{file}: not a readable TOML file ({one_line(f'{error}')})") from error
    settings = settings_from(ClientSettings, content, file)
    train, columns = points_of(folder / TRAIN, num_classes)
    test, public = None, None
    if (file := folder / TEST).exists():
        test, their_columns = points_of(file, num_classes, train.x)
        if their_columns != columns:
            raise UsageError(f"{file}: columns differ from those of {TRAIN}, or have another order")
    if (file := folder / PUBLIC).exists():
        public = points_of(file, num_classes, train.x)[0].x
    if not len(train.x) and test is None:
        raise UsageError(f"{folder / TRAIN}: has no examples")
    return ClientData(folder, settings, train, test, public, columns)


def write_labels(data: ClientData, label: np.ndarray, confidence: np.ndarray) -> None:
    """Write labels.csv: labels int32 [n] and confidences float32 [n] of all examples, labeled ones first."""
    known, num_training = data.points.y, len(data.train.y)
    with whole_file(data.folder / LABELS, permissions=PRIVATE_FILE) as stream:
        lines = csv.writer(stream)
        lines.writerow(("file", "index", "label", "confidence", "given"))
        for index, row in enumerate(np.argsort(labeled_first(known)).tolist()):
            source = (TRAIN, index) if index < num_training else (TEST, index - num_training)
            known_label = "" if known[index] < 0 else int(known[index])
            lines.writerow([*source, int(label[row]), f"{confidence[row]:.6g}", known_label])


def private_folder(folder: Path, name: str = STATE) -> Path:
    """Return a folder within a client's, made or closed to everybody else."""
    path = folder / name
    path.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    path.chmod(PRIVATE_FOLDER)
    return path


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


def settings_from(kind: Callable[..., Settings], table: Mapping[str, Any], file: Path) -> Settings:
    """Make the settings that a file has; each error names the file and the key."""
    known = settings_of(kind)
    for key in table:
        if key not in known:
            raise UsageError(f"{file}: {key}: unknown key{suggestion(key, known)}")
    for key, one in known.items():
        if one.default is REQUIRED and key not in table:
            raise UsageError(f"{file}: {key} is missing; use {one.allowed}")
    try:
        return kind(**table)
    except UsageError as error:
        raise UsageError(f"{file}: {error.renamed(error.key)}") from None


def points_of(
    file: Path, num_classes: int | None, like: np.ndarray | None = None
) -> tuple[Points, tuple[str, ...]]:
    """Return the examples of a file, in the form of others if these are given, and names of columns."""
    arrays = safe_files.arrays_of(file)
    if "x" not in arrays:
        raise UsageError(f"{file}: no array x; its arrays are {', '.join(arrays) or 'none'}")
    x = as_examples(examples_of(arrays["x"], str(file)))
    if like is not None and (x.dtype, x.shape[1:]) != (like.dtype, like.shape[1:]):
        form, wanted = (f"{each.dtype}{list(each.shape[1:])}" for each in (x, like))
        raise UsageError(f"{file}: examples are {form}, all others {wanted}")
    y = labels_of(arrays.get("y", np.full(len(x), UNLABELED)), str(file), len(x), num_classes)
    names = tuple(arrays["columns"].tolist()) if "columns" in arrays else ()
    if names and not len(names) == len({*names}) == x.shape[-1]:
        raise UsageError(f"{file}: columns needs another name for each column of x {list(x.shape)}")
    return Points(x, y), names


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
