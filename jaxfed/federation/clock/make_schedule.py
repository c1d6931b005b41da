"""Make the schedule of a run from its settings."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation
from jaxfed.federation.clock.asynchronous import asynchronous
from jaxfed.federation.clock.plan import Plan
from jaxfed.federation.clock.schedule import Schedule
from jaxfed.federation.clock.settings import Asynchrony, Clock, Work
from jaxfed.federation.clock.synchronous import synchronous
from jaxfed.federation.sampling import Sampling


def schedule_of(
    clock: Clock,
    sampling: Any,
    federation: Federation,
    seed: int,
    rounds: int,
    *,
    needs_labels: Callable[[int], bool],
    work: Work | None = None,
    asynchrony: Asynchrony | None = None,
) -> Schedule | None:
    """Return the schedule of a run; None if the clock is off.

    Args:
        clock: speeds, availability, deadline, over-selection.
        sampling: a `Sampling`, or a config with its keys; not "groups".
        federation: the clients.
        seed: of the repeat.
        rounds: their number.
        needs_labels: number of a round -> True if its clients train only on their labeled examples.
        work: examples that a client processes in a round; None: its own, once.
        asynchrony: rounds are asynchronous if its concurrency is above 0.

    Raises:
        UsageError: incompatible settings, an invalid table, a deadline that no client can meet, a round in
            which no client finishes, or asynchronous rounds in which fewer clients than a step takes have
            examples to train on.
    """
    if not clock.is_on:
        return None
    chosen = Sampling(*(getattr(sampling, name) for name in Sampling._fields))
    asynchrony = asynchrony or Asynchrony()
    check_clock(clock, chosen, asynchrony, federation.num_clients)
    plan = Plan(clock, chosen, federation, seed, needs_labels, work or Work())
    check_deadline(plan, rounds)
    if asynchrony.concurrency:
        return asynchronous(plan, asynchrony, rounds)
    return synchronous(plan, rounds, federation.num_clients)


def check_deadline(plan: Plan, rounds: int = 1, *, whose: str = "") -> None:
    """Check that some client can meet the deadline in the first round in which clients have work.

    Args:
        plan: the clients and the clock.
        rounds: number of rounds.
        whose: the clients' method, for the message.

    Raises:
        UsageError: no client can; the error gives the fastest client's seconds.
    """
    deadline = plan.clock.deadline
    if not deadline:
        return
    by_round = ((number, plan.with_work(number)) for number in range(1, rounds + 1))
    first = next((one for one in by_round if len(one[1])), None)
    if first is None:
        return
    number, clients = first
    fastest = plan.seconds(clients, number).min()
    if fastest > deadline:
        raise UsageError(
            f"no client{whose} finishes a round by then, the fastest takes {fastest:.3g} s",
            key="deadline",
            owner="Clock",
            value=deadline,
            allowed="allow more, or fewer seconds_per_example",
        )


def check_draws(clock: Clock, method: str) -> None:
    """Check that cohorts stay as they are drawn from all clients, on which a privacy guarantee counts.

    Args:
        clock: speeds, availability, deadline, over-selection.
        method: the method with the guarantee (`FederatedAlgorithm.check_participation`), for the message.

    Raises:
        UsageError: the clock changes cohorts; the error's key is `clock`.
    """
    if clock.changes_cohorts:
        raise UsageError(
            f"the privacy guarantee of {method} counts on cohorts that are drawn from all clients",
            key="clock",
            allowed="use availability='always', over_selection=1 and deadline=0",
        )


def check_clock(clock: Clock, sampling: Sampling, asynchrony: Asynchrony, num_clients: int) -> None:
    """Check a clock's settings against the sampling of cohorts; `num_clients` is 0 if unknown.

    Raises:
        UsageError: the first incompatible setting.
    """
    size, concurrency = sampling.cohort_size or num_clients, asynchrony.concurrency
    if sampling.sampling == "groups" or (concurrency and sampling.sampling != "uniform"):
        raise UsageError(
            "clients of a fixed turn may be away" * (sampling.sampling == "groups")
            or f"concurrency={concurrency} replaces clients one by one",
            key="sampling",
            value=sampling.sampling,
            allowed="use 'uniform'",
        )
    if clock.over_selection > 1 and (not sampling.cohort_size or size == num_clients):
        raise UsageError(
            "all clients take part already",
            key="over_selection",
            owner="Clock",
            value=clock.over_selection,
            allowed="set a smaller cohort_size",
        )
    most = num_clients or math.inf
    if concurrency and not size <= concurrency <= most:
        end = f"to {num_clients} clients" if num_clients else "on"
        raise UsageError(
            f"the server's step takes {size} arrivals",
            key="concurrency",
            value=concurrency,
            allowed=f"use {size} {end}, or a smaller cohort_size",
        )
