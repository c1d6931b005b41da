"""One client's bad answers, in every method with learners: the others' round stands."""

import logging
from dataclasses import replace
from functools import cache, partial

import bad_estimators
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_training import federation_of, training_of
from toy_learner import NUM_CLASSES, clients, toy

from jaxfed.algorithms.centralized import centralized
from jaxfed.algorithms.distributed_distillation import distributed_distillation
from jaxfed.algorithms.dsfl import dsfl
from jaxfed.algorithms.fedct import fedct
from jaxfed.algorithms.fedmd import fedmd
from jaxfed.algorithms.local_learning import local_learning
from jaxfed.algorithms.pate import pate
from jaxfed.federation.algorithm import HAS_NO_MODEL
from jaxfed.learners import LEARNERS, mixed, network
from jaxfed.learners.client_fit import ClientFit, answers_of, asked
from jaxfed.testing.method_checks import assert_equal
from jaxfed.training.local.batches import Batches

KEY = jax.random.key(0)
BAD = 1
ASKING = ("fedct", "distributed_distillation", "fedmd", "dsfl", "pate")


def method_of(name, learner, federation, *, server=None, **settings):
    public = {"public": federation.public_examples, "num_classes": NUM_CLASSES}
    alone = {"num_classes": NUM_CLASSES, "steps": 4}
    server = server or learner
    fedmd_steps = {"transfer_steps": 0, "private_steps": 4, "digest_steps": 2, "revisit_steps": 2}
    made = {
        "fedct": lambda: fedct(learner=learner, steps=4, **public, **settings),
        "distributed_distillation": lambda: distributed_distillation(
            network=lambda **keywords: learner, steps=4, **public
        ),
        "fedmd": lambda: fedmd(
            network=lambda **keywords: learner, public_labels=None, **fedmd_steps, **public
        ),
        "dsfl": lambda: dsfl(
            network=lambda **keywords: learner, steps=4, distill_steps=2, **public
        ),
        "pate": lambda: pate(
            learner=learner, server_learner=server, steps=4, student_steps=4, **public
        ),
        "local_learning": lambda: local_learning(learner=learner, **alone),
        "centralized": lambda: centralized(server_learner=server, **alone),
    }
    return made[name]()


def round_of(algorithm, state, federation, number=0):
    return algorithm.round(state, federation.cohort(), jax.random.fold_in(KEY, number))


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def answering(how):
    """Toys of which one answers what is no answer to all that it is asked."""
    good = toy()

    def spoiled(labels, answer):
        rows = list(answer)
        wrong = {
            "length": lambda row: np.concatenate([row, row[:1]]),
            "dtype": lambda row: row + 0.5 if labels else np.rint(row).astype(int),
            "value": lambda row: np.full_like(row, 9 if labels else 1e30),
            "nan": lambda row: row + np.nan,
            "nothing": lambda row: None,
        }
        return [wrong[how](row) if place == BAD else row for place, row in enumerate(rows)]

    def ask(name, labels):
        def answer(state, client_id, x):
            ids = np.asarray(client_id)
            sent = getattr(good, name)(state, ids, x)
            return spoiled(labels, sent) if len(ids) > BAD and ids[BAD] == BAD else sent

        return answer

    proba = ask("predict_proba", False)
    return good._replace(predict=ask("predict", True), predict_proba=proba, scores=proba)


@pytest.mark.parametrize("how", ["length", "dtype", "value", "nan", "nothing"])
@pytest.mark.parametrize("name", ASKING)
def test_what_is_no_answer_leaves_its_client_out_and_nobody_else(name, how, caplog):
    federation = clients()
    with caplog.at_level(logging.WARNING):
        algorithm = method_of(name, answering(how), federation)
        state, told = round_of(algorithm, algorithm.init(KEY, federation), federation)
    [line] = lines(caplog)
    assert line.startswith("client 1: answers ")
    assert told["failed_clients"] == 1
    mute = toy(mute=(BAD,))
    mute = mute._replace(scores=mute.predict_proba)
    other = method_of(name, mute, federation)
    expected, _ = round_of(other, other.init(KEY, federation), federation)
    assert_equal(state, expected)
    if name != "pate":
        np.testing.assert_array_equal(state.turns, [1, 0, 1, 1])


def test_who_is_asked_at_the_end_alone_is_wrong_and_named(caplog):
    federation, accuracies = clients(), []
    for learner in (toy(), toy(mute=(BAD,))):
        algorithm = method_of("local_learning", learner, federation)
        state, told = round_of(algorithm, algorithm.init(KEY, federation), federation)
        assert told["failed_clients"] == 0
        with caplog.at_level(logging.WARNING):
            accuracies.append(algorithm.evaluate(state, federation)["test_accuracy"])
    assert any("client 1" in line for line in lines(caplog))
    assert 0 < accuracies[1] < accuracies[0]


