"""Simulated time in a config: the section `clock`, and a method's `training.concurrency`."""

from __future__ import annotations

from contextlib import AbstractContextManager

from ml_collections import ConfigDict

from jaxfed.config import methods
from jaxfed.config.client_numbers import check_scheduled_partners
from jaxfed.config.sections import section_of
from jaxfed.errors import UsageError, section
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.clients import Federation
from jaxfed.federation.clock.availability import availability_of
from jaxfed.federation.clock.make_schedule import (
    check_clock,
    check_deadline,
    check_draws,
    schedule_of,
)
from jaxfed.federation.clock.plan import Plan
from jaxfed.federation.clock.schedule import Schedule
from jaxfed.federation.clock.settings import Asynchrony, Clock, Work
from jaxfed.federation.sampling import Sampling
from jaxfed.training.pseudo_labels.pseudo_label import LABELING_NOTHING


def check(config: ConfigDict) -> None:
    """Check simulated time against cohorts and methods, and read the availability table.

    Raises:
        UsageError: the first incompatible key, or an invalid line of the table.
    """
    clock = section_of(config, "clock")
    num_clients = config.federation.num_clients
    sampling = Sampling(*(config[name] for name in Sampling._fields))
    for name in methods.chosen(config):
        asynchrony = _asynchrony(config, name)
        if asynchrony.concurrency:
            _check_asynchronous(config, name, clock)
        if "participation" in methods.needs(config, name).takes:
            with section("config", ("clock",)):
                check_draws(clock, repr(name))
        if clock.is_on:
            with _naming(config, name):
                check_clock(clock, sampling, asynchrony, num_clients)
    if clock.is_on:
        with section("config.clock", config.clock):
            availability_of(clock, num_clients, config.seed)


def check_deadlines(config: ConfigDict, federation: Federation, seed: int) -> None:
    """Check each method's deadline as `check_deadline`, on the fewest examples that clients may train on.

    Raises:
        UsageError: no client can; the error gives the fastest client's seconds.
    """
    clock = section_of(config, "clock")
    if not clock.deadline:
        return
    for name in methods.chosen(config):
        needed = methods.needs(config, name)
        seen = methods.with_own_training(config, name)
        has_stage_1 = _trains_one_model(seen, name) and seen.training.labeled_only_rounds > 0
        is_at_clients = config.federation.labels_at == "clients"
        is_labeled = needed.pseudo_label == "none" or (has_stage_1 and is_at_clients)
        plan = Plan(
            *(clock, Sampling(), federation, seed),
            needs_labels=(lambda number: True) if is_labeled else (lambda number: False),
            work=_work(seen, name),
        )
        with section("config.clock", config.clock):
            check_deadline(plan, whose=f" of {name!r}")


def schedule(
    config: ConfigDict,
    name: str,
    algorithm: FederatedAlgorithm,
    federation: Federation,
    seed: int,
) -> Schedule | None:
    """Return the schedule of a method's rounds in simulated time; None if the clock is off.

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
    with _naming(config, name):
        found = schedule_of(
            section_of(config, "clock"),
            config,
            federation,
            seed,
            config.rounds,
            needs_labels=algorithm.course.needs_labels_in,
            work=_work(config, name),
            asynchrony=_asynchrony(config, name),
        )
    if found is not None:
        check_scheduled_partners(config, name, found)
    return found


def _work(config: ConfigDict, name: str) -> Work:
    """Return the work of a round; methods without a shared model process each example once."""
    wanted = config.training
    if not _trains_one_model(config, name):
        return Work()
    return Work(wanted.epochs, wanted.local_steps, wanted.batch_size)


def _trains_one_model(config: ConfigDict, name: str) -> bool:
    needed = methods.needs(config, name)
    return needed.trains and not needed.has_learners


def _asynchrony(config: ConfigDict, name: str) -> Asynchrony:
    """Return a method's asynchronous rounds; methods that do not train have none."""
    if not methods.uses_training(config, name):
        return Asynchrony()
    training = methods.with_own_training(config, name).training
    return Asynchrony(training.concurrency, training.staleness_exponent)


def _check_asynchronous(config: ConfigDict, name: str, clock: Clock) -> None:
    """Check that a method's server only averages model changes, and that clients alone compute them."""
    training = methods.with_own_training(config, name).training
    needed = methods.needs(config, name)
    statistics = methods.training_key(config, name, "batch_statistics")
    for wrong, allowed in (
        (
            "" if needed.averages else f"the server of {name!r} averages more than model changes",
            "use 0, or set it in the sections of other methods alone",
        ),
        (
            f"{name!r} labels examples by the server's newest model"
            * (needed.pseudo_label not in LABELING_NOTHING),
            "use 0, or set it in the sections of other methods alone",
        ),
        (
            f"each arrival counts, and training_cohort_size={training.training_cohort_size} leaves some out"
            * (training.training_cohort_size > 0),
            f"set {methods.training_key(config, name, 'training_cohort_size')}=0",
        ),
        (
            f"{statistics}={training.batch_statistics!r} is of the newest model"
            * (training.batch_statistics != "averaged"),
            f"set {statistics}='averaged'",
        ),
        (
            "a server that trains on labels of its own has its newest model"
            * (config.federation.labels_at == "server"),
            "use 0",
        ),
        ("" if clock.is_on else "there is no simulated time", "set clock.seconds_per_example"),
    ):
        if wrong:
            raise UsageError(
                wrong,
                key=f"config.{methods.training_key(config, name, 'concurrency')}",
                value=training.concurrency,
                allowed=allowed,
            )


def _naming(config: ConfigDict, name: str) -> AbstractContextManager[None]:
    """Give errors the config's names of keys."""
    keys = {key: f"clock.{key}" for key in config.clock}
    keys |= {
        "sampling": "sampling",
        "concurrency": methods.training_key(config, name, "concurrency"),
    }
    return section("config", keys)
