"""What experiments refuse: settings, workdirs, sweeps, audits, trackers; by launchers, with status 2."""

import json
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import refusals
from flax import nnx
from invoking import DIGITS
from small_sweeps import fake_command, write_config
from small_sweeps import run as run_sweep

import jaxfed
from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import file
from jaxfed.experiment import sweep
from jaxfed.experiment import sweep as sweep_plan
from jaxfed.experiment import tracking as trackers
from jaxfed.experiment.costs import method_costs
from jaxfed.experiment.run.simulate import simulate
from jaxfed.experiment.store import compilation_cache
from jaxfed.experiment.store.workdir import open_workdir
from jaxfed.reports.report import build
from launch import audit, costs, run
from launch import sweep as sweep_launcher

launched = partial(refusals.launched, run.main)


def of(row):
    """launch.run of a row of `refusals.txt`."""
    config, settings, _ = row.format(LONG=LONG, HUGE=10**20).split("|")
    name, colon, variants = config.strip().partition(":")
    config = f"--config=ml_collections_configs/{name}.py{colon}{variants}"
    settings = (f"--config.{text}" for text in filter(None, settings.strip().split(";")))
    return launched(config, "--workdir=W", *settings)


def in_8_gb(call):
    def called():
        there = "jaxfed.federation.execution.available_bytes"
        with mock.patch(there, return_value=8 * 10**9):
            call()

    return called


def words(row):
    return "..." + row.format(LONG=LONG, HUGE=10**20).split("| ")[-1].replace(" ; ", "...")


LONG, PROTOTYPES = "a" * 300, "ml_collections_configs/protofssl.py"
ROWS = Path(__file__).with_name("refusals.txt").read_text().splitlines()
ROWS = {f"{words(row)}  {row}": in_8_gb(of(row)) for row in ROWS if row[0] != "#"}
CONFIG = f"--config={DIGITS}"
LINES = {
    "--config=ml_collections_configs/NAME.py is missing": launched(),
    "--workdir=DIR is missing": launched(CONFIG),
    "--config=nowhere.py: no such file": launched("--config=nowhere.py", "--workdir=W"),
    "Unknown command line flag 'confg'. Did you mean: config": launched("--confg=x", "--workdir=W"),
    "extra: no such argument": launched(CONFIG, "--workdir=W", "extra"),
    "...'rounds'; a setting of the config is": launched(CONFIG, "--workdir=W", "--rounds=3"),
    "...overwrite": launched(CONFIG, "--workdir=W", "--overwrite=maybe"),
    "--workdir=pyproject.toml/w": launched(CONFIG, "--workdir=pyproject.toml/w"),
    "...pyproject.toml...is no workdir of launch.run": launched(CONFIG, "--workdir=pyproject.toml"),
    "...tests...is no workdir of launch.run": launched(CONFIG, "--workdir=tests"),
    "...File name too long": launched(CONFIG, f"--workdir=runs/{LONG}"),
    "--workdir=...surrogates not allowed": launched(CONFIG, "--workdir=runs/\udcff"),
    "--workdir='~nobody": launched(CONFIG, "--workdir=~nobody-of-this-name/x"),
}

X = np.random.default_rng(0).standard_normal((90, 4)).astype(np.float32)
PAIR = (X[:2], [0, 1])
TWO = [(X[:30], np.arange(30) % 3), (X[30:60], np.arange(30) % 3)]
KNN = ALGORITHMS["client_knn"](num_classes=3)


def clients(*given, **options):
    return partial(jaxfed.Federation.from_clients, given, **options)


FEDERATION = clients(*TWO, num_classes=3)()


def linear(width=4, outputs=3):
    return jaxfed.from_flax(lambda rngs: nnx.Linear(width, outputs, rngs=rngs), (width,))


def fedavg(model=None, **given):
    labels = {"pseudo_label": "network"} if given else {}
    training = jaxfed.Training(linear() if model is None else model, **given)
    return jaxfed.algorithms.fedavg(training=training, **labels)


def simulated(method=KNN, federation=FEDERATION, **options):
    return lambda: simulate(method() if method is fedavg else method, federation, **options)


def predicted(method, x):
    return lambda: simulate(method(), FEDERATION).predict(x)


SIMULATED = {
    "...0 clients": clients(),
    "...1 clients and 0 of their new points": clients(PAIR, new=[]),
    "...rounds=0": simulated(rounds=0),
    "simulate.cohort_size=3: use 1 to 2, and 0 for all": simulated(cohort_size=3),
    "simulate.on_round='print': use a function, or None": simulated(on_round="print"),
    "simulate.sampling='unifrom': choose one of 'uniform', 'pro": simulated(sampling="unifrom"),
    "simulate: str is given for a FederatedAlgorithm": simulated("fedavg"),
    "simulate: list is given for a Federation": simulated(KNN, TWO),
    "simulate.clock=0.1: use Clock(...), or None": simulated(clock=0.1),
    "...Training: model is a Linear; from_flax": lambda: fedavg(nnx.Linear(4, 3, rngs=nnx.Rngs(0))),
    "...does not take examples of (4,): ": lambda: simulated(fedavg(linear(5)))(),
    "rounds=3: ... Training.labeled_only_rounds=3": lambda: simulated(
        fedavg(labeled_only_rounds=3), rounds=3
    )(),
    "...evaluate_test=True: there are no test": simulated(fedavg, evaluate_test=True),
    "...nobody has a label, ..., or server=(x, y)": simulated(
        KNN, clients((X[:2], [-1, -1]), test=PAIR, num_classes=3)()
    ),
    "predict: examples of type <U1; numbers are needed": predicted(fedavg, np.array([["a"] * 4])),
    "...labels the points that its clients hold": predicted(lambda: KNN, X),
}

