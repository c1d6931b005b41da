"""Synchronous rounds in simulated time, with over-selection and a deadline.

The server draws cohort_size * over_selection of the available clients. The first `cohort_size` that finish
count, and the last of them ends the round. If fewer finish, the round ends at the deadline; without a
deadline it ends when all drawn clients have finished or left. If no client has finished by then, the server
draws again in the same round. If no client is available, time advances to the next window.

Clients without work may be drawn, as without simulated time. They exchange messages and train nothing, and
never take the place of a client with work. The cohort has as large a share of clients with work as the draw,
rounded up; the rest are clients without work. Only clients with work finish or are lost. A round that draws
none of them passes without training, unless all of them are unavailable: then time advances to the next
window of one. A round in which no client at all has work, with labels at the server, takes no time.
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
        wanted, lost = plan.size(number), 0
        most = max(most, wanted)
        if not len(plan.with_work(number)):
            timed.append(Timed((), time, 0))
            continue
        drawn = min(num_clients, math.ceil(wanted * plan.clock.over_selection))
        for repeat in range(MOST_DRAWS):
            clients = plan.draw(number, repeat, time, drawn)
            has_work = plan.has_work(clients, number)
            if not len(clients) or (not has_work.any() and plan.waits(number, time)):
                time = plan.next_start(number, time)
                continue
            counting, time = _finishers(plan, clients, number, time, wanted)
            has_finished = has_work[counting].any()
            lost += has_work.sum() - has_work[counting].sum()
            if has_finished or not lost:
                break
        else:
            raise plan.too_few(number)
        counted = tuple(sorted(clients[counting].tolist()))
        timed.append(Timed(counted, time, len(counted) + int(lost)))
    return Schedule(timed, most)


def _finishers(
    plan: Plan, clients: np.ndarray, number: int, time: float, wanted: int
) -> tuple[np.ndarray, float]:
    """Return the places of the drawn clients that count, and the end of the round."""
    finish, lost = plan.ends(clients, number, time)
    has_work = plan.has_work(clients, number)
    wanted = min(wanted, len(clients))
    share = math.ceil(wanted * int(has_work.sum()) / len(clients))
    order = np.lexsort((clients, finish))
    in_time = order[finish[order] <= lost[order]]
    is_first = has_work[in_time]
    counting = np.append(in_time[is_first][:share], in_time[~is_first][: wanted - share])
    if len(counting) == wanted:
        return counting, float(finish[counting].max())
    if plan.clock.deadline:
        return counting, time + plan.clock.deadline
    return counting, float(np.minimum(finish, lost).max())
