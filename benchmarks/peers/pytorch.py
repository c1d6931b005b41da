"""A bare PyTorch loop: one client after another, a batch at a time, and the mean of their weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.peers.played import Diary
from benchmarks.peers.task import Task
from benchmarks.peers.torch_network import accuracy, images, network


def play(task: Task, diary: Diary, folder: Path) -> None:
    """Play the experiment."""
    del folder
    settings, rng = task.settings, np.random.default_rng(0)
    x, y = images(task.x), torch.from_numpy(task.labels)
    x_test, y_test = images(task.x_test), torch.from_numpy(task.test_labels)
    model, loss = network(task.start), nn.CrossEntropyLoss()
    server = {name: value.clone() for name, value in model.state_dict().items()}
    for number in range(1, settings.rounds + 1):
        total = {name: torch.zeros_like(value) for name, value in server.items()}
        for client in rng.choice(len(task.clients), settings.cohort_size, replace=False):
            model.load_state_dict(server)
            model.train()
            optimizer = torch.optim.SGD(model.parameters(), lr=settings.learning_rate)
            order = torch.from_numpy(rng.permutation(task.clients[client]))
            for rows in order.split(settings.batch_size):
                optimizer.zero_grad()
                loss(model(x[rows]), y[rows]).backward()
                optimizer.step()
            for name, value in model.state_dict().items():
                total[name] += value
        server = {name: value / settings.cohort_size for name, value in total.items()}
        if settings.is_evaluated(number):
            model.load_state_dict(server)
            diary.measured(accuracy(model, x_test, y_test))
        diary.round_ended()
