"""What is asked for again is not computed again, and only that."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed.federation.execution.settings import HERE, Execution


@pytest.fixture
def calls():
    return []


@pytest.fixture
def compute(calls):
    def add(*arguments, **keywords):
        calls.append(arguments)
        return len(calls)

    return add


def test_the_same_contents_are_the_same_question(calls, compute):
    memory = Execution(memory={})
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert memory.once(compute, x, 3, valid=None) == 1
    assert memory.once(compute, jnp.asarray(x), 3, valid=None) == 1
    assert memory.once(compute, x[:, ::-1][:, ::-1], 3, valid=None) == 1
    assert memory.once(compute, np.repeat(x, 2, axis=1)[:, ::2], 3, valid=None) == 1
    assert memory.once(compute, [x], 3, valid=None) == 2
    assert len(calls) == 2


@pytest.mark.parametrize(
    "other",
    [
        (np.arange(6.0).reshape(3, 2), 3),
        (np.arange(6.0).reshape(2, 3).astype(np.float16), 3),
        (np.arange(6).reshape(2, 3), 3),
        (-np.arange(6.0).reshape(2, 3), 3),
        (np.arange(6.0).reshape(2, 3), 4),
        (np.arange(6.0).reshape(2, 3), np.array([3])),
        (np.arange(6.0).reshape(2, 3), 3, np.zeros(0)),
        ([np.arange(3.0), np.arange(3.0, 6.0)], 3),
    ],
    ids=str,
)
def test_another_question_is_computed(calls, compute, other):
    memory = Execution(memory={})
    memory.once(compute, np.arange(6.0).reshape(2, 3), 3)
    assert memory.once(compute, *other) == 2
    assert memory.once(lambda *_: "another function", *other) == "another function"


def test_equal_bytes_of_another_type_and_another_keyword_are_other_questions(calls, compute):
    memory = Execution(memory={})
    zeros = np.zeros(2, np.float32)
    questions = [
        *({"x": zeros}, {"y": zeros}, {"x": zeros + 1}, {"x": zeros, "y": None}),
        *({"x": zeros.astype(np.int32)}, {"x": zeros.view(np.uint8)}, {"x": zeros[:0]}),
    ]
    for number, question in enumerate([*questions, *questions]):
        assert memory.once(compute, **question) == number % len(questions) + 1


def test_execution_remembers_only_where_there_is_a_memory(calls, compute):
    remembering = Execution(memory={})
    assert [remembering.once(compute, 1), remembering.once(compute, 1)] == [1, 1]
    assert [HERE.once(compute, 1), HERE.once(compute, 1)] == [2, 3]
