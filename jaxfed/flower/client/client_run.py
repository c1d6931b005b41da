"""A client's side of a run: the answer to one message, from the client's folder.

    python -m jaxfed.flower.client.client_run FOLDER SOCKET

Each message is answered from the folder alone: its data, the method of the message's setup, and the client's
stored state give one step (`ClientSide.answer`). Flower starts a process for each message, which hands it to
this command, the worker of its site, on a Unix socket that only this user can open. So a round imports and
compiles nothing anew.

A setup is checked before anything is built from it. It describes a method and nothing of the client's
machine: it names no file, folder or class to be imported, sets no number of processes, and has known keys and
allowed values alone. The name of a run begins with its config's hash, which a site may name in client.toml.
A server decides the model, the number of steps, and so time and memory (docs/threat-model-network.md).

The first reply, the registration, has the client's number and the numbers of its examples and labels. Steps,
shapes and weights of a round depend on them. The client itself compares the form of its examples, the names
of their columns and its public examples with those of the run.

If a method's networks normalize their inputs by all clients' data, the sum and the sum of squares of each
feature (of each channel of images) leave as well, in the clear: of one example they are the example. A client
with fewer examples than `least_examples` in its client.toml refuses the method. That does not help against a
server that compares the sums before and after a site has added an example.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Listener
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from absl import logging
from ml_collections import ConfigDict

import jaxfed
from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import methods
from jaxfed.config.assembly import PRETRAINED, scales_by_clients
from jaxfed.config.keys import flatten
from jaxfed.config.sections import shared_settings
from jaxfed.data.client_rows import Partition
from jaxfed.data.dataset import UNLABELED
from jaxfed.errors import UsageError
from jaxfed.experiment.store import compilation_cache
from jaxfed.federation.algorithm import ClientSide, on_network
from jaxfed.federation.census import ClientCounts, counts_of
from jaxfed.federation.clients import Federation
from jaxfed.federation.method import method_settings
from jaxfed.flower.client import client_data, client_step
from jaxfed.flower.client.client_data import ClientData, ClientSettings
from jaxfed.flower.client.client_step import StepRefused
from jaxfed.flower.messages import pytrees, records, setup
from jaxfed.flower.messages.records import BadMessage, Record, Value, one_line
from jaxfed.flower.messages.setup import Form, Setup
from jaxfed.flower.messages.steps import Step, step_of
from jaxfed.settings import check_each, check_value

# Parts of a request and of its reply.
SETUP, FORM, MESSAGE, REPLY = "setup", "form", "message", "reply"
Kept = dict[str, tuple[ClientSide, Federation, jax.Array]]
_DESCRIBED = "setup"  # entry of a state within a session: hash of the setup
REGISTRATION = "registration"  # name of the first step
_CLASS = "learner.estimator."
_MOST_CLIENTS, _MOST_CLASSES = 1_000_000, 100_000


def serve(folder: Path, address: str) -> None:
    """Answer messages from a client's folder, one after another."""
    kept: Kept = {}
    Path(address).unlink(missing_ok=True)  # of a worker that was killed
    with Listener(address, "AF_UNIX") as listener:
        while True:
            with listener.accept() as connection:
                try:
                    request = records.from_bytes(connection.recv_bytes())
                    reply = perform(request, folder=folder, kept=kept)
                    connection.send_bytes(records.to_bytes(reply))
                except Exception as error:  # the app ended, or it is none; the next one is answered
                    logging.warning("a message's process ended before its reply: %s", error)


def perform(request: Record, *, folder: Path, kept: Kept) -> Record:
    """Answer a request from a client's folder; every problem is in the reply.

    The first request, a registration, needs no state. Each later one is one step of the method. `kept` has
    the method of the last message, by the hash of its setup.
    """
    try:
        data = client_data.read(folder)
        name = step_of(request).name
    except Exception as error:  # its text may hold data; nobody has said that it may leave
        return client_step.refused(None, error)
    if name == REGISTRATION:
        return client_step.answer(request, partial(_register, data))
    step = partial(_step, data, kept)
    return client_step.perform(folder, request, step, client=data.settings.number)


class Registration(NamedTuple):
    """A client's first reply: `counts` has sums of features only if the method needs them."""

    client: int
    name: str
    counts: ClientCounts


