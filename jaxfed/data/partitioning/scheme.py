"""Base of partition schemes, and the registry of their names in configs.

A new scheme is one class, here in full:

    from dataclasses import dataclass
    import numpy as np
    from jaxfed.data import SCHEMES, Scheme, partition
    from jaxfed.settings import Positive

    @SCHEMES.register("two_camps")
    @dataclass(frozen=True, kw_only=True)
    class TwoCamps(Scheme):
        '''Even clients prefer the first half of the classes, odd clients the second.

        Attributes:
            preference: weight of a preferred class; the others have weight 1.
        '''

        preference: Positive = 4.0

        def weights(self, occurs, num_clients, rng):
            camp = np.arange(len(occurs)) * 2 // len(occurs)
            is_preferred = np.arange(num_clients)[:, None] % 2 == camp
            return np.where(is_preferred, self.preference, 1.0)

    partition(y, num_clients=10, scheme=TwoCamps(preference=9.0))

A config file that contains or imports this code may set `config.federation.partition = "two_camps"`, and the
fields in a section of that name, `config.two_camps = ConfigDict({"preference": 9.0})`. The fields can be set
on the command line, too: `--config.two_camps.preference=9`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from jaxfed.errors import UsageError
from jaxfed.registry import Place, Registry
from jaxfed.settings import CountOrZero, Positive, check, when

_FILE = "jaxfed.data.partitioning.schemes"
Quantity = Literal["default", "equal", "dirichlet"]


class Scheme:
    """Class proportions of the clients: a scheme that gives weights.

    A subclass is a frozen dataclass. The partition scales its weights to the sizes of clients and classes.

    Attributes:
        is_uniform: True if all clients have the same proportions; examples are then shuffled and cut.
        has_random_sizes: True if the weights determine the clients' sizes too, unless `Sizes` are given.
        is_independent: True if `skew="both"` means two draws, one for the labeled examples and one for the
            others, as `skew="independent"` does with every scheme.
    """

    is_uniform: ClassVar[bool] = False
    has_random_sizes: ClassVar[bool] = False
    is_independent: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check the fields by their hints.

        Raises:
            UsageError: a value that its hint does not allow.
        """
        check(self)

    def weights(self, occurs: np.ndarray, num_clients: int, rng: np.random.Generator) -> np.ndarray:
        """Return weights of the classes at the clients; only proportions within a class matter.

        Args:
            occurs: bool [C], True for classes with examples.
            num_clients: M.
            rng: source of all random choices.

        Returns:
            float [M, C], from 0 on.
        """
        raise NotImplementedError(f"{type(self).__name__}.weights")

    def adjusted(
        self,
        weights: np.ndarray,
        totals: np.ndarray,
        sizes: np.ndarray | None,
        rng: np.random.Generator,
    ) -> np.ndarray:
        """Return the weights [M, C], adjusted to the numbers of examples; the same unless overridden.

        Args:
            weights: float [M, C], from `weights`.
            totals: int [C], examples of each class.
            sizes: float [M], target sizes of the clients; None leaves them to the weights.
            rng: source of all random choices.
        """
        return weights


class Owners(NamedTuple):
    """The client of each example of y, int64 [n], and of new_y, int64 [n_new], and the number of clients."""

    owner: np.ndarray
    new_owner: np.ndarray
    num_clients: int


class OwnerScheme(Scheme):
    """A scheme that fixes the client of each example, by a column of the data; sizes follow from it.

    Attributes:
        column: name of the column in `jaxfed.data.Dataset`, and of the field that holds it here. The field
            `new_COLUMN` holds that of `new_y`.
    """

    column: ClassVar[str]

    def owners(
        self,
        y: np.ndarray,
        new_y: npt.ArrayLike | None,
        num_clients: int | None,
        rng: np.random.Generator,
    ) -> Owners:
        """Return the client of each example.

        Raises:
            UsageError: the column is missing or does not fit.
        """
        raise NotImplementedError(f"{type(self).__name__}.owners")

    def _error(self, wrong: str) -> UsageError:
        """An error about the column."""
        allowed = f"use one entry an example, also in new_{self.column} for new_y"
        return UsageError(wrong, owner=type(self).__name__, key=self.column, allowed=allowed)


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


SCHEMES: Registry[type[Scheme]] = Registry(
    "scheme",
    {
        "iid": Place(_FILE, "Iid"),
        "dirichlet": Place(_FILE, "Dirichlet"),
        "dirichlet_mixture": Place(_FILE, "DirichletMixture"),
        "dirichlet_pairs": Place(_FILE, "DirichletPairs"),
        "classes_per_client": Place(_FILE, "Classes"),
        "subclasses": Place(_FILE, "Subclasses"),
        "table": Place(_FILE, "Table"),
        "natural": Place(_FILE, "Natural"),
    },
)
"""Name in configs (`federation.partition`) -> scheme."""