SETTINGS = {"algorithm": "xclp", "num_repeats": 2, "dataset": {"name": "digits"}, "alpha": 0.5}
SWEEP = "def sweep(add): add"
THREE = "def sweep(add):\n    for seed in (1, 2, 3): add(seed=seed)\n"


def another(first=SETTINGS, **changes):
    """A workdir of a config that is opened for another one."""

    def call():
        with open_workdir(Path("w"), first):
            pass
        try:
            with open_workdir(Path("w"), SETTINGS | changes):
                pass
        finally:
            assert json.loads(Path("w/config.json").read_text()) == first

    return call


def checked(before, after, content=None):
    def call():
        with open_workdir(Path("w"), SETTINGS) as workdir:
            workdir.check_data(before)
            if content is not None:
                Path("w/data.json").write_text(content)
            workdir.check_data(after)

    return call


def twice(**how):
    def call():
        with open_workdir(Path("w"), SETTINGS), open_workdir(Path("w"), SETTINGS, **how):
            pass

    return call


def overwriting_others():
    Path("w").mkdir()
    Path("w/notes.txt").write_text("mine")
    with open_workdir(Path("w"), SETTINGS, overwrite=True):
        pass


def report_of(name="", text=""):
    def call():
        Path("w").mkdir()
        if name:
            (Path("w") / name).write_text(text)
        build(["w"])

    return call


def programs(mode, above=0o700):
    def call():
        place = Path("programs")
        place.mkdir()
        place.chmod(mode)
        Path().chmod(above)
        compilation_cache.folder(str(place.resolve()))

    return call


DATA = {"y": "int32[40] 1"}
WORKDIRS = {
    "...made by another config: config.alpha is 0.5 there, 0.9 now": another(alpha=0.9),
    '...config.dataset.name is "digits" there, "mnist"': another(dataset={"name": "mnist"}),
    "...config.beta is null there, 1 now": another(beta=1),
    "...config.alpha is 0.5 there, 0.9 now; config.a_follower": another(alpha=0.9, a_follower=0.9),
    '...config.paper_table is "" there': another(SETTINGS | {"paper_table": ""}, paper_table="x/1"),
    '...config.fedct.decode is "votes" there, null now': another(
        SETTINGS | {"fedct": {"steps": 2, "decode": "votes"}}, fedct={"steps": 2}
    ),
    '...config.dataset.test_rows is "shared" there, "by_repeat" now': another(
        dataset={"name": "digits", "test_rows": "by_repeat"}
    ),
    "...y is 2-0 there, None now": checked({"x": "1-0", "y": "2-0"}, {"x": "1-0"}),
    "...data.json is damaged": checked(DATA, DATA, "null"),
    "...data.json is damaged  cut": checked(DATA, DATA, '{"y": "int32[40]'),
    "--workdir=w: is no workdir of launch.run": overwriting_others,
    "...another process is running here": twice(),
    "...w...  missing": lambda: build(["w"]),
    "...w...  empty": report_of(),
    "...w...  broken": report_of("config.json", "{\n!"),
    "...w...  foreign": report_of("sweep.json", "{}"),
    "config.execution.compilation_cache=...: everybody can write in ...; chmod": programs(0o777),
    "...everybody can write in ...  above": programs(0o700, 0o777),
}


def planned(body, *given, **how):
    return lambda: sweep_plan.plan(write_config(Path(), body), *given, **how)


def grid(*values):
    return planned("", grid=values)


def claimed_twice():
    plan = sweep_plan.plan(write_config(Path(), THREE))
    with sweep.claim(plan, Path("out")), sweep.claim(plan, Path("out")):
        pass


def another_sweep(variant="", overrides=()):
    def call():
        path = write_config(Path(), THREE)
        with sweep.claim(sweep_plan.plan(path), Path("out")):
            pass
        with sweep.claim(sweep_plan.plan(path + variant, overrides), Path("out")):
            pass

    return call


def foreign_folder():
    plan = sweep_plan.plan(write_config(Path(), THREE))
    with sweep.claim(plan, Path()):
        pass


def edited_config():
    path = Path(write_config(Path(), THREE))
    plan = sweep_plan.plan(str(path))
    run_sweep(plan, Path("out"), fake_command(dict.fromkeys(["seed=1", "seed=2", "seed=3"], 1)))
    path.write_text(path.read_text().replace('"digits"', '"breast_cancer"'))
    sweep.unfinished(sweep_plan.plan(str(path)), Path("out"))


