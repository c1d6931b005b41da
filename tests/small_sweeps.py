"""Sweeps over small configs, and a stand-in for what runs their points: what tests of sweeps share."""

import json
import sys
from pathlib import Path

from invoking import called

from jaxfed.experiment import sweep
from jaxfed.experiment.store.records import read_sweep
from jaxfed.host.interruption import Interruption
from launch import sweep as launcher

ROOT = Path(__file__).parents[1]

CONFIG = """
from jaxfed.config import base

def get_config(variant=""):
    config = base.get_config()
    config.dataset.name = "digits"
    return base.apply_variants(config, variant)

"""

# Stands in for launch.run: the same files, at once. Arguments: workdir, settings, accuracy.
FAKE_RUN = """
import json, pathlib, sys
path, settings, accuracy = pathlib.Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
if accuracy < 0:
    print("first line", flush=True)
    sys.exit("it broke")
path.mkdir(parents=True, exist_ok=True)
(path / "config.json").write_text(settings)
metric = {"mean": accuracy, "std": 0.1, "values": [accuracy - 0.1, accuracy + 0.1]}
metrics = {"test_accuracy": metric, "communication": {"upload_bytes": metric}}
summary = {"algorithm": "xclp", "num_repeats": 2, "algorithms": {"xclp": metrics}}
(path / "summary.json").write_text(json.dumps(summary))
"""


def write_config(folder, body, name="config.py"):
    """A config file of digits with this sweep; its path."""
    (folder / name).write_text(CONFIG + body)
    return str(folder / name)


class Heard:
    """Progress that remembers."""

    is_interactive = False

    def __init__(self):
        self.starts, self.ends = [], {}

    def say(self, line):
        if line.endswith(": started"):
            self.starts.append(line.removesuffix(": started"))
        else:
            title, _, outcome = line.partition("] ")[2].partition(": ")
            self.ends[title] = outcome.partition("failed, ")[2]

    def advance(self):
        pass

    def describe(self, doing):
        pass


def fake_command(accuracies):
    def command(point, directory):
        settings = json.dumps(point.settings)
        accuracy = str(accuracies[point.name])
        return [sys.executable, "-S", "-c", FAKE_RUN, str(directory), settings, accuracy]

    return command


def run(plan, directory, command, jobs=1):
    heard = Heard()
    with sweep.claim(plan, directory), Interruption() as interruption:
        points = sweep.unfinished(plan, directory)
        failed = sweep.run(
            points, directory, command, jobs=jobs, progress=heard, interruption=interruption
        )
    return failed, heard


def results_of(directory):
    """Point and method -> its metrics, of the points that have finished."""
    points = read_sweep(directory).points
    return {(p.name, name): found for p in points if p.run for name, found in p.run.results.items()}


def launch(*arguments):
    return called(launcher.main, *arguments)
