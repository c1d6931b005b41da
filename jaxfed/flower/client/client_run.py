"""A client's side of a run: the answer to one message, from the client's folder.

Flower starts a process for each message. It reads the folder, makes the method of the message's setup, and
computes one step (`ClientSide.answer`) from the client's stored state.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

from jaxfed.data.dataset import UNLABELED, Partition
from jaxfed.federation.clients import Federation
from jaxfed.flower.client import client_data, client_step, hello
from jaxfed.flower.client.client_data import ClientData
from jaxfed.flower.client.client_step import StepRefused
from jaxfed.flower.messages import pytrees, records, setup
from jaxfed.flower.messages.records import BadMessage, Record
from jaxfed.flower.messages.setup import Setup
from jaxfed.flower.messages.steps import Step, step_of

if TYPE_CHECKING:
    from flwr.app import Message

    from jaxfed.federation.sides import ClientSide

SETUP, MESSAGE, REPLY, SECONDS = "setup", "message", "reply", "seconds"


def answer(message: Message, folder: Path) -> Message:
    """Answer a message of the server; a client app's whole work."""
    from jaxfed.flower.messages.grid_messages import answered

    return answered(message, partial(perform, folder=folder))


def perform(request: Record, *, folder: Path) -> Record:
    """Answer a request from a client's folder; every problem is in the reply.

    The first request, a hello, needs no state. Each later one is one step of the method.
    """
    data = client_data.read(folder)
    errors = data.settings.errors
    if step_of(request).name == hello.NAME:
        return client_step.answer(request, partial(_hello, data), errors=errors)
    number = data.settings.number
    return client_step.perform(folder, request, partial(_step, data), client=number, errors=errors)


def own_federation(data: ClientData, setup: Setup) -> Federation:
    """Return the federation as this client knows it: its own examples, and numbers about the others'."""
    client, x, y = data.settings.number, *data.train
    public = x[:0] if data.public is None else data.public
    order = np.argsort(y < 0, kind="stable")  # labeled ones first, as in the simulation
    labeled = int((y >= 0).sum())
    rows = np.arange(len(x))
    nobody: list[np.ndarray] = [rows[:0]] * setup.num_clients
    first, rest = list(nobody), list(nobody)
    first[client], rest[client] = rows[:labeled], rows[labeled:]
    return Federation(
        np.concatenate([x[order], public]),
        np.concatenate([y[order], np.full(len(public), UNLABELED, np.int32)]),
        Partition(tuple(first), tuple(rest), tuple(nobody)),
        setup.num_classes,
        public=np.arange(len(x), len(x) + len(public)),
        census=setup.census,
    )


def _hello(data: ClientData, step: Step, content: Record) -> Record:
    if not data.settings.counts:
        raise StepRefused("client.toml has counts = false: this client's numbers do not leave it")
    text, method = (records.text(content, name, longest=1_000_000) for name in ("config", "method"))
    x, y = data.train
    said = hello.hello(
        data.folder,
        step.run,
        client=data.settings.number,
        config=setup.fingerprint(text, method),
        x=x,
        y=y,
        public=data.public,
    )
    return hello.to_record(said)


def _step(
    data: ClientData, step: Step, state: Record | None, content: Record
) -> tuple[Record | None, Record]:
    """Compute one step of the method: the client's new state, and its reply."""
    began = time.perf_counter()
    told = setup.from_record(records.part(content, SETUP))
    _check(data, told, records.whole_number(content, "cohort"))
    side, federation, key = method_of(data, told)
    made = time.perf_counter()
    form = side.form(step.name, federation)
    message = pytrees.from_record(records.part(content, MESSAGE), form)
    init = partial(side.init, key, federation)
    template = side.state_form(key, federation)
    if state is not None:
        own = pytrees.from_record(state, template, finite=False)
    else:
        own = init() if jax.tree.leaves(template) else template
    cohort = federation.cohort([data.settings.number])
    new, reply = side.answer(step.name, own, message, cohort)
    found = pytrees.to_record(jax.block_until_ready(reply))
    seconds = {"method": made - began, "step": time.perf_counter() - made}
    return pytrees.to_record(new), {
        **records.prefixed(found, REPLY),
        **records.prefixed(dict[str, records.Value](seconds), SECONDS),
    }


def method_of(data: ClientData, told: Setup) -> tuple[ClientSide, Federation, jax.Array]:
    """Make the method's client: its side, what it holds, and the key of initial states.

    Raises:
        StepRefused: the method has no sides.
    """
    from jaxfed.config.build.assembly import make_algorithm

    config = setup.config_of(told.config)
    federation = own_federation(data, told)
    algorithm = make_algorithm(config, told.method, federation)
    if algorithm.sides is None:
        raise StepRefused(f"{told.method} runs in one process alone")
    key = jax.random.fold_in(jax.random.key(config.seed), 0)
    return algorithm.sides().client, federation, key


def _check(data: ClientData, told: Setup, cohort: int) -> None:
    """Refuse a round that this client does not want to take part in, or that its data do not fit."""
    wanted = data.settings.least_clients
    if cohort < wanted:
        raise StepRefused(f"a round of {cohort} clients; client.toml has least_clients = {wanted}")
    if data.settings.number >= told.num_clients:
        raise BadMessage(
            f"there are {told.num_clients} clients, and this is {data.settings.number}"
        )
    if data.train.y.max(initial=-1) >= told.num_classes:
        raise StepRefused("a label is beyond the classes of the run")
