"""Keys that count are accepted; `tests/config/refusals.txt` has lines of those that nothing reads."""

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from jaxfed.config import file
from jaxfed.config.check import opened, reasons
from jaxfed.config.data.simulation import Simulation
from jaxfed.data import Dataset
from jaxfed.errors import UsageError
from jaxfed.experiment import sweep as sweep_plan
from launch.entry import split_overrides

DIGITS, TRAINING, FEDCT = "xclp_digits.py", "fedavg_xclp.py", "fedct.py"
FEDADAM = ("baselines=fedadam", "fedadam.algorithm=fedavg", "fedadam.training.server_beta1=0.5")
ADAM = "fedadam.training.server_optimizer=adam"
LABELS = "federation.labeled_fraction=0.05"


@pytest.mark.parametrize(
    ("spec", "overrides"),
    [
        (DIGITS, ["federation.partition=iid", "federation.dirichlet_alpha=0.5"]),  # as they are
        (DIGITS, ["seed=3", "num_repeats=1", "evaluate_every=5", "evaluate_test=true"]),
        (
            DIGITS,
            ["checkpoint_every=3", "paper_table=xclp/1", "dataset.root=x", "execution.plots=false"],
        ),
        (DIGITS, ["deployment.deadline=5"]),  # of a network's server
        (DIGITS, ["xclp.alpha=0.5", "algorithm=pooled_lp", "baselines="]),  # which refers to it
        (DIGITS, ["xclp.hamming=phe", "xclp.key_bits=3072", "baselines="]),
        (f"{DIGITS}:tuned", ["selection.candidates.xclp.alpha=0.5"]),
        (TRAINING, ["dataset.name=patients.csv", LABELS]),  # a number is of the config's own set
        (TRAINING, [*FEDADAM, ADAM]),
        (TRAINING, ["baselines=fixmatch", "training.strong_augmentation=translate:2"]),
        (f"{FEDCT}:network", ["training.learning_rate=1e-4", "training.batch_size=16"]),
        ("federated_optimization.py:clock", ["fedbuff.concurrency=9"]),
    ],
)
def test_what_counts_is_accepted(spec, overrides):
    opened(spec, overrides)


def test_an_audit_reads_its_section():
    opened("audit.py", ["audit.members=5"], command="launch.audit")


@pytest.mark.parametrize(
    ("grid", "overrides", "refused"),
    [
        (["client_knn.num_neighbors=3,7"], [], ""),  # one method sees it
        (["federation.partition=iid,dirichlet", "federation.dirichlet_alpha=0.1,1"], [], ""),
        (["xclp.hamming=plaintext,phe"], ["xclp.key_bits=3072"], ""),
        (["seed=0,1"], ["federation.dirichlet_alpha=0.1"], "config.federation.dirichlet_alpha=0.1"),
        (["fedprox.mu=0.1,1"], [], "config.fedprox.mu="),
    ],
)
def test_a_sweep_may_set_what_counts_at_some_point(grid, overrides, refused):
    few = ["baselines=client_knn", *overrides]
    if not refused:
        assert len(sweep_plan.plan(DIGITS, few, grid).points) > 1
        return
    with pytest.raises(UsageError, match=f"^{re.escape(refused)}.*at every point of the sweep$"):
        sweep_plan.plan(DIGITS, few, grid)


