"""What paths, checkpoints and files of settings may not be."""

from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np
import refusals

from jaxfed.data import load
from jaxfed.host import safe_files
from jaxfed.host.checkpoint import Checkpoints
from jaxfed.host.location import file_to_write, folder_to_write, location
from jaxfed.models.efficientnet import find_weights
from jaxfed.reports.report import write_report


@contextmanager
def files():
    """An empty file, an empty folder, and a home with both."""
    Path("file").touch()
    Path("empty").mkdir()
    with mock.patch.dict("os.environ", HOME=str(Path.cwd())):
        yield


def with_files(call, *given):
    def called():
        with files():
            call(*given)

    return called


def at(text):
    return partial(location, text, "--workdir")


LONG = "a" * 300
PATHS = {
    "--workdir: is of type int; give a path, as text": at(3),
    "name_or_path: is of type NoneType; give a path": partial(load, None),
    "--workdir=...home directory": at("~nobody-of-this-name"),
    "--workdir=...File name too long": at(LONG),
    "--workdir=...null": at("a\0b"),
    "--workdir=...surrogates not allowed": at("a\udcff"),
    "--out=...file': cannot write in ...file": with_files(folder_to_write, Path("file"), "--out"),
    "--out='.': is a folder": with_files(file_to_write, ".", "--out"),
    "--out=...cannot write in file: Not a": with_files(file_to_write, "file/x.json", "--out"),
    f"WORKDIR='{LONG}': File name too long": partial(write_report, [LONG]),
    f"weights='{LONG}": partial(find_weights, "efficientnet_lite0", LONG),
    "root='/...none': no such folder": with_files(partial(load, root="~/none"), "cifar10"),
}


def saved(state=(), steps=(1,)):
    made = Checkpoints(Path("c"))
    for step in steps:
        made.save(step, state, {"step": step})
    return made


def damaged(change):
    def call():
        made = saved(np.arange(100))
        (file,) = made.path.iterdir()
        file.write_bytes(change(file.read_bytes()))
        made.latest()

    return call


CHECKPOINTS = {
    "...1.npz: is not ...: it holds a and lacks b": lambda: (
        saved({"a": np.ones(2)}).latest().state({"b": np.ones(2)})
    ),
    "damaged checkpoint: ...1.npz: ...no older one": damaged(lambda content: content[:-30]),
    "damaged checkpoint: ...1.npz: ... is not as it was written...no older one": damaged(
        lambda content: content.replace(np.arange(100).tobytes(), bytes(800))
    ),
    "...1.npz: never; there is no older one": lambda: saved(steps=(1, 2)).latest(lambda p: "never"),
}


class Inner(NamedTuple):
    numbers: tuple[int, ...] = ()
    pair: tuple[int, float] = (1, 2.0)
    more: "Inner | None" = None


def typed(value):
    return partial(safe_files.typed, Inner, value, "x")


TYPES = {
    "...x.numbers[1] is of type bool": typed({"numbers": [1, True]}),
    "...argument 2 is shorter": typed({"pair": [1]}),
    "...x.pair[1] is of type str": typed({"pair": [1, "2"]}),
    "...x.more has mare, which nothing reads": typed({"more": {"mare": 1}}),
    "...x is of type list": typed([]),
}

test_refused = refusals.table(PATHS | CHECKPOINTS)
test_types_are_those_of_annotations = refusals.table(TYPES, ValueError)


def test_lists_are_tuples_and_integers_may_be_numbers():
    found = safe_files.typed(Inner, {"pair": [3, 4], "more": {"numbers": [5]}}, "x")
    assert found == Inner((), (3, 4.0), Inner((5,)))
    assert type(found.pair[1]) is float
