"""Model selection: the state with the best validation accuracy, or the last one without validation."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from jaxfed.federation.algorithm import Metrics, ServerState


class Selected(NamedTuple):
    """A method's current state and, if it validates, the best so far. Checkpoints store this tuple.

    Fields:
        state: after the last finished round.
        best: the state with the best validation accuracy; () for a method that does not validate.
        validation_accuracy: of `best`; -1 before the first.
        round: of `best`.
        stored: models of earlier rounds that asynchronous rounds need (`Played.stored`); ().
    """

    state: ServerState
    best: ServerState
    validation_accuracy: float
    round: int
    stored: Any = ()

    @property
    def final(self) -> ServerState:
        """The best state, or the newest one if the method does not validate."""
        return self.best if self.is_selecting else self.state

    @property
    def is_selecting(self) -> bool:
        """True if the method validates; its state may be any pytree, including a bare array."""
        return not (isinstance(self.best, tuple) and not self.best)

    def after(self, round_number: int, state: ServerState, metrics: Metrics) -> Selected:
        """Return the selection after a round; without a validation accuracy the newest state is the best."""
        accuracy = metrics.get("validation_accuracy", np.inf)
        if accuracy <= self.validation_accuracy < np.inf:
            return self._replace(state=state)
        return Selected(state, state, float(accuracy), round_number, self.stored)