DEALING = {  # values that deal otherwise where they count
    "dataset.test_fraction": (0.3, 0.5),
    "federation.dirichlet_alpha": (0.1, 10.0),
    "federation.dirichlet_alpha_rest": (0.1, 10.0),
    "federation.classes_per_client": (1, 2),
    "federation.table": (((1, 0, 0),), ((0, 1, 1), (1, 0, 1))),
    "federation.skew": ("labeled", "unlabeled"),
    "federation.labeled_fraction": (0.2, 0.6),
}
SITUATIONS = {
    **{scheme: {"federation.partition": scheme} for scheme in ("iid", "dirichlet", "table")},
    "classes": {"federation.partition": "classes_per_client"},
    "mixture": {"federation.partition": "dirichlet_mixture"},
    "pairs": {"federation.partition": "dirichlet_pairs"},
    "natural": {"federation.partition": "natural"},
    "number": {"federation.num_labeled": 30},
    "each": {"federation.labeled_per_class": 2},
    "test": {"dataset.test_size": 20},
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_what_is_said_to_count_deals_otherwise_and_nothing_else_does(situation):
    rng = np.random.default_rng(0)
    y = np.arange(180, dtype=np.int32) % 3
    data = Dataset(
        name="three",
        x=rng.random((180, 2), np.float32),
        y=y,
        x_test=np.zeros((0, 2), np.float32),
        y_test=y[:0],
        num_classes=3,
        class_names=("a", "b", "c"),
        client_id=np.arange(180) // 30,
    )

    def dealt(values):
        config = file.load(DIGITS, ["baselines="])
        changes = {"federation.num_clients": 6, **SITUATIONS[situation], **values}
        config.update_from_flattened_dict(changes)
        federation = Simulation(config, data).partitioned(0)
        held = [*federation.partition, (federation.public, federation.test)]
        return config, [np.sort(points).tolist() for kind in held for points in kind]

    def differ(keys):
        (config, one), (_, other) = (
            dealt({key: DEALING[key][number] for key in keys}) for number in (0, 1)
        )
        return reasons(config), one != other

    keys = {*DEALING} - ({"federation.skew"} if situation == "natural" else set())  # is refused
    why, _ = differ(())
    others = [key for key in sorted(keys) if why[key]]  # all at once
    for key in keys - {*others}:
        still, deals_otherwise = differ((key,))
        assert not still[key]
        assert deals_otherwise, key
    still, deal_otherwise = differ(others)
    assert all(still[key] for key in others)
    assert not deal_otherwise, others


STUB = """python() { printf "%s\\0" "$@" $'\\n'; }\n"""
PAGES = ["README.md", *sorted(map(str, Path("docs").glob("*.md")))]
RESULTS = sorted(map(str, Path("results").rglob("README.md")))


def commands(page):
    """The commands of a page's blocks, loops and variables as the shell has them; nothing is run.

    A block has the variables of those before it.
    """
    text = Path(page).read_text()
    blocks = re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    blocks += [found[0] for found in re.finditer(r"(?:^    .*\n|^\n)+", text, re.MULTILINE)]
    script = "\n".join(block for block in blocks if "-m launch." in block)
    # One at a time: two that print at once would mix their words.
    script = re.sub(r" &$", "", script, flags=re.MULTILINE)
    command = ["/bin/bash", "-c", STUB + script]
    shell = subprocess.run(command, env={"PATH": "/nowhere"}, capture_output=True, text=True)
    for called in shell.stdout.split("\n\0"):
        words = [word for word in called.split("\0") if word]
        if "-m" in words and words[words.index("-m") + 1].startswith("launch."):
            start = words.index("-m") + 1
            yield words[start].removeprefix("launch."), words[start + 1 :]


@pytest.mark.parametrize(
    "page", [*PAGES, *(pytest.param(page, marks=pytest.mark.slow) for page in RESULTS)]
)
def test_documented_commands_set_nothing_in_vain(page):
    """Those of the pages, and those that made the committed results."""
    known = set()
    for entry, arguments in commands(page):
        rest, overrides = split_overrides(arguments)
        specs = [word.removeprefix("--config=") for word in rest if word.startswith("--config=")]
        keys = frozenset(text.partition("=")[0] for text in overrides)
        if entry not in ("run", "sweep", "audit", "costs") or not specs or (*specs, keys) in known:
            continue
        known.add((*specs, keys))
        grid = [word.removeprefix("--sweep=") for word in rest if word.startswith("--sweep=")]
        # States of earlier runs are not there.
        overrides = [text.replace("/states/", "") for text in overrides]
        overrides = [re.sub(r"^(training\.initial_model)=.*", r"\1=", text) for text in overrides]
        try:
            if entry == "sweep":
                sweep_plan.plan(*specs, overrides, grid)
            else:
                opened(*specs, overrides, command=f"launch.{entry}")
        except UsageError as error:
            if "is not installed: pip install" not in str(error):
                raise


def test_the_shell_of_a_page_is_read():
    assert len(list(commands("README.md"))) >= 1
    assert len(list(commands("docs/running.md"))) >= 3
    assert len([page for page in RESULTS if list(commands(page))]) > 20
