"""Mask partners of a config: enough of them in every round for its number of clients.

Fewer clients sometimes need more partners (`jaxfed.secure.session.neighborhoods`), so that each number of
clients that a round may have is checked, where it is known before the first round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager

from ml_collections import ConfigDict

from jaxfed.config import methods
from jaxfed.errors import section
from jaxfed.federation.clock.schedule import Schedule
from jaxfed.federation.sampling import cohort_sizes

_BY_XCLP = ("xclp", "xclp_prototypes")  # sources of labels with the settings of the section `xclp`


def check_mask_partners(config: ConfigDict, num_clients: int) -> None:
    """Check every number of clients that sampling makes of `num_clients`; 0: it is not known.

    Raises:
        UsageError: names the key, and a number of clients for which the partners do not suffice.
    """
    sizes = cohort_sizes(config, num_clients)
    _check(config.xclp.get("mask_partners", 0), sizes, _of_xclp())  # also a label source
    for name in methods.chosen(config):
        size = methods.keywords(config, name).get("mask_partners", 0)
        _check(size, sizes, methods.naming_keywords(config, name))


def check_scheduled_partners(config: ConfigDict, name: str, schedule: Schedule) -> None:
    """Check the rounds of a method whose cohorts a clock has changed; arguments as `clock.schedule`.

    Raises:
        UsageError: as `check_mask_partners`.
    """
    for size, first, naming in _of_method(config, name):
        later = schedule.rounds[first:]
        _check(size, {len(one.clients) for one in later}, naming)


def _of_method(
    config: ConfigDict, name: str
) -> Iterator[tuple[int, int, AbstractContextManager[None]]]:
    """Yield numbers of partners, the rounds before the first sum among them, and the names of their keys."""
    own = methods.keywords(config, name).get("mask_partners", 0)
    yield own, 0, methods.naming_keywords(config, name)
    if methods.needs(config, name).pseudo_label in _BY_XCLP:
        first = methods.with_own_training(config, name).training.labeled_only_rounds
        yield config.xclp.get("mask_partners", 0), first, _of_xclp()


def _of_xclp() -> AbstractContextManager[None]:
    return section("config.xclp", ("mask_partners",))


def _check(size: int, num_clients: Iterable[int], naming: AbstractContextManager[None]) -> None:
    if not size:
        return
    from jaxfed.secure.session.neighborhoods import check_partners  # only sums under masks need it

    with naming:
        for number in sorted(num_clients):
            check_partners(number, size)
