"""The server's part of a round: the part of `Training` that aggregation and a server's own labels need.

ServerTraining(aggregate=server_optimizer(optax.sgd(1.0, momentum=0.9)), weighting=uniformly)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from jaxfed.data.given_examples import pair_of
from jaxfed.errors import UsageError
from jaxfed.settings import Described, check
from jaxfed.training.local.batches import Batches
from jaxfed.training.server.aggregate import Aggregate, Weighting, by_examples

SERVER_LEARNING_RATE = 1.0  # the new model is the mean of the clients' models
_BATCHES_OF_CLIENTS: Any = None  # computed by `Training`


@dataclass(frozen=True)
class ServerTraining:
    """The server's step from the clients' updates, and its training on labels of its own.

    Attributes:
        aggregate: the server's step; None: FedAvg's (`jaxfed.training.round.round.server_optimizer` of SGD
            with rate 1).
        weighting: a client's weight in the server's mean, a number from 0 on; one of one's own is checked
            after each round. None: that of the method's paper (`jaxfed.federation.method`), by examples for a
            method that declares none.
        examples: x [n_s, ...] and labels int [n_s] that the server holds (`Federation.server_examples`);
            None: labels are at clients.
        batches: of the server's own training; by default `LocalTraining.labeled_batches`.
    """

    aggregate: (
        Annotated[Aggregate, Described("an Aggregate, such as server_optimizer(optax.sgd(1.0))")]
        | None
    ) = None
    weighting: (
        Annotated[Weighting, Described("a function of a client's data, such as by_examples")] | None
    ) = None
    examples: tuple[np.ndarray, np.ndarray] | None = None
    batches: Batches = _BATCHES_OF_CLIENTS

    def __post_init__(self) -> None:
        """Check the types, and the server's examples by `jaxfed.data.given_examples`.

        Raises:
            UsageError: the first field of another type; examples that `pair_of` refuses.
        """
        if self.examples is not None:
            pair = pair_of(self.examples, "ServerTraining.examples", is_labeled=True)
            object.__setattr__(self, "examples", pair)
        check(self)

    @property
    def weigh(self) -> Weighting:
        """The weighting in use."""
        return self.weighting or by_examples

    def require_labels(self) -> None:
        """Check that the server has labels.

        Raises:
            UsageError: it has none.
        """
        if self.examples is None:
            raise UsageError(
                "this method needs labels at the server",
                key="examples",
                owner="ServerTraining",
                value=None,
                allowed="give the server's examples",
            )
