"""Number of examples of each client (quantity skew)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from jaxfed.data.partitioning.scheme import Scheme
from jaxfed.settings import CountOrZero, Positive, check, when

Quantity = Literal["default", "equal", "dirichlet"]


@dataclass(frozen=True)
class Sizes:
    """Sizes of the clients, on top of any scheme by class.

    Client m holds the share q_m of the examples, with `parameter` a:

    - "equal": q_m = 1 / M.
    - "dirichlet": q ~ Dir(a 1_M).
    - "default": left to the scheme if it has random sizes ("dirichlet", "dirichlet_mixture"), else equal.

    If the classes' sizes do not allow scheme and shares together, the classes' sizes win and the shares are
    met as nearly as possible.

    Clients with fewer than `min_size` examples are filled up from the largest. These are cut to a common
    level and give of each class in proportion to their examples. So a client may receive a class that the
    scheme did not give it.

    Attributes:
        quantity: distribution of the clients' sizes; "default": random with a Dirichlet scheme, else equal.
        parameter: concentration a of the Dirichlet distribution.
        min_size: smallest number of examples of a client, without new points.
    """

    quantity: Quantity = "default"
    parameter: Annotated[Positive, when("quantity", "dirichlet")] = 1.0
    min_size: CountOrZero = 0

    def __post_init__(self) -> None:
        """Check the fields."""
        check(self)

    def targets(
        self, scheme: Scheme, num_clients: int, num_examples: int, rng: np.random.Generator
    ) -> np.ndarray | None:
        """float [M], target number of examples of each client; None leaves it to the scheme's weights."""
        if self.quantity == "default" and scheme.has_random_sizes:
            return None
        shares = np.ones(num_clients)
        if self.quantity == "dirichlet":
            shares = rng.dirichlet(np.full(num_clients, self.parameter))
        return num_examples * shares / shares.sum()
