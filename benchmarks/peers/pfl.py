"""pfl-research (Granqvist et al., NeurIPS 2024): its FederatedAveraging on a simulated backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import nn

from benchmarks.peers.played import Diary
from benchmarks.peers.task import Task
from benchmarks.peers.torch_network import accuracy, images, network


class Network(nn.Module):
    """The network with the two methods that pfl requires."""

    def __init__(self, start: dict[str, np.ndarray]) -> None:
        super().__init__()
        self.layers, self._loss = network(start), nn.CrossEntropyLoss()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [n, C]."""
        return self.layers(x)

    def loss(self, x: torch.Tensor, y: torch.Tensor, is_eval: bool = False) -> torch.Tensor:
        """Return the batch's mean cross-entropy."""
        self.eval() if is_eval else self.train()
        return self._loss(self(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        """Return nothing: the callback evaluates the test set."""
        return {}


class Watch(TrainingProcessCallback):
    """Callback that evaluates the test set in the required rounds."""

    def __init__(self, task: Task, diary: Diary) -> None:
        self._settings, self._diary = task.settings, diary
        self._test = images(task.x_test), torch.from_numpy(task.test_labels)

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Called after every round, counted from 0."""
        if self._settings.is_evaluated(central_iteration + 1):
            self._diary.measured(accuracy(model.pytorch_model, *self._test))
        self._diary.round_ended()
        return False, Metrics()


def play(task: Task, diary: Diary, folder: Path) -> None:
    """Play the experiment."""
    del folder
    settings, rng = task.settings, np.random.default_rng(0)
    x, y = images(task.x), torch.from_numpy(task.labels)

    def user_dataset(user: int) -> Dataset:
        rows = rng.permutation(task.clients[user])
        return Dataset(raw_data=[x[rows], y[rows]], user_id=str(user))

    sampler = get_user_sampler("random", range(len(task.clients)))
    data = FederatedDataset(user_dataset, sampler)
    module = Network(task.start)
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=settings.rounds,
            evaluation_frequency=settings.rounds + 1,
            train_cohort_size=settings.cohort_size,
            val_cohort_size=None,
        ),
        SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(
            local_num_epochs=1,
            local_learning_rate=settings.learning_rate,
            local_batch_size=settings.batch_size,
        ),
        callbacks=[Watch(task, diary)],
    )
