"""Compare what two commits compute, bit for bit.

    python tests/compare_commits.py OLD NEW [--only=REGEX] [--state-only] [--cache=DIR] [--jobs=2]

OLD and NEW are commits of this repository; NEW may be `.`, the working tree with files not yet committed.
Each tree is exported into a temporary folder. Processes that start in it run the cases: `RUNS` and `AUDITS`
(configs at smoke size), `COSTS` (a client's operations and bytes in a round), and XCLP over every pair of
protocols (`protocol_messages.py`). Each case is reduced to a flat dictionary (`flat_results.py`) of metrics,
summary, bytes of messages, and digests of the arrays of saved states. The two dictionaries are compared.

Prints values that differ, are missing in NEW, or are new in it, and exits with 1 if there are any, else
with 0. A case that fails in both trees, as one without its data does, is reported as skipped. A leaf of a
state with the same content under another name is reported as renamed, which is no difference.

`--only` chooses cases whose name (such as "run xclp_digits.py:smoke") matches a regular expression.
`--state-only` compares digests of states only. `--cache` keeps the results of a tree there, so that it is
computed once; its key is the tree's hash and the content of the two scripts that reduce results. `--jobs` is
the number of cases that run at a time. A tree takes some four minutes on two quiet cores.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from flat_results import Flat, compared, flat_json, flat_workdir

HERE = Path(__file__).resolve().parent
REDUCTION = ("flat_results.py", "protocol_messages.py")  # a change of these outdates the cache
CONFIGS = "ml_collections_configs"
LIMIT = 1200  # seconds a case
SHOWN = 12  # lines a case and kind of difference
EXIT = "exit status"  # the one key of a case that failed, beside its message
MESSAGE = "message"

# The longest first: two at a time then end together.
AUDITS = ("audit.py:every_method,smoke", "audit.py:smoke")
RUNS = (
    "labels_at_server.py:smoke",
    "fssl.py:smoke",
    "fedct.py:network,fedmd,pate,dd,fedavg,dp_fedavg,dp_fedavg_records,smoke",
    "protofssl.py:smoke",
    "protofssl.py:authors,smoke",
    "protofssl.py:masked_global,smoke",
    "fedavg_xclp.py:smoke",
    "fedavg_xclp.py:authors,smoke",
    "fedavg_xclp.py:auto,smoke",
    "fedavg_xclp.py:fedmatch,smoke",
    "fedavg_xclp.py:fedsiam,smoke",
    "fedavg_xclp.py:scaffold,smoke",
    "federated_optimization.py:smoke",
    "federated_optimization.py:clock,smoke",
    "fed_isic2019.py:smoke",
    "fed_isic2019.py:leave_one_out,smoke",
    "femnist.py:smoke",
    "femnist.py:linear,joint,smoke",
    "xclp_cifar10.py:smoke",
    "xclp_fashion_mnist.py:smoke",
    "xclp_auto.py:smoke",
    "xclp_digits.py:smoke",
    "xclp_digits.py:auto,smoke",
    "xclp_digits.py:tuned,smoke",
    "few_labels.py:smoke",
    "few_labels.py:dense,smoke",
    "fedct.py:smoke",
    "fedct.py:decision_tree,heterogeneous,smoke",
    "fedct.py:dp,smoke",
    "fedct.py:masked,smoke",
)
COSTS = ("fedavg_xclp.py:smoke", "protofssl.py:smoke")


class Case(NamedTuple):
    """A name, the arguments of Python that compute it, and the output that they write."""

    name: str
    arguments: tuple[str, ...]
    output: str


def main() -> int:
    """Compute both trees where the cache has them not, compare, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--only", default="", metavar="REGEX")
    parser.add_argument("--state-only", action="store_true")
    parser.add_argument("--cache", type=Path, metavar="DIR")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    chosen = [case for case in cases() if re.search(options.only, case.name)]
    with tempfile.TemporaryDirectory() as folder:
        cache = (options.cache or Path(folder) / "cache").resolve()
        results = [
            computed(commit, chosen, Path(folder) / side, cache, options.jobs)
            for side, commit in (("old", options.old), ("new", options.new))
        ]
    return report(chosen, *results, state_only=options.state_only)


def cases() -> list[Case]:
    """All cases, the longest first."""
    found = []
    for entry, specs in (("audit", AUDITS), ("run", RUNS)):
        for spec in specs:
            arguments = ("-m", f"launch.{entry}", f"--config={CONFIGS}/{spec}", "--workdir=OUTPUT")
            found.append(Case(f"{entry} {spec}", arguments, "workdir"))
    for spec in COSTS:
        arguments = ("-m", "launch.costs", f"--config={CONFIGS}/{spec}", "--out=OUTPUT")
        found.append(Case(f"costs {spec}", arguments, "costs.json"))
    script = str(HERE / "protocol_messages.py")
    found.append(Case("protocols", ("-P", script, "OUTPUT"), "protocols.json"))
    return found


