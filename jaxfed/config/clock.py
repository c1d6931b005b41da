"""Simulated time in a config: the section `clock`."""

from __future__ import annotations

import numpy as np
from ml_collections import ConfigDict

from jaxfed.config import methods
from jaxfed.config.client_numbers import check_cohorts
from jaxfed.config.sections import section_of
from jaxfed.errors import section
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.clients import Federation
from jaxfed.federation.clock.clients import availability_of
from jaxfed.federation.clock.schedule import Schedule, schedule_of
from jaxfed.federation.sampling import Sampling


def check(config: ConfigDict) -> None:
    """Check simulated time against the sampling of cohorts, and read the availability table.

    Raises:
        UsageError: the first incompatible key, or an invalid line of the table.
    """
    clock, num_clients = section_of(config, "clock"), config.federation.num_clients
    with section("config", _keys(config)):
        clock.check_sampling(_sampling(config), num_clients)
        availability_of(clock, num_clients, config.seed)


def in_time(
    config: ConfigDict,
    name: str,
    algorithm: FederatedAlgorithm,
    federation: Federation,
    seed: int,
) -> tuple[FederatedAlgorithm, Schedule | None]:
    """Return a method in simulated time, and the schedule of its rounds; None if the clock is off.

    Args:
        config: the method's config (`methods.with_own_training`), with its number of rounds.
        name: of the method.
        algorithm: the method.
        federation: the clients.
        seed: of the repeat.

    Raises:
        UsageError: the table has a client that does not exist, no client finishes a round, or a round has
            too few mask partners for its number of clients.
    """
    needed, training = methods.needs(config, name), config.training

    def processed(held: np.ndarray) -> np.ndarray:
        """Methods without a shared model process each example once."""
        if not needed.trains or needed.has_learners:
            return held
        batch = np.minimum(held, training.batch_size) if training.batch_size else held
        return training.local_steps * batch if training.local_steps else training.epochs * held

    with methods.naming(config, name), section("config", _keys(config)):
        algorithm, schedule = schedule_of(
            section_of(config, "clock"),
            algorithm._replace(name=algorithm.name or name),
            federation,
            _sampling(config),
            seed,
            config.rounds,
            processed=processed,
        )
    if schedule is not None:
        check_cohorts(config, name, [len(one.clients) for one in schedule.rounds])
    return algorithm, schedule


def _sampling(config: ConfigDict) -> Sampling:
    return Sampling(*(config[name] for name in Sampling._fields))


def _keys(config: ConfigDict) -> dict[str, str]:
    """Return the config's names of keys in errors."""
    return {f"Clock.{key}": f"clock.{key}" for key in config.clock} | {
        "sampling": "sampling",
        "clock": "clock",
    }
