"""A network in one process: every party has its own data and makes its own algorithm; messages are arrays."""

import dataclasses

import jax
import numpy as np

from jaxfed.config.assembly import make_algorithm
from jaxfed.data import Partition
from jaxfed.federation.algorithm import on_network
from jaxfed.federation.census import census_of, counts_of
from jaxfed.testing.method_checks import SEED, arranged


def counted(federation):
    """The numbers that a network's clients send before its first round."""
    rows = map(federation.points, range(federation.num_clients))
    labels = federation.partition.labeled
    return census_of(
        [counts_of(federation.x[own], labeled) for own, labeled in zip(rows, labels, strict=True)]
    )


def of_client(federation, client):
    """The federation as one client holds it: its own examples, and counts of everybody's."""
    points = federation.points(client)
    num_labeled = len(federation.partition.labeled[client])
    known = np.arange(len(points)) < num_labeled
    held = np.concatenate([points, federation.public])
    y = np.where(np.arange(len(held)) < num_labeled, federation.y[held], -1).astype(np.int32)
    nobody = [np.zeros(0, np.int64)] * federation.num_clients
    labeled, unlabeled = list(nobody), list(nobody)
    labeled[client], unlabeled[client] = np.flatnonzero(known), np.flatnonzero(~known)
    return dataclasses.replace(
        federation,
        x=federation.x[held],
        y=y,
        partition=Partition(tuple(labeled), tuple(unlabeled), tuple(nobody)),
        validation=nobody[0],
        test=nobody[0],
        server=nobody[0],
        public=np.arange(len(points), len(held)),
        census=counted(federation),
        room=None,
    )


def of_server(federation):
    """The federation as the server holds it: held-out and public examples, and counts of the clients'."""
    nobody = (np.zeros(0, np.int64),) * federation.num_clients
    there = federation.with_partition(Partition(nobody, nobody, nobody))
    return dataclasses.replace(there, census=counted(federation))


PLAIN = (bytes, str, bool, int, float)


def as_numpy(tree):
    return jax.tree.map(lambda leaf: leaf if type(leaf) in PLAIN else np.asarray(leaf), tree)


class Network:
    """The parties of a method that take part; `absent` (step, round) -> clients that do not reply."""

    def __init__(self, config, name, federation, clients, *, seed, absent=None):
        self.absent = absent or {}
        self.steps, self.own, self.federations = [], {}, {}
        self.clients = {}
        for client in clients:
            seen = of_client(federation, client)
            key = jax.random.fold_in(jax.random.key(seed), 0)
            side = on_network(make_algorithm(config, name, seen)).client.at(key, seen)
            self.clients[client], self.federations[client] = side, seen
            self.own[client] = as_numpy(side.init(key, seen))
        self.federation = of_server(federation)
        algorithm = make_algorithm(config, name, self.federation)
        init, played = on_network(algorithm).server(self.ask, self.federation)
        self.algorithm = algorithm._replace(init=init, round=played)

    def ask(self, step, messages, form, *, round_number, check=None, in_session=False):
        self.steps.append((step, round_number, tuple(messages)))
        gone = self.absent.get((step, round_number), ())
        replies = {
            client: self.answer(client, step, message, form)
            for client, message in messages.items()
            if client not in gone
        }
        for client, reply in replies.items() if check else ():
            check(client, reply)
        return replies

    def answer(self, client, step, message, form):
        side, seen = self.clients[client], self.federations[client]
        message = as_numpy(message)
        assert_form(message, side.form(step, seen))
        own, reply = side.answer(step, self.own[client], message, seen.cohort([client]))
        self.own[client], reply = as_numpy(own), as_numpy(reply)
        assert_form(reply, form)
        return reply


def both(name, clients, settings=(), *, rounds, cohorts=None, absent=None):
    """Play the simulation and the network: states and metrics of both, and the network.

    `cohorts` (round) -> the clients of a simulated round, by default `clients`; `absent` as in `Network`.
    """
    config, federation, algorithm = arranged(name, settings=settings)
    key = jax.random.key(SEED)
    there = Network(config, name, federation, clients, seed=SEED, absent=absent)
    state = algorithm.init(jax.random.fold_in(key, 0), federation)
    far = there.algorithm.init(jax.random.fold_in(key, 0), there.federation)
    found, expected = {}, {}
    for number in range(1, rounds + 1):
        own_key = jax.random.fold_in(key, number)
        seen = federation.cohort(cohorts(number) if cohorts else clients)
        state, expected = algorithm.round(state, seen, own_key)
        nobody = there.federation.cohort(clients)
        assert not nobody.mask.size
        far, found = there.algorithm.round(far, nobody, own_key)
    return state, far, expected, found, there


def assert_form(tree, form):
    """The tree is what the other side is told to expect: structure, shapes and dtypes."""
    assert jax.tree.structure(tree) == jax.tree.structure(form)
    for leaf, wanted in zip(jax.tree.leaves(tree), jax.tree.leaves(form), strict=True):
        if type(wanted) in PLAIN:
            assert type(leaf) is type(wanted)
        else:
            assert (np.shape(leaf), np.asarray(leaf).dtype) == (wanted.shape, wanted.dtype)
