"""Settings of simulated time: the section `clock` of a config, and asynchronous rounds."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, NamedTuple

from jaxfed.errors import UsageError
from jaxfed.settings import Allowed, Ge, Gt, Le, Note, NotNegative, check, when

BUILT_IN = ("always", "diurnal")  # availability without a table
STALENESS_EXPONENT = 0.5  # FedBuff's 1 / sqrt(1 + staleness)
_TIMED = when("seconds_per_example", Gt(0))


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Speeds and availability of clients, over-selection and deadline; off if `seconds_per_example` is 0.

    Attributes:
        seconds_per_example: simulated seconds of the median client for an example; 0: no simulated time.
        seconds_per_round: simulated seconds of the median client for the communication of a round.
        speed_spread: sigma of the lognormal distribution of both over clients; 0: equal speeds.
        availability: 'always', 'diurnal' (a window of each day), or a CSV file of client,from,to in seconds.
        online_share: share of the day in which a client is available.
        over_selection: clients drawn for a synchronous round, as a multiple of cohort_size; the first
            cohort_size that finish count.
        deadline: simulated seconds after which a client's work of a round is lost; 0: none.
    """

    seconds_per_example: NotNegative = 0.0
    seconds_per_round: Annotated[NotNegative, _TIMED] = 0.0
    speed_spread: Annotated[NotNegative, _TIMED] = 0.0
    availability: Annotated[str, Allowed(bool, "'always', 'diurnal' or a CSV file"), _TIMED] = (
        "always"
    )
    online_share: Annotated[float, Gt(0), Le(1), _TIMED, when("availability", "diurnal")] = 0.5
    over_selection: Annotated[float, Ge(1), _TIMED] = 1.0
    deadline: Annotated[NotNegative, _TIMED] = 0.0

    def __post_init__(self) -> None:
        """Check the fields; if `seconds_per_example` is 0 the others must have their defaults.

        Raises:
            UsageError: the first invalid field.
        """
        check(self)
        changed = [f.name for f in fields(self) if getattr(self, f.name) != f.default]
        if changed and not self.is_on:
            raise UsageError(
                "there is no simulated time with seconds_per_example=0",
                key=changed[0],
                owner="Clock",
                value=getattr(self, changed[0]),
                allowed="set seconds_per_example, such as 0.01",
            )

    @property
    def is_on(self) -> bool:
        """True if time is simulated."""
        return self.seconds_per_example > 0

    @property
    def changes_cohorts(self) -> bool:
        """True if the clients that count may be others than those that are drawn from all clients."""
        return self.availability != "always" or self.over_selection > 1 or self.deadline > 0


class Work(NamedTuple):
    """Examples that a client processes in a round: `epochs` times its own, or `local_steps` batches.

    Fields:
        epochs: passes over a client's examples.
        local_steps: number of batches, in place of `epochs`; 0: use `epochs`.
        batch_size: largest batch; 0: all examples.
    """

    epochs: int = 1
    local_steps: int = 0
    batch_size: int = 0

    def examples(self, held: int) -> int:
        """Return the number of examples that a client with `held` of them processes."""
        batch = min(self.batch_size, held) if self.batch_size else held
        return self.local_steps * batch if self.local_steps else self.epochs * held


@dataclass(frozen=True)
class Asynchrony:
    """Asynchronous rounds (FedBuff); a round is one server step after `cohort_size` arrivals.

    Attributes:
        concurrency: number of clients that train at a time; 0: synchronous rounds.
        exponent: changes are multiplied by (1 + staleness) ** -exponent.
    """

    concurrency: Annotated[int, Ge(0), Note("0 is synchronous rounds")] = 0
    exponent: NotNegative = STALENESS_EXPONENT

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            UsageError: the first field that is not allowed.
        """
        check(self)
