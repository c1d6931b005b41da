"""Flower (Beutel et al., 2020): a ServerApp and a ClientApp in its simulation over Ray, a core a client."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.peers.played import Diary
from benchmarks.peers.task import Task, load
from benchmarks.peers.torch_network import accuracy, images, network


@cache
def _loaded(folder: Path) -> tuple[Task, torch.Tensor, torch.Tensor]:
    """Load the task once in each of Ray's processes."""
    task = load(folder)
    return task, images(task.x), torch.from_numpy(task.labels)


def play(task: Task, diary: Diary, folder: Path) -> None:
    """Play the experiment."""
    settings, num_clients = task.settings, len(task.clients)
    client_app, server_app = ClientApp(), ServerApp()

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        task, x, y = _loaded(folder)
        rows = task.clients[int(context.node_config["partition-id"])]
        model, loss = network(task.start), nn.CrossEntropyLoss()
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=task.settings.learning_rate)
        for batch_x, batch_y in DataLoader(
            TensorDataset(x[rows], y[rows]), task.settings.batch_size, shuffle=True
        ):
            optimizer.zero_grad()
            loss(model(batch_x), batch_y).backward()
            optimizer.step()
        content = RecordDict(
            {
                "arrays": ArrayRecord(model.state_dict()),
                "metrics": MetricRecord({"num-examples": len(rows)}),
            }
        )
        return Message(content=content, reply_to=message)

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        del context
        model = network(task.start)
        test = images(task.x_test), torch.from_numpy(task.test_labels)

        def evaluate(server_round: int, arrays: ArrayRecord) -> Any:
            if server_round and settings.is_evaluated(server_round):
                model.load_state_dict(arrays.to_torch_state_dict())
                diary.measured(accuracy(model, *test))
            diary.round_ended()
            return MetricRecord()

        FedAvg(fraction_train=settings.cohort_size / num_clients, fraction_evaluate=0.0).start(
            grid, ArrayRecord(model.state_dict()), settings.rounds, evaluate_fn=evaluate
        )

    resources: dict[str, Any] = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, num_clients, backend_config=resources)
