"""Asynchronous rounds: buffered aggregation (FedBuff; Nguyen et al., AISTATS 2022) in simulated time.

    concurrency clients train at a time, each from the model that the server had when it began
    round t ends with the cohort_size-th arrival since round t - 1:  w <- w + mean_k s_k p_k delta_k
    s_k = (1 + staleness_k) ** -exponent,  staleness_k = server steps since client k began

A client that has arrived or is lost is replaced immediately by a free one, which begins with the server's
current model. Arrivals of one instant are processed before its replacements. A client whose change waits in
the buffer cannot begin again before the server's step. Only clients that have work in the round begin; if
those are fewer than concurrency, all of them train at a time.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from jaxfed.errors import UsageError
from jaxfed.federation.clock.plan import MOST_DRAWS, Plan
from jaxfed.federation.clock.schedule import Schedule, Timed
from jaxfed.federation.clock.settings import Asynchrony


class Event(NamedTuple):
    """End of one client's work.

    Fields:
        end: simulated seconds.
        client: its number.
        version: number of server steps before it began.
        is_arrival: False if its work is lost.
    """

    end: float
    client: int
    version: int
    is_arrival: bool


def asynchronous(plan: Plan, asynchrony: Asynchrony, rounds: int) -> Schedule:
    """Return the schedule of asynchronous rounds.

    Raises:
        UsageError: a round in which too few clients have work, or that too few finish.
    """
    size, time = plan.size(1), 0.0
    training: list[Event] = []
    busy: set[int] = set()  # clients that train, or whose change waits in the buffer
    timed = []
    for number in range(1, rounds + 1):
        if len(plan.with_work(number)) < size:
            raise _too_few_with_work(plan, asynchrony, number, size)
        arrived: list[Event] = []
        lost = draws = 0
        while len(arrived) < size:
            if training and training[0].end <= time:
                event = heapq.heappop(training)
                if event.is_arrival:
                    arrived.append(event)
                else:
                    lost += 1
                    busy.remove(event.client)
                continue
            if lost + draws > MOST_DRAWS * asynchrony.concurrency:
                raise plan.too_few(number, size)
            missing = asynchrony.concurrency - len(training)
            if missing:
                clients = plan.draw(number, draws, time, missing, busy)
                draws += 1
                missing -= len(clients)
                for event in _events(plan, clients, number, time):
                    heapq.heappush(training, event)
                    busy.add(event.client)
            ends = [training[0].end] if training else []
            time = min([*ends, plan.next_start(number, time)] if missing else ends)
        arrived.sort(key=lambda event: event.client)
        came = tuple(event.client for event in arrived)
        busy.difference_update(came)
        versions = tuple(event.version for event in arrived)
        timed.append(Timed(came, time, size + lost, versions))
    return Schedule(timed, size, asynchrony.exponent, slots_of(timed))


def _too_few_with_work(plan: Plan, asynchrony: Asynchrony, number: int, size: int) -> UsageError:
    return UsageError(
        f"the server's step takes {size} arrivals, and in round {number} only "
        f"{len(plan.with_work(number))} clients have examples to train on",
        key="concurrency",
        value=asynchrony.concurrency,
        allowed="use 0, or a smaller cohort_size",
    )


def _events(plan: Plan, clients: np.ndarray, number: int, time: float) -> list[Event]:
    """Return the end of the work of each client that begins now, in round `number`."""
    finish, lost = plan.ends(clients, number, time)
    ends = np.minimum(finish, lost)
    return [
        Event(float(end), int(client), number - 1, bool(is_in_time))
        for end, client, is_in_time in zip(ends, clients, finish <= lost, strict=True)
    ]


def slots_of(timed: list[Timed]) -> list[int]:
    """Return, for each number of server steps, the slot in which the model is stored; -1: not stored.

    A slot is reused after the last round that needs it, so there are as few slots as models in use at a time.
    """
    last = {version: number for number, one in enumerate(timed, 1) for version in one.version}
    slots, until = [], list[int]()
    for version in range(len(timed)):
        if version not in last:
            slots.append(-1)
            continue
        free = [slot for slot, end in enumerate(until) if end <= version]
        slot = free[0] if free else len(until)
        until[slot : slot + 1] = [last[version]]
        slots.append(slot)
    return slots
