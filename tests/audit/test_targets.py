"""Members, others of the same classes, and a population: who is drawn, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from jaxfed.audit.observations import drawn_targets
from jaxfed.data import Partition
from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation


def federation(held_out=60):
    """Three clients of 12, 8 and 0 labels, the first with class 0 alone, and 7 unlabeled examples each."""
    y = np.concatenate([np.zeros(12), np.arange(8) % 3, np.arange(21) % 3, np.arange(held_out) % 3])
    rows = np.arange(len(y))
    labeled = (rows[:12], rows[12:20], rows[:0])
    partition = Partition(labeled, tuple(rows[20:41].reshape(3, 7)), (rows[:0],) * 3)
    x = np.arange(len(y), dtype=np.float32)[:, None]
    return Federation(x, y.astype(np.int32), partition, 3, test=rows[41:])


def test_half_are_members_and_classes_say_nothing():
    clients = federation()
    targets = drawn_targets(clients, population=10, seed=0)
    assert targets.is_member.sum() == 20
    for client, labeled in enumerate(clients.partition.labeled):
        own = targets.client == client
        members, others = (
            targets.example[own & side] for side in (targets.is_member, ~targets.is_member)
        )
        assert members.tolist() == labeled.tolist()
        assert sorted(clients.y[members]) == sorted(clients.y[others])
        assert set(others) <= set(clients.test)
    every = targets.examples
    assert len(set(every)) == len(every) == 50
    assert set(targets.population) <= set(clients.test)
    unlabeled = np.concatenate(clients.partition.unlabeled)
    assert not np.isin(every, unlabeled).any()


@pytest.mark.parametrize(
    ("clients", "settings", "line"),
    [
        (federation(30), {}, "of class 0, but only 10 are held out"),
        (federation(), {"population": 41}, "population=41: 40 held-out examples are left"),
        (
            replace(federation(), partition=Partition(*((np.arange(0),) * 3,) * 3)),
            {},
            "no client has labeled examples",
        ),
    ],
)
def test_what_is_lacking_is_named(clients, settings, line):
    with pytest.raises(UsageError, match=line):
        drawn_targets(clients, **{"population": 5, "seed": 0, **settings})
