"""FedLab (Zeng et al., JMLR 2023): its standalone pipeline of a handler and a serial trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler
from fedlab.contrib.dataset.basic_dataset import FedDataset
from fedlab.core.standalone import StandalonePipeline
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.peers.played import Diary
from benchmarks.peers.task import Task
from benchmarks.peers.torch_network import accuracy, images, network


class Clients(FedDataset):
    """Data loaders of every client's images."""

    def __init__(self, task: Task) -> None:
        x, y = images(task.x), torch.from_numpy(task.labels)
        self._sets = [TensorDataset(x[rows], y[rows]) for rows in task.clients]

    def get_dataloader(self, id: int, batch_size: int, type: str = "train") -> Any:
        """Return one client's loader; it shuffles in every epoch."""
        del type
        return DataLoader(self._sets[id], batch_size, shuffle=True)


class Pipeline(StandalonePipeline):
    """The pipeline, with evaluation on the test set in the required rounds."""

    def __init__(self, handler: Any, trainer: Any, task: Task, diary: Diary) -> None:
        super().__init__(handler, trainer)
        self._settings, self._diary = task.settings, diary
        self._test = images(task.x_test), torch.from_numpy(task.test_labels)

    def evaluate(self) -> None:
        """Called after every round."""
        if self._settings.is_evaluated(self.handler.round):
            self._diary.measured(accuracy(self.handler.model, *self._test))
        self._diary.round_ended()


def play(task: Task, diary: Diary, folder: Path) -> None:
    """Play the experiment."""
    del folder
    settings, num_clients = task.settings, len(task.clients)
    share = settings.cohort_size / num_clients
    handler = FedAvgServerHandler(network(task.start), settings.rounds, share)
    trainer = FedAvgSerialClientTrainer(network(task.start), num_clients)
    trainer.setup_dataset(Clients(task))
    trainer.setup_optim(1, settings.batch_size, settings.learning_rate)
    Pipeline(handler, trainer, task, diary).main()
