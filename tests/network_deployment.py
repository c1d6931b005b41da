"""A deployment in one process: folders of a config's clients and server, and a network of functions."""

import atexit
import json
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from local_network import LocalNetwork

from jaxfed.config import file as config_file
from jaxfed.experiment.store.workdir import Workdir
from jaxfed.federation.algorithm import ClientSide, FederatedAlgorithm, OnNetwork, Unusable
from jaxfed.federation.method import with_attributes
from jaxfed.flower.client import client_run
from jaxfed.flower.deployment import trial
from jaxfed.flower.messages import records
from jaxfed.flower.messages.steps import Failure, failed
from jaxfed.flower.server import server_data, server_run

SMALL = (
    *("dataset.train_size=200", "federation.num_clients=3", "rounds=3", "num_repeats=1"),
    *("cohort_size=0", "baselines=()", "execution.plots=false", "evaluate_every=0"),
)
VIEWS = ("training.strong_augmentation=('cutout:4',)",)  # what a loss of two views asks for
CONSISTENT = (
    *("sage", "fedlabel", "feddb", "proxyfl", "cbafed", "rscfed", "fedloke", "fedirm"),
    *("feddure", "twinsight"),
)
SECURE = (
    *("xclp.hamming=masked", "xclp.influence=columns", "xclp.row_sums=masked_resilient"),
    *("xclp.num_bits=256", "training.labeled_only_rounds=0"),
)
# Another method is one more line here: name -> (algorithm, settings).
METHODS = {
    "fedavg": ("fedavg", ("rounds=1",)),  # its rounds are alike, and all bytes of each are searched
    **{name: (name, ()) for name in ("scaffold", "feddyn", "fedprox", "fedavg_network")},
    **{name: (name, ()) for name in ("fedavg_per_client_lp", "mixmatch", "protofssl")},
    **{name: (name, VIEWS) for name in ("fixmatch", "fedsiam", *CONSISTENT)},
    "fedct": (
        "fedct",
        (
            *("dataset.train_size=180", "federation.public_size=60"),  # clients of some 40 examples
            *("learner.name=decision_tree", "fedct.sums=masked_resilient"),
        ),
    ),
    **{name: (name, SECURE) for name in ("xclp", "fedavg_xclp")},
}
FIRST_NODE = 10  # client j has node 10 + j
STEPS = ("update", "measure", "show")


def config_of(name, *more):
    return config_file.load(
        "examples/flower/fedavg_digits.py", (*SMALL, f"algorithm={name}", *more)
    )


def answered(request, perform):
    """A client app's whole work: it never raises."""
    try:
        return perform(request)
    except Exception as error:
        return failed(None, Failure(type(error).__name__))


_DEALT = {}  # folders by all of a config that they depend on


def deal(config, folder):
    """Deal a config's data, or copy what was dealt before; returns the clients' folders."""
    key = str([config.dataset, config.federation, config.preprocessing, config.seed])
    if key not in _DEALT:
        place = Path(tempfile.mkdtemp(prefix="dealt-"))
        atexit.register(shutil.rmtree, place, ignore_errors=True)
        trial.deal(config, place / "nodes", place / "server")
        _DEALT[key] = place
    shutil.copytree(_DEALT[key], folder, dirs_exist_ok=True)
    return sorted((folder / "nodes").iterdir())


class Deployment:
    """Folders of a config's clients and server, and a network of functions that answer from them."""

    def __init__(self, folder, config, faults=None):
        self.config, self.place = config, folder / "run"
        self.folders = deal(config, folder)
        self.held = server_data.read(folder / "server")
        self.network = LocalNetwork(
            {
                FIRST_NODE + j: partial(
                    answered, perform=partial(client_run.perform, folder=each, kept={})
                )
                for j, each in enumerate(self.folders)
            },
            faults,
        )

    def serve(self):
        clock = self.network.clock
        return server_run.serve(
            self.network, self.config, self.place, self.held, clock=clock, sleep=clock.sleep
        )

    def lines(self):
        return [json.loads(line) for line in (self.place / "stages.jsonl").read_text().splitlines()]

    def reasons(self):
        """{(step, round): {client: why it is lost}}."""
        return {
            (line["stage"].removesuffix(" ended"), line["round"]): {
                int(client): reason for client, reason in line["why"].items()
            }
            for line in self.lines()
            if line.get("why")
        }


def state_of(folder):
    """The entries of the state that a client has stored last."""
    [last] = folder.glob("state/*/last")
    number = records.from_bytes(last.read_bytes())["last.number"]
    return records.from_bytes((last.parent / f"{number}.state").read_bytes())


def last_state(place, name):
    """Arrays of the last state, and metrics of all rounds without times and counts of the network."""
    (file,) = Workdir(place).final_state(name, 0, last=False).glob("*.npz")
    with np.load(file) as arrays:
        state = {key: arrays[key].tobytes() for key in arrays.files if key.startswith("state/")}
    metrics = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    for line in metrics:
        line.pop("seconds")
        line.pop("network", None)
    return state, metrics


class Tally(NamedTuple):
    w: Any
    round: Any


def reply_form():
    return {"total": np.zeros(2, np.float32), "count": np.int32(0)}


def tally(config, name, federation, *_, **__):
    """A method of three steps that sums: each client adds what it gets to a total that it keeps."""

    def check(client, reply):
        if reply["count"] < 0:
            raise Unusable("count is below 0")

    def server(ask, seen):
        def played(state, cohort, key):
            w, number = np.asarray(state.w), int(state.round) + 1
            there = [int(client) for client in cohort.client_id if client >= 0]
            for step in STEPS:
                requests = {client: {"w": w} for client in there}
                replies = ask(step, requests, reply_form(), round_number=number, check=check)
                there = list(replies)
                w = w + sum(replies[client]["total"] for client in there) / np.float32(7)
            count = sum(int(replies[client]["count"]) for client in there)
            return Tally(jnp.asarray(w), jnp.int32(number)), {"count": count}

        return init, played

    def init(key, seen):
        return Tally(jnp.zeros(2, jnp.float32), jnp.int32(0))

    def init_own(key, seen):
        return {"total": jnp.zeros((1, 2), jnp.float32)}

    def answer(step, own, request, cohort):
        added = request["w"] + np.float32(1 + int(cohort.client_id[0])) / np.float32(3)
        total = np.asarray(own["total"]) + added * np.float32(1 + STEPS.index(step))
        count = np.int32(np.asarray(cohort.mask).sum())
        return {"total": total}, {"total": total[0], "count": count}

    def form(step, seen):
        return {"w": np.zeros(2, np.float32)}

    return FederatedAlgorithm(
        init,
        with_attributes(
            lambda state, cohort, key: (state, {}),
            on_network=lambda: OnNetwork(server, ClientSide(init_own, answer, form)),
        ),
        lambda state, seen: {"test_accuracy": 0.0},
    )
