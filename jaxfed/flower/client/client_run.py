"""A client's side of a run: the answer to one message, from the client's folder.

Each message is answered from the folder alone: its data, the method of the message's setup, and the client's
stored state give one step (`ClientSide.answer`). The worker of a site (`jaxfed.flower.deployment.worker`)
keeps the method that it made last, so that a round compiles nothing anew.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict

from jaxfed.config.networks import scales_by_clients
from jaxfed.data.client_rows import Partition
from jaxfed.data.dataset import UNLABELED
from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import ClientSide
from jaxfed.federation.clients import Federation
from jaxfed.flower.client import client_data, client_step, hello
from jaxfed.flower.client.client_data import ClientData
from jaxfed.flower.client.client_step import StepRefused
from jaxfed.flower.client.consent import accepted
from jaxfed.flower.messages import pytrees, records, setup
from jaxfed.flower.messages.records import BadMessage, Record
from jaxfed.flower.messages.setup import Setup
from jaxfed.flower.messages.steps import Step, step_of

# Parts of a request and of its reply.
SETUP, MESSAGE, REPLY = "setup", "message", "reply"
Kept = dict[str, tuple[ClientSide, Federation, jax.Array]]
_DESCRIBED = "setup"  # entry of a state within a session: hash of the setup


def performer(folder: Path) -> Callable[[Record], Record]:
    """Return `perform` for a folder, with the method of the last message kept for the next one."""
    return partial(perform, folder=folder, kept={})


def perform(request: Record, *, folder: Path, kept: Kept | None = None) -> Record:
    """Answer a request from a client's folder; every problem is in the reply.

    The first request, a hello, needs no state. Each later one is one step of the method.

    Args:
        request: the record of the request.
        folder: the client's.
        kept: the method of the last message, by the hash of its setup.
    """
    try:
        data = client_data.read(folder)
        name = step_of(request).name
    except Exception as error:  # its text may hold data; nobody has said that it may leave
        return client_step.refused(None, error)
    if name == hello.NAME:
        return client_step.answer(request, partial(_hello, data))
    step = partial(_step, data, {} if kept is None else kept)
    return client_step.perform(folder, request, step, client=data.settings.number)


def own_federation(data: ClientData, setup: Setup) -> Federation:
    """Return the federation as this client knows it: its own examples, and numbers about the others'."""
    client, x, y = data.settings.number, *data.points
    public = x[:0] if data.public is None else data.public
    order = client_data.labeled_first(y)
    rows = np.arange(len(x))
    of_role = np.split(rows, [int((y >= 0).sum()), len(data.train.y)])  # labeled, unlabeled, new

    def own(role: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(role if j == client else rows[:0] for j in range(setup.num_clients))

    return Federation(
        np.concatenate([x[order], public]),
        np.concatenate([y[order], np.full(len(public), UNLABELED, np.int32)]),
        Partition(*map(own, of_role)),
        setup.num_classes,
        public=np.arange(len(x), len(x) + len(public)),
        census=setup.census,
    )


def _hello(data: ClientData, step: Step, content: Record) -> Record:
    told = records.unpacked(Setup, content)
    config = accepted(data.settings, told.config, told.method, step.run)
    _check_labels(data, told.num_classes)
    sums, least = scales_by_clients(config, told.method), data.settings.least_examples
    if sums and 0 < len(data.points.y) < least:
        raise StepRefused(
            "the method needs sums of features, and there are fewer examples than the "
            f"least_examples = {least} of client.toml"
        )
    own = setup.fingerprint(told.config)
    return records.packed(hello.hello(data, config=own, sums=sums))


def _step(
    data: ClientData, kept: Kept, step: Step, state: Record | None, content: Record
) -> tuple[Record | None, Record]:
    """Compute one step of the method: the client's new state, and its reply."""
    given = records.part(content, SETUP)
    told = records.unpacked(Setup, given)
    _check_round(data, told, step.cohort)
    hello.check_unchanged(told, data)
    config = accepted(data.settings, told.config, told.method, step.run)
    described = records.fingerprint(given)
    if described not in kept:
        kept.clear()
        kept[described] = method_of(data, told, config)
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
        own = pytrees.from_record(state, template, finite=False)
    else:
        own = side.init(key, federation) if jax.tree.leaves(template) else template
    cohort = federation.cohort([data.settings.number])
    new, reply = side.answer(step.name, own, message, cohort)
    found = pytrees.to_record(jax.block_until_ready(reply))
    if side.labels is not None and (labels := side.labels(new)) is not None:
        client_data.write_labels(data, *labels)
    stored = pytrees.to_record(new)
    # In a session another method would send other content under the same masks.
    if stored.get(client_step.ONCE) is True:
        stored[_DESCRIBED] = described
    return stored, records.prefixed(found, REPLY)


def method_of(
    data: ClientData, told: Setup, config: ConfigDict
) -> tuple[ClientSide, Federation, jax.Array]:
    """Make the method's client: its side, what it holds, and the key of initial states."""
    from jaxfed.config.assembly import make_algorithm

    federation = own_federation(data, told)
    algorithm = make_algorithm(config, told.method, federation)
    if algorithm.sides is None:
        raise StepRefused(f"{told.method} runs in one process alone")
    key = jax.random.fold_in(jax.random.key(config.seed), 0)
    return algorithm.sides().client.at(key, federation), federation, key


def _check_round(data: ClientData, told: Setup, cohort: int) -> None:
    """Refuse a round that this client does not want to take part in, or that its data do not fit."""
    wanted, number = data.settings.least_clients, data.settings.number
    if cohort < wanted:
        raise StepRefused(f"a round of {cohort} clients; client.toml has least_clients = {wanted}")
    if not number < told.num_clients <= _MOST_CLIENTS:
        raise BadMessage(f"there are {told.num_clients} clients, and this is {number}")
    if min(told.census.capacity, told.census.max_labels) < 0:
        raise BadMessage("the census of the setup is malformed")
    _check_labels(data, told.num_classes)


def _check_labels(data: ClientData, num_classes: int) -> None:
    if not 2 <= num_classes <= _MOST_CLASSES:
        raise BadMessage(f"there are {num_classes} classes")
    if data.train.y.max(initial=-1) >= num_classes:
        raise StepRefused(f"a label is beyond the {num_classes} classes of the run")


_MOST_CLIENTS, _MOST_CLASSES = 1_000_000, 100_000