def sweeping(*arguments):
    def call():
        path = str(Path(write_config(Path(), "")).resolve())
        given = (argument.replace("CONFIG", path) for argument in arguments)
        refusals.launched(sweep_launcher.main, *given)()

    return call


SWEEPS = {
    "...defines no sweep": planned(""),
    "...adds no point": planned("def sweep(add): pass\n"),
    "...seed=1 twice": planned("def sweep(add):\n    add(seed=1)\n    add(seed=1)\n"),
    "sweep point sede=1: config.sede: unknown key": planned(f"{SWEEP}(sede=1)\n"),
    "...config.seed=x: use integers": planned(f"{SWEEP}(seed='x')\n"),
    "...config.seed=None: use integers": planned(f"{SWEEP}(seed=None)\n"),
    "sweep point xclp.num_bits=63: ": planned(f"{SWEEP}(**{{'xclp.num_bits': 63}})\n"),
    "sweep point xclp.presence=('1@nowhere',): config": planned(
        f"{SWEEP}(**{{'xclp.presence': ('1@nowhere',)}})\n"
    ),
    "--sweep.xclp.alpha: write all its values once": grid("xclp.alpha="),
    "--sweep.seed: write all its values once": grid("seed=1", "seed=2"),
    "sweep point xclp.alfa=0.5: config.xclp.alfa: ... 'xclp.alpha'?": grid("xclp.alfa=0.5"),
    "...sweep adds the point seed=1 twice": grid("seed=1,1"),
    "...config.xclp.alpha=high: use numbers": grid("xclp.alpha=0.5,high"),
    "...config.seed=: use integers": grid("seed=1,"),
    "...seed=1: made by another config: config.dataset.name": edited_config,
    "...holds another sweep: overrides is": another_sweep(overrides=["seed=9"]),
    "...holds another sweep: variant is": another_sweep(":smoke"),
    "...another sweep is running here": claimed_twice,
    "...no workdir of launch.sweep": foreign_folder,
    "--config=ml_collections_configs/NAME.py is missing": sweeping("--workdir=x"),
    "--workdir=DIR is missing": sweeping("--config=CONFIG"),
    "...defines no sweep(add)": sweeping("--config=CONFIG", "--workdir=W"),
    "--jobs=0: use integers from 1": sweeping("--config=CONFIG", "--workdir=W", "--jobs=0"),
}

AUDIT = "--config=ml_collections_configs/audit.py:smoke"
CONFIGS = Path("ml_collections_configs").resolve()


def audited(*settings, config=AUDIT):
    settings = (f"--config.{text}" for text in settings)
    return refusals.launched(audit.main, config, "--workdir=W", *settings)


def costing(*arguments):
    return refusals.launched(costs.main, *arguments)


def configured(name, *settings):
    return file.load(str(CONFIGS / name), settings)


def tracked(given):
    return partial(trackers.chosen, given, "trackers")


AUDITS = {
    "config.audit.rounds=(1, 3): use rounds from 1 to": audited("audit.rounds=1,3"),
    "...audit.rounds=...integers from 1 on": audited("audit.rounds=0"),
    "...audit.shadows=3: use 0 for none, or integers from 4": audited("audit.shadows=3"),
    "...audit.population=0: use integers from 1 on": audited("audit.population=0"),
    "config.audit.shadow: unknown key": audited("audit.shadow=3"),
    "config.audit.population=100000:": audited("audit.population=100000"),
    "config.audit.members=0 (all): clients have 3 labeled examples to attack in repeat 1, and an audit "
    "needs 4; use more members of a client or more labeled": audited("federation.num_labeled=3"),
    "config.federation.test='clients': an audit asks about examples": audited(
        config="--config=ml_collections_configs/xclp_digits.py:smoke"
    ),
    "...config=ml_collections_configs/NAME.py is missing": costing(),
    "more: no such argument": costing(f"--config={PROTOTYPES}", "more"),
    "config.fedct.steps=3: no method": costing(f"--config={PROTOTYPES}", "--config.fedct.steps=3"),
    "config.algorithm='xclp': 'xclp'": costing(f"--config={PROTOTYPES}", "--config.algorithm=xclp"),
    "...labeled and unlabeled examples": lambda: next(
        method_costs(configured("protofssl.py", "federation.num_labeled_clients=1", "baselines=()"))
    ),
    "config.protofssl.support=3: at most 2": lambda: next(
        method_costs(configured("protofssl.py", "protofssl.support=3", "baselines=()"))
    ),
    "trackers='tensorbord': no such tracker, did you mean 'tensorboard'?": tracked(["tensorbord"]),
    "...lacks a method: start, log or finish": tracked([object()]),
}

test_lines_of_a_run = refusals.table(LINES | ROWS)
test_simulated = refusals.table(SIMULATED)
test_workdirs = refusals.table(WORKDIRS)
test_sweeps = refusals.table(SWEEPS)
test_audits_costs_and_trackers = refusals.table(AUDITS)