@pytest.mark.parametrize("name", ["centralized", "pate"])
def test_one_model_that_never_fits_has_no_accuracy(name, caplog):
    federation = clients()
    with caplog.at_level(logging.WARNING):
        algorithm = method_of(name, toy(), federation, server=toy(fails=(0,)))
        state, _ = round_of(algorithm, algorithm.init(KEY, federation), federation)
        quality = algorithm.evaluate(state, federation)
    assert lines(caplog) == ["client 0: cannot be fitted: no"]
    assert quality.keys() - {"consensus_accuracy"} == {HAS_NO_MODEL}
    assert algorithm.validate(state, federation)["majority_validation_accuracy"] == 0


def test_rows_of_others_than_were_asked_are_counted(caplog):
    federation, good = clients(), toy()

    def predict(state, client_id, x):
        return good.predict(state, client_id, x).T

    with caplog.at_level(logging.WARNING):
        algorithm = method_of("fedct", good._replace(predict=predict), federation)
        round_of(algorithm, algorithm.init(KEY, federation), federation)
    assert lines(caplog)[0] == "client 0: answers 24 rows where each of 4 clients has one"


@pytest.mark.parametrize("how", ["raises", "classes", "fractions", "length", "nan", "columns"])
@pytest.mark.parametrize("name", ["fedct", "pate", "local_learning", "centralized"])
def test_estimators_that_go_wrong(name, how, monkeypatch, caplog):
    """(Distributed distillation and FedMD are of networks.)"""
    federation = clients()
    x = np.array(federation.x)
    x[federation.partition.labeled[BAD][0], 0] = 101
    federation = replace(federation, x=x)
    bad_estimators.install(monkeypatch)
    learner = partial(LEARNERS["estimator"], num_classes=3, estimator="sklearn.dummy.Bad")
    with caplog.at_level(logging.WARNING):
        server = learner(how="none" if name == "pate" else how)
        algorithm = method_of(name, learner(how=how), federation, server=server)
        _, told = round_of(algorithm, algorithm.init(KEY, federation), federation)
    [line] = lines(caplog)
    who, others = ("client 0", 0) if name == "centralized" else ("client 1", 3)
    assert line.startswith(f"{who}: cannot be fitted: Bad: ")
    assert told["failed_clients"] == 1
    assert told["clients"] == others


@cache
def networks():
    """Three clients' networks, and the learner they are of."""
    federation = federation_of([12, 10, 11])
    federation = replace(federation, public=federation.validation)
    training = training_of(Batches("joint", 16, 1), learning_rate=lambda count: 0.3)
    return federation, network(training=training, public_batch_size=8)


def as_if_fitted(state):
    return state._replace(fits=jnp.ones_like(state.fits))


def with_spoiled(state, client):
    """Its network has finite parameters, and scores that are infinite."""
    model = jax.tree.map(jnp.array, state.model)
    kernel = model["last"]["kernel"]
    kernel[...] = kernel[...].at[client].set(3e38)
    return state._replace(model=model, fits=state.fits.at[client].set(1))


def test_scores_that_are_no_numbers_are_found_where_they_are_asked_for(caplog):
    federation, learner = networks()
    ids = np.arange(3, dtype=np.int32)
    state = as_if_fitted(learner.init(KEY, federation))
    spoiled = with_spoiled(state, BAD)
    for question in ("predict", "predict_proba", "scores"):
        turn = ClientFit(spoiled, ids, np.zeros(0, np.int32), {})
        with caplog.at_level(logging.WARNING):
            turn, answers = asked(turn, learner, question, federation.public_examples, 3)
        assert lines(caplog)[-1] == "client 1: answers from scores that are nan or infinite"
        np.testing.assert_array_equal(turn.client_id, [0, -1, 2])
        np.testing.assert_array_equal(turn.failed, [BAD])
        whole = getattr(learner, question)(state, ids, federation.public_examples)
        np.testing.assert_array_equal(answers[[0, 2]], whole[[0, 2]])
        assert (answers[BAD] == (-1 if question == "predict" else 0)).all()
        one_more, _ = asked(turn, learner, question, federation.public_examples, 3)
        assert len(one_more.failed) == 1


def test_several_networks_without_scores_are_asked_once():
    """Clients 0 and 1; the second part is client 1's."""
    federation, learner = networks()
    questions = []

    def counted(state, client_id, x):
        questions.append(client_id)
        return learner.predict(state, client_id, x)

    one = learner._replace(predict=counted)
    all_of_them = mixed([one, one])
    state = tuple(map(as_if_fitted, all_of_them.init(KEY, federation)))
    spoiled = tuple(with_spoiled(part, 0) for part in state)
    ids, x = np.arange(3, dtype=np.int32), federation.public_examples
    answers, failed = answers_of(all_of_them, "predict", spoiled, ids, x, 3)
    assert failed == dict.fromkeys((0, 1), "answers from scores that are nan or infinite")
    assert len(questions) == 2
    assert (answers[:2] == -1).all()
    np.testing.assert_array_equal(answers[2], all_of_them.predict(state, ids, x)[2])