def tree_of(commit: str) -> str:
    """Hash of a commit's tree; of the working tree's files, but the ignored, for `.`."""
    if commit != ".":
        return git("rev-parse", "--verify", f"{commit}^{{tree}}")
    with tempfile.TemporaryDirectory() as folder:
        index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        git("add", "--all", ".", **index)
        return git("write-tree", **index)


def git(*arguments: str, **environment: str) -> str:
    """Output of a git command on this checkout."""
    command = ["git", "-C", str(HERE.parent), *arguments]
    done = subprocess.run(
        command, env={**os.environ, **environment}, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def export(tree: str, folder: Path) -> None:
    """Write the files of a tree into a new folder."""
    folder.mkdir(parents=True)
    archive = folder.with_suffix(".tar")
    git("archive", f"--output={archive}", tree)
    subprocess.run(["tar", "-x", "-f", archive, "-C", folder], check=True)
    archive.unlink()


def computed(
    commit: str, chosen: Sequence[Case], folder: Path, cache: Path, jobs: int
) -> dict[str, Flat]:
    """Results of the chosen cases in a commit's tree, by name; what the cache has not is computed."""
    tree = tree_of(commit)
    scripts = b"".join((HERE / name).read_bytes() for name in REDUCTION)
    kept = cache / f"{tree[:16]}-{hashlib.sha256(scripts).hexdigest()[:16]}"
    kept.mkdir(parents=True, exist_ok=True)

    def result(case: Case) -> Flat:
        file = kept / f"{re.sub('[^A-Za-z0-9_.,-]', '-', case.name)}.json"
        if file.exists():
            return json.loads(file.read_text())
        began = time.monotonic()
        found = run(case, folder)
        if EXIT not in found:
            partial = file.with_suffix(".partial")
            partial.write_text(json.dumps(found, indent=0, sort_keys=True))
            partial.replace(file)
        print(f"{commit}: {case.name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
        return found

    export(tree, folder)
    with ThreadPoolExecutor(jobs) as pool:
        return dict(zip((case.name for case in chosen), pool.map(result, chosen), strict=True))


def run(case: Case, tree: Path) -> Flat:
    """Result of a case in an exported tree; its exit status and last line if it fails."""
    dropped = ("JAX_", "XLA_", "PYTHON")  # the same settings for both trees
    environment = {key: v for key, v in os.environ.items() if not key.startswith(dropped)}
    environment.update(JAX_PLATFORMS="cpu", PYTHONPATH=str(tree))
    if root := os.environ.get("JAXFED_DATA"):
        environment["JAXFED_DATA"] = os.path.abspath(root)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / case.output
        arguments = [argument.replace("OUTPUT", str(output)) for argument in case.arguments]
        command = ["timeout", str(LIMIT), sys.executable, *arguments]
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            return {EXIT: str(done.returncode), MESSAGE: (done.stderr.splitlines() or [""])[-1]}
        if output.is_dir():
            return flat_workdir(output)
        return flat_json(json.loads(output.read_text()))


def report(
    chosen: Iterable[Case], old: dict[str, Flat], new: dict[str, Flat], *, state_only: bool = False
) -> int:
    """Print all differences of the chosen cases; return the exit status."""
    number, differing = 0, 0
    for case in chosen:
        one, other = old[case.name], new[case.name]
        number += 1
        if EXIT in one and EXIT in other:
            print(f"{case.name}: skipped, as it fails in both: {one[MESSAGE]}")
            continue
        lines = list(differences(one, other, state_only=state_only))
        differing += any(counts for counts, _ in lines)
        for _, line in lines:
            print(f"{case.name}: {line}")
    print(
        f"{differing} of {number} cases differ" if differing else f"no difference in {number} cases"
    )
    return int(differing > 0)


def differences(one: Flat, other: Flat, *, state_only: bool) -> Iterator[tuple[bool, str]]:
    """Lines to print of a case; each with whether it counts as a difference."""
    for kind, entries in compared(one, other, state_only=state_only).items():
        for entry in entries[:SHOWN]:
            yield kind != "renamed", f"{kind}: {entry}"
        if len(entries) > SHOWN:
            yield kind != "renamed", f"{kind}: {len(entries) - SHOWN} more"


if __name__ == "__main__":
    sys.exit(main())
