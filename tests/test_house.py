"""Rules of the house: how docstrings begin, how long rooms and files are, and what an import brings along."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

FILES = [
    path for root in ("jaxfed", "launch", "benchmarks") for path in sorted(Path(root).rglob("*.py"))
]
CONFIGS = sorted(Path("ml_collections_configs").glob("*.py"))
NO_HEAD = re.compile(r"\W*(What|Who|Whose|Whether|Which|Where|How|Of)\b")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)


def faults(node):
    """What is wrong with a module, class or function."""
    if NO_HEAD.match(ast.get_docstring(node) or ""):
        yield "begins with a relative clause, to be read twice: `Return ...` and `Bytes of ...` need not"
    if isinstance(node, ast.FunctionDef):
        if node.end_lineno - node.lineno >= 100:
            yield "is longer than a screen"
        if len(node.args.args) + len(node.args.kwonlyargs) > 12:
            yield "has more arguments than one remembers"


def test_definitions_are_read_at_a_glance():
    found = [
        f"{path}: {getattr(node, 'name', 'the file')} {fault}"
        for path in [*FILES, *CONFIGS]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, DOCUMENTED)
        for fault in faults(node)
    ]
    assert not found, "\n".join(found)


# Lines of each room, at most. What needs more takes it from another room.
LINES = {
    ("algorithms",): 8_300,
    ("training",): 6_200,
    ("xclp",): 4_700,
    ("secure",): 6_700,
    ("kernels",): 4_500,
    ("learners", "estimators"): 2_000,
    ("models", "privacy"): 3_300,
    ("audit",): 2_300,
    ("data",): 5_000,
    ("config", "settings", "registry", "errors"): 3_700,
    ("experiment",): 2_700,
    ("reports",): 2_150,
    ("flower",): 3_000,
    ("host", "api"): 2_050,
    ("federation",): 2_300,
    ("testing", "__init__", "paper_numbers", "random_streams"): 700,
}
ALL_LINES, ALL_FILES, LINES_OF_TESTS = 59_600, 330, 48_000


def test_no_room_grows():
    rooms = {name: room for room in LINES for name in room}
    paths = [path for path in FILES if path.parts[0] == "jaxfed"]
    lines = {path: path.read_text().count("\n") for path in paths}
    found = dict.fromkeys(LINES, 0)
    for path, length in lines.items():
        found[rooms[path.parts[1].removesuffix(".py")]] += length
    assert {room: number for room, number in found.items() if number > LINES[room]} == {}
    assert sum(lines.values()) <= ALL_LINES
    assert len(lines) <= ALL_FILES
    assert (
        sum(path.read_text().count("\n") for path in Path("tests").rglob("*.py")) <= LINES_OF_TESTS
    )


def test_no_file_is_longer_than_a_concept():
    lengths = {path: len(path.read_text().splitlines()) for path in [*FILES, *CONFIGS]}
    assert {path: length for path, length in lengths.items() if length > 900} == {}


def imported(*codes):
    """Modules that a new process has after each of these; None starts over without those of jaxfed."""
    forget = "[sys.modules.pop(name) for name in [*sys.modules] if name.startswith('jaxfed')]"
    lines = (f"{code}; print(*sys.modules)" if code else forget for code in codes)
    code = "import sys\n" + "\n".join(lines)
    done = subprocess.run(
        [sys.executable, "-c", code], env=CACHED, capture_output=True, text=True, check=True
    )
    return [set(line.split()) for line in done.stdout.splitlines()]


# What tests have compiled serves here too: the programs are those of other labelings.
CACHED = os.environ | {
    "JAX_COMPILATION_CACHE_DIR": os.path.join(os.environ["JAXFED_CACHE"], "xla"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
}
USE = (
    "import numpy as np; from jaxfed.xclp import propagate_labels; "
    "x = [np.eye(8, 16, dtype=np.float32)] * 2; y = [np.arange(8) % 4 - 1] * 2; "
    "propagate_labels(x, y, num_classes=3, num_bits=32, num_neighbors=4, {})"
)
PLAIN = (  # what the core of the wheel does without
    *("jaxfed.secure", "jaxfed.data.readers", "jaxfed.reports", "phe", "nacl", "cryptography"),
    *("sklearn", "tensorflow_datasets", "pyarrow", "pandas", "PIL", "matplotlib", "markdown_it"),
)
USES = [  # code, jaxfed's modules at most, those that are not there
    ("import jaxfed", 1, ("jax", "numpy")),
    ("from jaxfed.algorithms.fedavg import fedavg", 55, PLAIN[1:]),
    (USE.format(""), 88, PLAIN),
    (
        USE.format("hamming='masked', row_sums='masked', influence='columns'"),
        132,
        ("phe", "gmpy2", "sklearn"),
    ),
]


def test_an_import_brings_what_is_used():
    """FedAvg and XCLP each by itself, in one process: others' modules are imported once."""
    first, fedavg, *xclp = (code for code, _, _ in USES)
    for modules, (code, most, absent) in zip(
        imported(first, fedavg, None, *xclp), USES, strict=True
    ):
        own = {name for name in modules if name.partition(".")[0] == "jaxfed"}
        assert len(own) <= most, (code, sorted(own))
        assert modules.isdisjoint(absent), code


def test_numbers_that_keep_random_streams_apart_have_names():
    """A number of its own in some file may be another's: `Stream` has each once."""
    code = (Path("jaxfed/random_streams.py"), re.compile(r"=\s*\(?\s*0x[0-9A-F]{6,8}\b"))
    found = [path for path in FILES if path != code[0] and code[1].search(path.read_text())]
    assert found == []
