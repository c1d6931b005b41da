"""Pieces that are commands: tests that hold on every device, and cells of the papers' tables."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.on_device.piece import Piece
from jaxfed.errors import UsageError

_ROOT = Path(__file__).parents[2]
_TABLE_4 = "cifar10_iid_100_1000"  # XCLP's: m_L = 100, n_L = 1000
_TABLE_3 = ("cifar10_iid", "cifar10_noniid", "svhn_iid", "svhn_noniid", "stl10")  # ProtoFSSL's
_DEALS = ("dirichlet_01", "dirichlet_05", "dirichlet_1")  # SAGE's


def tests() -> tuple[Piece, ...]:
    """Tests marked gpu, on the device."""
    folders = {
        "kernels": ("kernels",),
        "protocols": ("xclp", "secure"),
        "experiments": ("experiment",),
    }
    return tuple(
        Piece(
            f"tests_{name}",
            400,
            f"tests of {' and '.join(rooms)} that hold on every device",
            command=partial(_pytest, name, rooms),
            result=partial(_tested, name),
        )
        for name, rooms in folders.items()
    )


def _pytest(name: str, rooms: tuple[str, ...], out: Path, small: bool) -> list[str]:
    folders = [_ROOT / "tests" / room for room in rooms]
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"{folder} is not there: tests come with a checkout of the repository")
    chosen = ["-k", "ring or neighbors_are_a_cpus or same_bits and protofssl"] if small else []
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", *chosen, f"--rootdir={_ROOT}"]
    return [*command, f"--junitxml={_report(name, out)}", *map(str, folders)]


def _report(name: str, out: Path) -> Path:
    return out / f"tests_{name}.xml"


def _tested(name: str, out: Path, small: bool) -> dict[str, Any]:
    del small
    cases = list(ElementTree.parse(_report(name, out)).iter("testcase"))
    failed = [
        f"{case.get('classname')}.{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]
    skipped = sum(case.find("skipped") is not None for case in cases)
    ran = len(cases) - skipped
    return {"ran": ran, "skipped": skipped, "failed": failed, "errors": len(failed) + (not ran)}


def experiments() -> tuple[Piece, ...]:
    """Tables of papers, cell by cell, one seed each; small runs are on digits.

    They are XCLP's Table 4, ProtoFSSL's Table 3, and the CIFAR-10 column of SAGE's table.
    """
    table_4 = {"labeled_only": ",labeled_only", "pseudo_labels": ""}
    table_4 |= {name: f",{name}" for name in ("fedmatch", "fedsiam")}
    named = {
        f"xclp_table_4_{row}": ("fedavg_xclp", f"{_TABLE_4}{variant}", f"smoke{variant}")
        for row, variant in table_4.items()
    } | {f"protofssl_table_3_{cell}": ("protofssl", cell, "smoke") for cell in _TABLE_3}
    named |= {f"sage_cifar10_{deal}": ("fssl", f"cifar10,{deal},paper", "smoke") for deal in _DEALS}
    return tuple(
        Piece(
            name,
            60,
            f"ml_collections_configs/{config}.py:{variant}",
            command=partial(_run, name, config, variant, smallest),
            result=partial(_summary, name),
        )
        for name, (config, variant, smallest) in named.items()
    )


def _run(name: str, config: str, variant: str, smallest: str, out: Path, small: bool) -> list[str]:
    chosen = f"ml_collections_configs/{config}.py:{smallest if small else variant}"
    command = [sys.executable, "-m", "launch.run", f"--config={chosen}", f"--workdir={out / name}"]
    if small:
        command += ["--config.rounds=1", "--config.training.labeled_only_rounds=0"]
        command += ["--config.baselines=()", "--config.evaluate_every=1"]
    elif name.endswith("pseudo_labels"):
        first = out / name.replace("pseudo_labels", "labeled_only")
        command += [f"--config.training.initial_model={first}/states/fedavg-{{repeat}}"]
    return [*command, "--config.num_repeats=1"]


def _summary(name: str, out: Path, small: bool) -> dict[str, Any]:
    del small
    return {"summary": json.loads((out / name / "summary.json").read_text()), "errors": 0}
