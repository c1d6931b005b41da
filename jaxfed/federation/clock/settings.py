"""Settings of simulated time: the section `clock` of a config."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

from jaxfed.errors import UsageError
from jaxfed.settings import Allowed, Ge, Gt, Le, NotNegative, check, when

BUILT_IN = ("always", "diurnal")  # availability without a table


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Speeds and availability of clients, over-selection and deadline; off if `seconds_per_example` is 0.

    Attributes:
        seconds_per_example: simulated seconds of the median client for an example; 0: no simulated
            time, and no other key of the clock may be set.
        seconds_per_round: simulated seconds of the median client for the communication of a round.
        speed_spread: sigma of the lognormal distribution of both over clients; 0: equal speeds.
        availability: 'always', 'diurnal' (a window of each day), or a CSV file of client,from,to in seconds.
        online_share: share of the day in which a client is available.
        over_selection: clients drawn for a synchronous round, as a multiple of cohort_size; the first
            cohort_size that finish count.
        deadline: simulated seconds after which a client's work of a round is lost; 0: none.
    """

    seconds_per_example: NotNegative = 0.0
    seconds_per_round: NotNegative = 0.0
    speed_spread: NotNegative = 0.0
    availability: Annotated[str, Allowed(bool, "'always', 'diurnal' or a CSV file")] = "always"
    online_share: Annotated[float, Gt(0), Le(1), when("availability", "diurnal")] = 0.5
    over_selection: Annotated[float, Ge(1)] = 1.0
    deadline: NotNegative = 0.0

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