def registration(data: ClientData, form: Form, *, sums: bool) -> Registration:
    """Collect a client's first reply; `StepRefused` if its examples have another form."""
    x, y = data.points
    ours = Form(x.dtype.name, x.shape[1:], data.columns, form.public and checksum(data.public))
    for what, actual, expected in zip(Form._fields, ours, form, strict=True):
        if actual != expected:
            order = " in another order" * (what == "columns" and {*ours.columns} == {*form.columns})
            shown = one_line(f"{actual}{order}, not {expected}")
            raise StepRefused(f"{data.settings.name} has examples of {what} {shown}")
    least = data.settings.least_examples
    if sums and 0 < len(y) < least:
        raise StepRefused(
            "the method needs sums of features, and there are fewer examples than the "
            f"least_examples = {least} of client.toml"
        )
    counts = counts_of(x, y[y >= 0], sums=sums)
    return Registration(data.settings.number, data.settings.name, counts)


def checksum(x: np.ndarray | None) -> str:
    """SHA-256 of public examples; "" without them."""
    return "" if x is None else records.fingerprint({"x": x})


def from_record(content: Mapping[str, Value], shape: Sequence[int]) -> Registration:
    """Read a registration from the content of a reply; `shape` is that of an example."""
    received = records.unpacked(Registration, content)
    examples, labels, sums = received.counts
    if not 0 <= received.client < 2**53 or not 0 <= labels <= examples < 2**53:
        raise BadMessage("the numbers of a registration are too large, or contradict each other")
    if sums is not None:
        both = sums.total, sums.square
        if {each.shape for each in both} != {(shape[-1],)}:
            raise BadMessage("the sums of a registration are not one of each feature")
        if not np.isfinite(both).all() or sums.values != examples * math.prod(shape[:-1]):
            raise BadMessage("sums of a registration are not finite, or of other numbers of values")
    return received


