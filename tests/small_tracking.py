"""A quick experiment of 2 x 6 rounds, and a tracker that records what it is told."""

import json
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import jax
import numpy as np

import jaxfed
from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import base
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.method import method

ROUNDS = list(range(1, 7))


class Stop(Exception):
    pass


class Recorder:
    """Tracker that keeps run -> what was logged; `fail` names a method that raises."""

    def __init__(self, fail=""):
        self.fail = fail
        self.starts, self.logged, self.summaries = [], {}, {}

    def start(self, run):
        self._fail("start")
        self.starts.append(run)
        self.lines = self.logged.setdefault(run.name, [])

    def log(self, round_number, metrics):
        self._fail("log")
        self.lines.append((round_number, metrics.copy()))
        metrics.clear()  # a tracker may do what it likes with what it is given

    def finish(self, summary):
        self._fail("finish")
        self.summaries[self.starts[-1].name] = summary

    def _fail(self, method):
        if self.fail == method:
            raise ConnectionError(f"no network,\nin {method}")

    @property
    def rounds(self):
        return {name: [number for number, _ in lines] for name, lines in self.logged.items()}


class SmallExperiment:
    """`jaxfed.run` of a random walk over 2 repeats; `stop_at=N` raises in round N of the first one."""

    def __init__(self, folder, monkeypatch):
        rng = np.random.default_rng(0)
        np.savez(folder / "set.npz", x=rng.random((40, 3), np.float32), y=np.arange(40) % 2)
        self.folder, self._stops = folder, set()
        drift = method(takes=("num_classes",))(self._drift)
        monkeypatch.setitem(ALGORITHMS, "drift", drift)
        monkeypatch.setenv("JAXFED_CACHE", str(folder / "cache"))
        self.settings = {
            "dataset.name": str(folder / "set.npz"),
            "algorithm": "drift",
            "baselines": (),
            "rounds": 6,
            "num_repeats": 2,
            "cohort_size": 3,
            "federation.num_clients": 4,
            "federation.labeled_fraction": 0.5,
            "checkpoint_every": 4,
            "execution.compilation_cache": "off",
            "execution.plots": False,
        }

    def _drift(self, *, num_classes):
        def init(key, federation):
            return {"w": jax.random.normal(key, (3,)), "rounds": 0}

        def round(state, cohort, key):
            number = state["rounds"] + 1
            if number in self._stops:
                self._stops.remove(number)
                raise Stop
            w = state["w"] + jax.random.normal(key, (3,))
            sent = {"upload_bytes": 12, "download_bytes": 6}
            told = {"mean": float(w.mean()), "nothing": float("nan"), "each": [1.0, 2.0]}
            return {"w": w, "rounds": number}, {**told, "communication": sent}

        def evaluate(state, federation):
            return {"test_accuracy": float(jax.nn.sigmoid(state["w"][0]))}

        return FederatedAlgorithm(init, round, evaluate)

    def run(self, name, *trackers, stop_at=None, **how):
        """Run in the folder's `name`; the workdir."""
        if stop_at is not None:
            self._stops.add(stop_at)
        settings = {key.replace(".", "__"): value for key, value in self.settings.items()}
        how = {"progress": False, **how}
        jaxfed.run(base.__file__, workdir=self.folder / name, trackers=trackers, **how, **settings)
        return self.folder / name

    def flags(self, name):
        """The same as arguments of launch.run."""
        settings = {**self.settings, "baselines": ""}
        overrides = [f"--config.{key}={value}" for key, value in settings.items()]
        return [f"--config={base.__file__}", f"--workdir={self.folder / name}", *overrides]


def lines(workdir):
    """metrics.jsonl without times."""
    text = (workdir / "metrics.jsonl").read_text()
    return [{**json.loads(line), "seconds": 0} for line in text.splitlines()]


def stand_in(monkeypatch, name, **attributes):
    """Put a module of this name in place of a library, installed or not."""
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None, origin="here")
    vars(module).update(attributes)
    monkeypatch.setitem(sys.modules, name, module)
    return module
