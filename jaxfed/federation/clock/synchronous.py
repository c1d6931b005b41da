"""Synchronous rounds in simulated time, with over-selection and a deadline.

The server draws cohort_size * over_selection of the available clients. The first `cohort_size` that finish
count, and the last of them ends the round. If fewer finish, the round ends at the deadline; without a
deadline it ends when all drawn clients have finished or left. If no client has finished by then, the server
draws again in the same round. If no client is available, time advances to the next window.
"""

from __future__ import annotations

import math

import numpy as np

from jaxfed.federation.clock.plan import MOST_DRAWS, Plan
from jaxfed.federation.clock.schedule import Schedule, Timed


def synchronous(plan: Plan, rounds: int, num_clients: int) -> Schedule:
    """Return the schedule of synchronous rounds, as the module's docstring describes.

    Raises:
        UsageError: a round in which no client finishes.
    """
    timed, time, most = [], 0.0, 1
    for number in range(1, rounds + 1):
        wanted, ended = plan.size(number), 0
        drawn = min(num_clients, math.ceil(wanted * plan.clock.over_selection))
        for repeat in range(MOST_DRAWS):
            clients = plan.draw(number, repeat, time, drawn)
            if not len(clients):
                time = plan.availability.next_start(time)
                continue
            counting, time = _finishers(plan, clients, number, time, wanted)
            ended += len(clients)
            if counting:
                break
        else:
            raise plan.too_few(number)
        most = max(most, wanted)
        timed.append(Timed(counting, time, ended))
    return Schedule(timed, most)


def _finishers(
    plan: Plan, clients: np.ndarray, number: int, time: float, wanted: int
) -> tuple[tuple[int, ...], float]:
    """Return the drawn clients that count, ascending, and the end of the round."""
    finish, lost = plan.ends(clients, number, time)
    in_time = np.flatnonzero(finish <= lost)
    first = in_time[np.lexsort((clients[in_time], finish[in_time]))][:wanted]
    counting = tuple(sorted(clients[first].tolist()))
    if len(first) == min(wanted, len(clients)):
        return counting, float(finish[first[-1]])
    if plan.clock.deadline:
        return counting, time + plan.clock.deadline
    return counting, float(np.minimum(finish, lost).max())
