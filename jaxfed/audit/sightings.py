"""What the messages of a round say of the targets and of the population: views, asked and written down."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from jaxfed.audit.targets import Targets
from jaxfed.federation.clients import Federation
from jaxfed.federation.exposure import Kind, View


class Sighting(NamedTuple):
    """One kind of message, in one round.

    Fields:
        message: its name.
        kind: of answers.
        leaves: whether anybody but the client has it.
        client: int32 [S]; -1 where it is made of all clients' examples.
        answers: float32 [S, n + m, C], of targets and population.
        norms: float32 [S, n] of gradients at the targets; [S, 0] where there are none.
    """

    message: str
    kind: Kind
    leaves: bool
    client: np.ndarray
    answers: np.ndarray
    norms: np.ndarray

    def asked_about(self, targets: Targets) -> list[np.ndarray]:
        """For each of the S rows the targets that it may tell of, int64."""
        everybody = np.arange(len(targets.example))
        return [
            everybody if client < 0 else np.flatnonzero(targets.client == client)
            for client in self.client.tolist()
        ]


def sightings(views: Iterable[View], federation: Federation, targets: Targets) -> list[Sighting]:
    """Ask every view."""
    x = federation.x[targets.examples]
    own, label = federation.x[targets.example], federation.y[targets.example]
    return [
        Sighting(
            view.message,
            view.kind,
            view.leaves,
            np.asarray(view.client, np.int32),
            np.asarray(view.answers(x), np.float32),
            np.zeros((len(view.client), 0), np.float32)
            if view.gradient_norms is None
            else np.asarray(view.gradient_norms(own, label), np.float32),
        )
        for view in views
    ]
