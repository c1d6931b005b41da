"""fluke (Polato, 2024): its FedAVG, with its own evaluator of the test set at the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter
from fluke.data.datasets import DataContainer
from fluke.evaluation import ClassificationEval
from fluke.utils import FederationObserver, ServerObserver

from benchmarks.peers.played import Diary
from benchmarks.peers.task import Task
from benchmarks.peers.torch_network import images, network


class Watch(FederationObserver, ServerObserver):
    """Observer that records rounds and accuracies."""

    def __init__(self, diary: Diary) -> None:
        self._diary = diary

    def server_evaluation(self, round: int, eval_type: str, evals: Any, **kwargs: Any) -> None:
        """Called after an evaluation at the server; `evals` is empty if none was due."""
        if evals:
            self._diary.measured(evals["accuracy"])

    def end_round(self, round: int) -> None:
        """Called after every round."""
        self._diary.round_ended()


def play(task: Task, diary: Diary, folder: Path) -> None:
    """Play the experiment."""
    del folder
    settings, num_clients = task.settings, len(task.clients)
    environment = FlukeENV()
    environment.set_seed(0)
    environment.set_device("cpu")
    environment.set_evaluator(ClassificationEval(settings.evaluate_every, settings.num_classes))
    rows = task.clients.reshape(-1)
    container = DataContainer(
        images(task.x[rows]),
        torch.from_numpy(task.labels[rows]),
        images(task.x_test),
        torch.from_numpy(task.test_labels),
        settings.num_classes,
    )
    client = {
        "batch_size": settings.batch_size,
        "local_epochs": 1,
        "loss": "CrossEntropyLoss",
        "optimizer": {"name": "SGD", "lr": settings.learning_rate},
        "scheduler": {"name": "StepLR", "step_size": 1, "gamma": 1.0},
    }
    algorithm = FedAVG(
        num_clients,
        DataSplitter(container, "iid"),
        DDict(client=client, server={"weighted": True}, model=network(task.start)),
    )
    algorithm.set_callbacks(Watch(diary))
    algorithm.run(settings.rounds, settings.cohort_size / num_clients)
