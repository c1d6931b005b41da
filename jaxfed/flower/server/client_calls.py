"""Calls of a server to its clients: who they are, and one exchange for each step of a round.

stages.jsonl is the record of a run's stages, beside metrics.jsonl:

    {"round": 0, "stage": "registration", "run": "..."}                         the run's first start
    {"round": 3, "stage": "update", "clients": [0, 1, 2], "step": 3}             a stage begins
    {"round": 3, "stage": "update ended", ..., "why": {"1": "no reply within 300 s"}}
    {"round": 3, "stage": "end", "states": {"0": 3, "2": 3}}                     the round ends

A line is appended before what it announces happens. A server that was killed and starts again reads here
which steps it has used and which states of clients belong to its checkpoint. Of a round that was played
again, the last lines count.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from jaxfed.config.sections import Deployment
from jaxfed.errors import Unresumable, UsageError
from jaxfed.federation.algorithm import (
    Check,
    FederatedAlgorithm,
    Metrics,
    ServerState,
    Unusable,
    on_network,
)
from jaxfed.federation.census import census_of
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.method import with_attributes
from jaxfed.flower.client.client_run import MESSAGE, REGISTRATION, REPLY, SETUP
from jaxfed.flower.messages import pytrees, records, setup
from jaxfed.flower.messages.records import BadMessage, Record
from jaxfed.flower.messages.setup import Setup
from jaxfed.flower.messages.steps import Network
from jaxfed.flower.server.clients import Clients
from jaxfed.flower.server.exchange import Answers, Exchange
from jaxfed.flower.server.server_data import ServerData
from jaxfed.host import safe_files, storage
from jaxfed.host.checkpoint import Checkpoints

_LARGEST_NORM = float(np.sqrt(np.finfo(np.float32).max))  # of a model
STAGES = "stages.jsonl"
END = "end"
ENDED = " ended"  # behind the name of a stage in its last line


class UnusableModel(RuntimeError):
    """The mean of a round's replies is not a usable model; the text is one line."""


def connect(
    network: Network,
    config: ConfigDict,
    limits: Deployment,
    data: ServerData,
    workdir: Path,
    *,
    tell: Callable[[str], None] = lambda line: None,
    **clock: Any,
) -> ClientCalls:
    """Wait for the clients, ask who they are, and return the calls to them."""
    number, text = config.federation.num_clients, setup.config_text(config)
    stages = Stages(workdir)
    run = stages.run(setup.fingerprint(text))
    exchange = Exchange(network, {}, run, limits.deadline, **clock)
    run_setup = Setup(text, config.algorithm, number, data.shared.num_classes)
    clients = Clients(exchange, run_setup, data.form)
    clients.gather(limits.wait_for_nodes, tell)
    refused = [f"node {node}: {why}" for node, why in sorted(clients.refused.items())]
    if missing := clients.missing():
        because = f"; refused: {'; '.join(refused)}" * bool(refused)
        raise UsageError(f"clients {missing} of {number} are missing{because}")
    for line in refused:
        tell(f"refused {line}")
    stages.write(round=0, stage=REGISTRATION, run=run)
    census = census_of([clients.registrations[client].counts for client in range(number)])
    exchange.nodes, exchange.next_step = clients.nodes, 1 + stages.last_step()
    run_setup, seen = run_setup._replace(census=census.shared()), data.federation(census, number)
    return ClientCalls(exchange, run_setup, seen, limits, workdir, tell)


