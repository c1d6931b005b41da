"""Model selection: the state that is best on validation examples, or the last one without validation."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics, ServerState
from jaxfed.federation.clients import Federation


class Selected(NamedTuple):
    """A method's current state and, if it validates, the best so far. Checkpoints store this tuple.

    Fields:
        state: after the last finished round.
        best: of the state that is best by `dataset.validation_measure`, what evaluation reads
            (`Outputs.evaluated`); () for a method that does not validate.
        validation_accuracy: the measure of `best`; -1 before the first.
        round: of `best`.
    """

    state: ServerState
    best: ServerState
    validation_accuracy: float
    round: int

    @property
    def final(self) -> ServerState:
        """The best state, or the newest one if the method does not validate."""
        return self.best if self.is_selecting else self.state

    @property
    def is_selecting(self) -> bool:
        """True if the method validates; its state may be any pytree, including a bare array."""
        return not (isinstance(self.best, tuple) and not self.best)

    @classmethod
    def first(cls, algorithm: FederatedAlgorithm, state: ServerState) -> Selected:
        """Return the selection before the first round."""
        return cls(state, algorithm.outputs.evaluated(state) if algorithm.validate else (), -1.0, 0)

    def after(
        self,
        round_number: int,
        state: ServerState,
        metrics: Metrics,
        evaluated: Callable[[ServerState], ServerState] = lambda state: state,
        measure: str = "accuracy",
    ) -> Selected:
        """Return the selection after a round; without validation examples the newest state is the best.

        `evaluated` is that of the method, `measure` that of `dataset.validation_measure`.
        """
        accuracy = metrics.get(f"validation_{measure}", np.inf)
        if accuracy <= self.validation_accuracy < np.inf:
            return self._replace(state=state)
        best = evaluated(state)
        return Selected(state, best, float(accuracy), round_number)


def validated(
    algorithm: FederatedAlgorithm, state: ServerState, federation: Federation, measure: str
) -> Metrics:
    """Return a method's metrics on the validation examples, among them the measure that selects states.

    "auroc" is the area under the ROC curve: for two classes that of the second class, for more the mean over
    one-versus-rest areas.

    Raises:
        UsageError: the measure needs probabilities of a method that has none.
    """
    metrics = algorithm.validate(state, federation) if algorithm.validate else {}
    if not metrics or f"validation_{measure}" in metrics:
        return metrics
    if measure != "auroc" or algorithm.predict is None:
        raise UsageError(
            f"{algorithm.name or 'the method'} does not measure it",
            key="config.dataset.validation_measure",
            value=measure,
            allowed="use 'accuracy'",
        )
    # Here, because scikit-learn's measures take a second to import; few runs need them.
    from sklearn.metrics import roc_auc_score

    split = federation.validation[federation.y[federation.validation] >= 0]
    truth, shares = federation.y[split], algorithm.predict(state, federation.examples(split))
    classes = np.unique(truth) if federation.num_classes > 2 else [1]
    areas = [roc_auc_score(truth == c, np.nan_to_num(shares[:, c])) for c in classes]
    return {**metrics, "validation_auroc": float(np.mean(areas))}
