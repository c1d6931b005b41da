"""The state that a method is judged by: the best on the validation split, where there is one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jaxfed.federation.algorithm import Metrics, ServerState


class Selected(NamedTuple):
    """A method's current state and, where it validates, the best so far; what checkpoints hold.

    Fields:
        state: after the last finished round.
        best: the state with the best validation accuracy; () for a method that does not validate.
        validation_accuracy: of `best`; -1 before the first.
        round: of `best`.
    """

    state: ServerState
    best: ServerState
    validation_accuracy: float
    round: int

    @property
    def final(self) -> ServerState:
        """The state that counts: the best, or the newest of a method that does not validate."""
        return self.best if self.is_selecting else self.state

    @property
    def is_selecting(self) -> bool:
        """Whether the method validates; its state may be any pytree, a bare array among them."""
        return not (isinstance(self.best, tuple) and not self.best)

    def after(self, round_number: int, state: ServerState, metrics: Metrics) -> Selected:
        """The selection after a round with these validation metrics; without any, the newest is best."""
        accuracy = metrics.get("validation_accuracy", np.inf)
        if accuracy <= self.validation_accuracy < np.inf:
            return self._replace(state=state)
        return Selected(state, state, float(accuracy), round_number)