@dataclass
class ClientCalls:
    """Calls to the clients of a run; `tell` receives a line for each stage."""

    exchange: Exchange
    setup: Setup
    federation: Federation
    limits: Deployment
    workdir: Path
    tell: Callable[[str], None]

    def __post_init__(self) -> None:
        self._stages = Stages(self.workdir)
        self._of_round: dict[str, Any] = {}
        self._before_session: dict[int, int] | None = None
        self._begun = False  # a round, in this process

    def algorithm(self, algorithm: FederatedAlgorithm, name: str) -> FederatedAlgorithm:
        """Return the method with a round that asks the clients."""
        parties = on_network(algorithm)
        assert parties is not None  # checked
        init, play = parties.server(self.ask, self.federation)
        self.setup = self.setup._replace(method=name)

        @wraps(algorithm.round)
        def round_(
            state: ServerState, cohort: Cohort, key: jax.Array
        ) -> tuple[ServerState, Metrics]:
            number = int(state.round) + 1
            self._begin(number)
            after, metrics = play(state, cohort, key)
            if not _norm(after) <= _LARGEST_NORM:  # clients would be lost for nan in their replies
                raise UnusableModel(
                    f"round {number}: the new model is not finite or too large, and is not stored; lower "
                    "config.deployment.largest_norm; the same command continues from the state before"
                )
            self._stages.write(round=number, stage=END, states=self.exchange.states)
            return after, {**metrics, "network": self._of_round}

        # Their points are at clients.
        evaluate = with_attributes(algorithm.evaluate, of_clients=None)
        if parties.evaluate is not None:  # the server has no model
            evaluate = parties.evaluate
            algorithm = algorithm._replace(validate=None, predict=None)
        return algorithm._replace(init=init, round=round_, evaluate=evaluate)

    def ask(
        self,
        step: str,
        requests: Mapping[int, Any],
        reply: Any,
        *,
        round_number: int,
        check: Check = lambda client, reply: None,
        in_session: bool = False,
    ) -> Mapping[int, Any]:
        """Send each client its message of a step, and return the replies (see `Ask`)."""
        self._stages.write(
            round=round_number, stage=step, clients=sorted(requests), step=self.exchange.next_step
        )
        packed = records.prefixed(records.packed(self.setup), SETUP)
        messages = {
            client: packed | records.prefixed(pytrees.to_record(message), MESSAGE)
            for client, message in requests.items()
        }
        if not in_session:
            self._before_session = None
        elif self._before_session is None:
            self._before_session = dict(self.exchange.states)
        read = partial(self._read, reply, check)
        answers = self.exchange.ask(step, messages, round=round_number, read=read)
        self._count(answers)
        return answers.enough(self.limits.quorum).replies

    def _begin(self, number: int) -> None:
        """Continue clients from their states before round `number`; let them drop those that are obsolete."""
        self._of_round = {}
        if not self._begun:
            self.exchange.states = self._stages.states_after(number - 1)
            self._begun = True
        # The older checkpoint too: if the newest one is damaged, the next start continues from that.
        saved = Checkpoints(self.workdir / "checkpoints").steps()
        if saved and saved[0] < number:
            self.exchange.committed = self._stages.states().get(saved[0], {})

    def _read(self, form: Any, check: Check, client: int, content: Record) -> Any:
        """Read a client's reply."""
        if foreign := [name for name in content if not name.startswith(f"{REPLY}.")]:
            raise BadMessage(f"{min(foreign)} is unexpected")
        reply = pytrees.from_record(records.part(content, REPLY), form)
        try:
            norm = _norm(check(client, reply))
        except Unusable as error:
            raise BadMessage(str(error)) from error
        if norm > self.limits.largest_norm:
            limit = f"config.deployment.largest_norm={self.limits.largest_norm:g}"
            raise BadMessage(f"its reply has the norm {norm:.3g}, above {limit}")
        return reply

    def _count(self, answers: Answers) -> None:
        """Record how a stage ended; clients that left it go on from the states that count."""
        for client, lost in answers.lost.items():
            before = (self._before_session or {}).get(client)
            if lost.kind == "StateLost":  # it begins anew in its next round
                self.exchange.states.pop(client, None)
            elif before is not None:
                self.exchange.states[client] = before
        counts = {
            "replies": len(answers.replies),
            "lost": len(answers.lost),
            "seconds": round(answers.seconds, 3),
            "upload_bytes": answers.bytes_up,
            "download_bytes": answers.bytes_down,
        }
        for key, value in counts.items():
            self._of_round[key] = round(self._of_round.get(key, 0) + value, 3)
        line = {"round": answers.round, "stage": answers.step + ENDED, **counts}
        line["why"] = {client: each.reason for client, each in answers.lost.items()}
        self._stages.write(**line)
        lost_ones = f", {len(answers.lost)} lost" * bool(answers.lost)
        replies = f"{len(answers.replies)} replies{lost_ones}"
        self.tell(f"{answers.label}: {replies} in {answers.seconds:.1f} s")


def _norm(tree: Any) -> float:
    """Euclidean norm of all fractions of a pytree, in float64: squares of float32 do not overflow."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    squares = (np.sum(np.square(np.asarray(leaf, np.float64))) for leaf in leaves)
    return float(np.sqrt(sum(squares, np.float64(0))))


class Stages:
    """The file of one run, which the server alone writes."""

    def __init__(self, workdir: Path) -> None:
        """Open the file in a workdir; half a line at its end, of a server that was killed, is removed."""
        self._file = workdir / STAGES
        if self._file.exists():
            content = self._file.read_bytes()
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                with self._file.open("r+b") as stream:
                    stream.truncate(whole)

    def write(self, **line: Any) -> None:
        """Append a line, with the time in seconds since 1970."""
        storage.append(self._file, json.dumps({**line, "time": round(time.time(), 3)}) + "\n")

    def run(self, config: str) -> str:
        """Return the run's name, which begins with its config's hash; a new one at the first start."""
        named = (line["run"] for line in self._lines() if "run" in line)
        return next(named, f"{config}-{secrets.token_hex(8)}")

    def _lines(self) -> list[dict[str, Any]]:
        file = self._file
        return safe_files.json_lines(safe_files.content_of(file), file) if file.exists() else []

    def last_step(self) -> int:
        """Return the largest number of a step that was announced; 0: none."""
        return max((line.get("step", 0) for line in self._lines()), default=0)

    def states(self) -> dict[int, dict[int, int]]:
        """Return the states after each round: {round: {client: number of the step that made it}}."""
        return {
            line["round"]: {int(client): number for client, number in line["states"].items()}
            for line in self._lines()
            if "states" in line
        }

    def states_after(self, number: int) -> dict[int, int]:
        """Return the states after a round, from which the next one continues."""
        if number == 0:
            return {}
        states = self.states().get(number)
        if states is None:
            raise Unresumable(
                f"{self._file}: nothing about the end of round {number}, from which the clients' states "
                "would continue; bring the file back"
            )
        return states
