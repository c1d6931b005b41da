"""The round loop: who plays rounds, and when states are judged."""

import ast
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxfed
from jaxfed.federation.algorithm import Course, FederatedAlgorithm
from jaxfed.federation.rounds import cohorts_of, is_judged, play
from jaxfed.federation.sampling import Sampling, sample_clients

CLIENTS = [(np.full((2, 1), j, np.float32), [0, 1]) for j in range(5)]


def summing(**course):
    """A method whose state is the numbers of the clients that it has seen, and its keys."""

    def round(state, cohort, key):
        ids = tuple(np.asarray(cohort.client_id).tolist())
        return (*state, (ids, jax.random.key_data(key).tolist())), {"clients": len(ids)}

    return FederatedAlgorithm(
        lambda key, federation: (), round, lambda state, federation: {}, course=Course(**course)
    )


def test_rounds_follow_one_another_with_their_own_cohorts_and_keys():
    federation, key = jaxfed.Federation.from_clients(CLIENTS), jax.random.key(3)
    sampling = Sampling(2, "uniform")
    cohort_of = cohorts_of(summing(), federation, sampling, 7, 9)
    played = list(play(summing(), ("start",), range(4, 7), cohort_of=cohort_of, key=key))
    assert [one.round for one in played] == [4, 5, 6]
    state = ("start",)
    for one in played:
        assert one.before == state
        own_key = jax.random.fold_in(key, one.round)
        assert jax.random.key_data(one.key).tolist() == jax.random.key_data(own_key).tolist()
        clients = tuple(sample_clients(sampling, federation, 7, one.round))
        assert one.cohort.client_id.tolist() == list(clients)
        state = (*state, (clients, jax.random.key_data(own_key).tolist()))
        assert one.after == state
        assert one.metrics == {"clients": 2}


def test_a_round_is_played_when_it_is_asked_for():
    seen = []

    def round(state, cohort, key):
        seen.append(state)
        return state + 1, {}

    method = summing()._replace(round=round)
    played = play(
        method, jnp.int32(0), range(1, 9), cohort_of=lambda number: None, key=jax.random.key(0)
    )
    next(played)
    next(played)
    assert len(seen) == 2
    played.close()
    with pytest.raises(StopIteration):
        next(played)


def test_rounds_that_need_labels_have_cohorts_of_clients_with_labels():
    clients = [(x, y if j < 2 else [-1, -1]) for j, (x, y) in enumerate(CLIENTS)]
    federation = jaxfed.Federation.from_clients(clients, num_classes=2)
    sampling = Sampling(2, "proportional")
    cohort_of = cohorts_of(summing(stage_1=2), federation, sampling, 0, 9)
    assert cohort_of(1).client_id.tolist() == cohort_of(2).client_id.tolist() == [0, 1]
    assert any(cohort_of(number).client_id.tolist() != [0, 1] for number in range(3, 9))


@pytest.mark.parametrize(
    ("every", "stage", "expected"),
    [
        *((0, 0, [5]), (1, 0, [1, 2, 3, 4, 5]), (2, 0, [2, 4, 5]), (9, 0, [5])),
        *((0, 2, [2, 5]), (3, 1, [1, 3, 5]), (0, 5, [5]), (0, 9, [5])),
    ],
)
def test_when_states_are_judged(every, stage, expected):
    """What pseudo-labels start from is always a candidate."""
    method = summing(stage_1=stage)
    assert [n for n in range(1, 6) if is_judged(method, n, 5, every)] == expected


# Calls of an algorithm's `round` that advance no experiment: one method's round is another's part.
INSIDE_A_ROUND = {"round", "round_", "recovered", "played"}


def test_nothing_else_plays_rounds():
    """One caller of `round` in the package: `play`. A second loop would judge or draw otherwise."""
    root = Path(jaxfed.__file__).parent
    callers = set()
    for file in root.rglob("*.py"):
        tree = ast.parse(file.read_text())
        inside = {
            call
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef) and function.name in INSIDE_A_ROUND
            for call in ast.walk(function)
        }
        for call in ast.walk(tree):
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and call.func.attr == "round"
                and not (
                    isinstance(call.func.value, ast.Name) and call.func.value.id in ("np", "jnp")
                )
                and call not in inside
            ):
                callers.add(str(file.relative_to(root)))
    assert callers == {"federation/rounds.py"}
