"""A small federation over a network within this process: folders, clients' functions, a server's run."""

import json
from functools import partial

from local_network import LocalNetwork

from jaxfed.config import file as config_file
from jaxfed.flower.client import client_run
from jaxfed.flower.deployment import dealing
from jaxfed.flower.server import server_data, server_run

SMALL = (
    *("dataset.train_size=200", "federation.num_clients=3", "rounds=3", "num_repeats=1"),
    *("cohort_size=0", "baselines=()", "execution.plots=false", "evaluate_every=0"),
)


def config_of(name, *more):
    return config_file.load(
        "examples/flower/fedavg_digits.py", (*SMALL, f"algorithm={name}", *more)
    )


class Deployment:
    """Folders of a config's clients and server, and a network of functions that answer from them."""

    def __init__(self, folder, config, faults=None):
        self.config, self.place = config, folder / "run"
        dealt = dealing.deal(config, folder / "nodes", folder / "server")
        self.held = server_data.read(folder / "server")
        self.folders = dealt.clients
        self.network = LocalNetwork(
            {
                10 + j: partial(client_run.perform, folder=each)
                for j, each in enumerate(dealt.clients)
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
