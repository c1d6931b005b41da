"""Output files of a method at the end of a repeat: its states and its predictions.

    states/METHOD-REPEAT/            the selected state; the last one for a method that does not select
    states/METHOD-REPEAT-last/       the last state
    predictions/METHOD-REPEAT.csv.gz

All are complete before the checkpoint of that round begins. A process that is killed in between plays the
last rounds again and writes the same files once more.
"""

from __future__ import annotations

import shutil

import numpy as np
from ml_collections import ConfigDict

from jaxfed.experiment.run.best_checkpoint import Selected
from jaxfed.experiment.run.prediction_table import write_predictions
from jaxfed.experiment.store.workdir import Workdir
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.clients import Federation
from jaxfed.host.checkpoint import Checkpoints


def leave_states(
    workdir: Workdir, name: str, repeat: int, config: ConfigDict, selected: Selected
) -> None:
    """Save the states for later experiments (`training.initial_model`).

    Args:
        workdir: of the experiment.
        name: the method's.
        repeat: from 0 on.
        config: the method's own.
        selected: after its last round.

    Raises:
        OSError: the disk is full, for example.
    """
    last = config.rounds, selected.state
    kept = {False: (selected.round, selected.best), True: last}
    if not selected.is_selecting:
        kept = {False: last}
    for is_last, (round_number, state) in kept.items():
        folder = workdir.final_state(name, repeat, last=is_last)
        if folder.exists():  # left by a process that was killed before it saved this round
            shutil.rmtree(folder)
        record = {"round": round_number, "network": config.model.name}
        Checkpoints(folder).save(round_number, state, record)


def leave_predictions(
    workdir: Workdir,
    name: str,
    repeat: int,
    algorithm: FederatedAlgorithm,
    federation: Federation,
    numbers: np.ndarray,
    selected: Selected,
) -> None:
    """Save the predictions of the final state; nothing for a method without predictions.

    Args:
        workdir: of the experiment.
        name: the method's.
        repeat: from 0 on.
        algorithm: the method.
        federation: its clients.
        numbers: int [N], indices of the federation's examples in the data set.
        selected: after its last round.

    Raises:
        OSError: the disk is full, for example.
    """
    if algorithm.predictions is not None:
        write_predictions(
            workdir.predictions(name, repeat),
            algorithm.predictions(selected.final, federation),
            federation.y,
            numbers,
        )