def own_federation(data: ClientData, setup: Setup) -> Federation:
    """Return the federation as this client knows it: its own examples, and numbers about the others'."""
    client, x, y = data.settings.number, *data.points
    public = x[:0] if data.public is None else data.public
    order, rows = client_data.labeled_first(y), np.arange(len(x))
    of_role = np.split(rows, [int((y >= 0).sum()), len(data.train.y)])  # labeled, unlabeled, new

    def own(role: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(role if j == client else rows[:0] for j in range(setup.num_clients))

    return Federation(
        np.concatenate([x[order], public]),
        np.concatenate([y[order], np.full(len(public), UNLABELED, np.int32)]),
        Partition(*map(own, of_role)),
        setup.num_classes,
        public=np.arange(len(x), len(x) + len(public)),
        room=np.array([setup.census.capacity]),  # padded as in a simulation: equal bits
        census=setup.census,
    )


def _register(data: ClientData, step: Step, content: Record) -> Record:
    run_setup = records.unpacked(Setup, records.part(content, SETUP))
    config = accepted(data.settings, run_setup, step.run)
    _check_labels(data, run_setup)
    form = records.unpacked(Form, records.part(content, FORM))
    reply = registration(data, form, sums=scales_by_clients(config, run_setup.method))
    client_step.check_data(data.folder, step.run, _checksum(data), begins=True)
    return records.packed(reply)


def _step(
    data: ClientData, kept: Kept, step: Step, state: Record | None, content: Record
) -> tuple[Record | None, Record]:
    """Compute one step of the method: the client's new state, and its reply."""
    part = records.part(content, SETUP)
    run_setup = records.unpacked(Setup, part)
    wanted, number = data.settings.least_clients, data.settings.number
    if step.cohort < wanted:
        wrong = f"a round of {step.cohort} clients; client.toml has least_clients = {wanted}"
        raise StepRefused(wrong)
    if not number < run_setup.num_clients <= _MOST_CLIENTS:
        raise BadMessage(f"there are {run_setup.num_clients} clients, and this is {number}")
    if min(run_setup.census.capacity, run_setup.census.max_labels) < 0:
        raise BadMessage("the census of the setup is malformed")
    client_step.check_data(data.folder, step.run, _checksum(data))
    config = accepted(data.settings, run_setup, step.run)
    _check_labels(data, run_setup)
    described = records.fingerprint(part)
    if described not in kept:
        kept.clear()
        kept[described] = method_of(data, run_setup, config)
    side, federation, key = kept[described]
    try:
        form = side.form(step.name, federation)
    except UsageError as error:  # its text is of the method alone
        raise StepRefused(str(error)) from error
    message = pytrees.from_record(records.part(content, MESSAGE), form)
    template = side.state_form(key, federation)
    if state is not None:
        if state.pop(_DESCRIBED, described) != described:
            raise StepRefused("the setup has changed within a session")
        old = pytrees.from_record(state, template, finite=False)
    else:
        old = side.init(key, federation) if jax.tree.leaves(template) else template
    cohort = federation.cohort([data.settings.number])
    new, reply = side.answer(step.name, old, message, cohort)
    record = pytrees.to_record(jax.block_until_ready(reply))
    if side.labels is not None and (labels := side.labels(new)) is not None:
        client_data.write_labels(data, *labels)
    stored = pytrees.to_record(new)
    # In a session another method would send other content under the same masks.
    if stored.get(client_step.ONCE) is True:
        stored[_DESCRIBED] = described
    return stored, records.prefixed(record, REPLY)


def method_of(
    data: ClientData, run_setup: Setup, config: ConfigDict
) -> tuple[ClientSide, Federation, jax.Array]:
    """Make the method's client: its side, what it holds, and the key of initial states."""
    from jaxfed.config.assembly import make_algorithm

    federation = own_federation(data, run_setup)
    parties = on_network(make_algorithm(config, run_setup.method, federation))
    if parties is None:
        raise StepRefused(f"{run_setup.method} runs in one process alone")
    key = jax.random.fold_in(jax.random.key(config.seed), 0)
    return parties.client.at(key, federation), federation, key


def _checksum(data: ClientData) -> str:
    return records.fingerprint(dict(zip("xy", data.points, strict=True)))


def _check_labels(data: ClientData, run_setup: Setup) -> None:
    if not 2 <= run_setup.num_classes <= _MOST_CLASSES:
        raise BadMessage(f"there are {run_setup.num_classes} classes")
    if data.train.y.max(initial=-1) >= run_setup.num_classes:
        raise StepRefused(f"a label is beyond the {run_setup.num_classes} classes of the run")


def accepted(settings: ClientSettings, run_setup: Setup, run: str) -> ConfigDict:
    """Return the config of a run's setup, which is checked."""
    ours = jaxfed.__version__, jax.__version__
    if (run_setup.jaxfed, run_setup.jax) != ours:  # results would be no simulation's
        server = f"jaxfed {run_setup.jaxfed} and JAX {run_setup.jax}"
        raise StepRefused(
            f"this client has jaxfed {ours[0]} and JAX {ours[1]}, the server {server}"
        )
    text, method = run_setup.config, run_setup.method
    digest = setup.fingerprint(text)
    if not run.startswith(f"{digest}-"):
        raise BadMessage(f"run {run} is not of the config {digest} that came with it")
    if settings.config not in ("", digest):
        raise StepRefused(f"the config is {digest}; client.toml has config = {settings.config!r}")
    config = setup.config_of(text)
    if method not in methods.chosen(config):
        raise BadMessage(f"the config has no method {method[:60]!r}")
    try:
        _check(config, settings.estimators)
        known = method_settings(methods.factory_of(config, method))
        check_each(known, methods.keywords(config, method), f"config.{method}")
    except UsageError as error:  # its text is of the server's config alone
        raise StepRefused(str(error)) from error
    return config


def _check(config: ConfigDict, estimators: Collection[str]) -> None:
    """Check keys and values, and that none of them names a file or a class."""
    names = {*ALGORITHMS, *methods.variants(config)}
    for name in methods.chosen(config):
        if name not in names:
            raise UsageError("there is no such method", key="config.algorithm", value=name)
    known = shared_settings()
    for key, value in flatten(config.to_dict()):
        if key.partition(".")[0] in setup.NOT_SENT:
            continue  # defaults
        refused = partial(UsageError, key=f"config.{key}", value=value)
        is_state = key.rpartition(".")[2] == "initial_model" and value != PRETRAINED
        if (is_state or key == "model.folder") and value:
            raise refused("a server sends no path")
        if key == f"{_CLASS}estimator" and value and value not in estimators:
            raise refused(f"client.toml has estimators = {list(estimators)}")
        if key == f"{_CLASS}derived_from" and value:
            raise refused("a server names no package")
        if key in known and key not in ("algorithm", "baselines") and not key.startswith(_CLASS):
            check_value(f"config.{key}", value, known[key].hint)


if __name__ == "__main__":
    # JAX would give one client most of an accelerator that clients on one machine share.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    compilation_cache.enable()
    serve(Path(sys.argv[1]), sys.argv[2])
