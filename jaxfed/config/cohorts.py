"""Conditions on the clients of rounds: their number, and the rounds' simulated time.

    check_number_of_clients(config, 20)
    algorithm, schedule = in_time(seen, name, algorithm, federation, seed)

`jaxfed.config.checks.check` checks the number if `federation.num_clients` is set. Otherwise the data
determine it, and `jaxfed.config.data.feasibility` checks it for the clients of each repeat.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from ml_collections import ConfigDict

from jaxfed.config import methods
from jaxfed.config.keys import refused
from jaxfed.config.sections import section_of
from jaxfed.errors import UsageError, section
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.clients import Federation
from jaxfed.federation.clock.schedule import Schedule, schedule_of
from jaxfed.federation.departures import Departure, check_departures
from jaxfed.federation.sampling import Sampling, cohort_sizes, num_groups
from jaxfed.training.pseudo_labels.label_sources import BY_XCLP


def check_number_of_clients(config: ConfigDict, num_clients: int) -> None:
    """Check that rounds and their sums are possible with this number of clients.

    Every group needs a round. A round needs enough clients for methods that divide them into groups or sum
    over them. Clients scheduled to drop out must exist. Mask partners must suffice for every cohort
    size that sampling can give: fewer clients sometimes need more partners
    (`jaxfed.secure.session.neighborhoods`).
    """
    numbers = {"cohort_size": config.cohort_size, "learner.names": len(config.learner.names)}
    for key, number in numbers.items():
        if 0 < config.federation.num_clients < number:
            wrong = f"at most {num_clients} with federation.num_clients={num_clients}"
            raise refused(config, key, wrong)
    groups = num_groups(num_clients, config.cohort_size)
    if config.sampling == "groups" and config.rounds < groups:
        wrong = (
            f"with sampling='groups' and cohort_size={config.cohort_size}, {num_clients} clients make "
            f"{groups} groups"
        )
        raise refused(config, "rounds", wrong, f"use integers from {groups} on")
    sizes = cohort_sizes(config, num_clients)
    # Also if no method of the run is XCLP: methods that train may take its labels.
    for name in dict.fromkeys(("xclp", *methods.chosen(config))):
        entries = methods.all_keywords(config, name).get("presence", ())
        clients = [entry.partition("@")[0] for entry in entries]
        leaving = [Departure(int(client), 0.0, "") for client in clients if client.isdecimal()]
        check_departures(leaving, num_clients, f"config.{name}.presence")
        _check_partners(config, name, sizes)
    for name in methods.chosen(config):
        _check_round(config, name, config.cohort_size or num_clients)


def _check_round(config: ConfigDict, name: str, size: int) -> None:
    """Check that the `size` clients of a round suffice for a method."""
    given = methods.all_keywords(config, name)
    if given.get("num_groups", 1) > size:
        wrong = f"at most the {size} clients of a round (config.cohort_size)"
        raise UsageError(wrong, key=f"config.{name}.num_groups", value=given["num_groups"])
    for key, alone in (("prototype_sums", "none"), ("sums", "plaintext")):
        if given.get(key, alone) != alone and size < 2:
            raise UsageError(
                f"with config.{name}.{key}={given[key]!r} a round has 2 clients or more",
                key="config.cohort_size" if config.cohort_size else "config.federation.num_clients",
                value=size,
            )
    number = methods.with_own_training(config, name).training.training_cohort_size
    if methods.uses_training(config, name) and number > size:
        key = methods.training_key(config, name, "training_cohort_size")
        raise refused(config, key, f"a round has {size} clients", f"use 1 to {size}, and 0 for all")


def _check_partners(config: ConfigDict, name: str, num_clients: Collection[int]) -> None:
    size = methods.all_keywords(config, name).get("mask_partners", 0)
    if not size:
        return
    from jaxfed.secure.session.neighborhoods import check_partners  # only sums under masks need it

    with methods.naming(config, name):
        for number in sorted(num_clients):
            check_partners(number, size)


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

    keys = {f"Clock.{key}": f"clock.{key}" for key in config.clock}
    keys |= {key: key for key in ("clock", *Sampling._fields)}
    with methods.naming(config, name), section("config", keys):
        algorithm, schedule = schedule_of(
            section_of(config, "clock"),
            algorithm._replace(name=algorithm.name or name),
            federation,
            Sampling(*(config[key] for key in Sampling._fields)),
            seed,
            config.rounds,
            processed=processed,
        )
    if schedule is not None:
        sizes = [len(one.clients) for one in schedule.rounds]
        _check_partners(config, name, {*sizes})
        if needed.pseudo_label in BY_XCLP:
            _check_partners(config, "xclp", {*sizes[training.labeled_only_rounds :]})
    return algorithm, schedule
