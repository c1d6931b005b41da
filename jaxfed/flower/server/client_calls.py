"""Calls of a server to its clients: who they are, and one exchange for each step of a round.

    calls = connect(network, config, limits, data, workdir)
    algorithm = calls.algorithm(algorithm, name)       # its round asks the clients

stages.jsonl (`stages`) has one line when a stage of a round begins and one when it ends: time, who replied,
who is lost and why, bytes, and seconds: `step_max` of the longest step of a client, `transport_max` of the
longest rest until its reply is here (Flower's polls, its processes, messages).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from jaxfed.config.sections import Deployment
from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import (
    Check,
    FederatedAlgorithm,
    Metrics,
    Outputs,
    ServerState,
    Unusable,
)
from jaxfed.federation.census import Census, FeatureSums, census_of
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort
from jaxfed.flower.client.client_run import MESSAGE, REPLY, SECONDS, SETUP
from jaxfed.flower.client.hello import checksum
from jaxfed.flower.messages import pytrees, records, setup
from jaxfed.flower.messages.network import Network
from jaxfed.flower.messages.records import BadMessage, Record
from jaxfed.flower.messages.setup import Setup
from jaxfed.flower.server.clients import Clients, Expected
from jaxfed.flower.server.exchange import Answers, Exchange
from jaxfed.flower.server.server_data import ServerData
from jaxfed.flower.server.stages import END, ENDED, Stages
from jaxfed.host.checkpoint import Checkpoints
from jaxfed.kernels.devices import rows_at_once

_THEN = "the run stops; the same command continues it"
_IS_METRIC = re.compile(r"\.(metrics|labels)\.")  # in a name of a reply
_LARGEST_NORM = float(np.sqrt(np.finfo(np.float32).max))  # of a model


class UnusableModel(RuntimeError):
    """The mean of a round's replies is not a usable model; the text is one line."""


def no_census(data: ServerData) -> Census:
    """Return a census of one client, in place of that of clients who have not been asked."""
    nothing = np.zeros(data.example[-1])
    return Census(1, 1, FeatureSums(nothing, nothing, 1))


def connect(
    network: Network,
    config: ConfigDict,
    limits: Deployment,
    data: ServerData,
    place: Path,
    *,
    tell: Callable[[str], None] = lambda line: None,
    **clock: Any,
) -> ClientCalls:
    """Wait for the clients, ask who they are, and return the calls to them."""
    number = limits.num_nodes(config.federation.num_clients)
    text = setup.config_text(config)
    # Another run for another workdir or config; clients compare the hash at its beginning.
    where = hashlib.sha256(str(place.resolve()).encode()).hexdigest()[:16]
    run = f"{setup.fingerprint(text)}-{where}"
    exchanged = {"run": run, "deadline": limits.deadline, "retries": limits.retries, **clock}
    public = data.parts.get("public")
    expected = Expected(
        number=number,
        config=setup.fingerprint(text),
        public="" if public is None else checksum({"x": public[0]}),
        names=limits.names,
        example=[data.dtype.name, *data.example],
        columns=data.columns,
    )
    asked: Record = {"config": text, "method": config.algorithm, "num_classes": data.num_classes}
    stages = Stages(place)
    known = stages.data(number)
    found = Clients(network, expected, asked, exchanged, dict(known))
    found.gather(limits.wait_for_nodes, tell)
    refused = [f"node {node}: {why}" for node, why in sorted(found.refused.items())]
    if missing := found.missing():
        because = f"; refused: {'; '.join(refused)}" * bool(refused)
        raise UsageError(f"clients {missing} of {number} are missing{because}")
    for line in refused:
        tell(f"refused {line}")
    if not known:
        stages.write(round=0, stage="hello", data=found.data)
    hellos = [found.hellos[client] for client in range(number)]
    census = census_of([said.counts for said in hellos])
    first = 1 + max(stages.last_step(), *(said.last_step for said in hellos))
    return ClientCalls(
        Exchange(network, found.nodes, first_step=first, **exchanged),
        Setup(text, config.algorithm, number, data.num_classes, census.shared()),
        data.federation(census, number),
        limits,
        place,
        found,
        tell,
    )


@dataclass
class ClientCalls:
    """Calls to the clients of a run.

    Attributes:
        exchange: with their nodes.
        told: everything that a client must know in each request.
        federation: as the server knows it.
        limits: the quorum, and the largest norm of a reply.
        place: the workdir.
        clients: the clients, some of whom may come back with another node.
        tell: receives a line for each stage.
    """

    exchange: Exchange
    told: Setup
    federation: Federation
    limits: Deployment
    place: Path
    clients: Clients
    tell: Callable[[str], None]
    _of_round: dict[str, Any] = field(default_factory=dict)
    _norms: dict[int, float] = field(default_factory=dict)  # of a round's replies

    def __post_init__(self) -> None:
        self._stages = Stages(self.place)
        self._before_session: dict[int, int] | None = None
        self._committed = 0  # the round whose states clients have been told to keep; 0: none

    def algorithm(self, algorithm: FederatedAlgorithm, name: str) -> FederatedAlgorithm:
        """Return the method with a round that asks the clients."""
        assert algorithm.sides is not None  # checked
        sides = algorithm.sides()
        init, play = sides.server(self.ask, self.federation)
        states = _has_states(algorithm, self.federation)
        self._told = self.told._replace(method=name).to_record()
        self._continues, self._begun = states, False

        def round_(
            state: ServerState, cohort: Cohort, key: jax.Array
        ) -> tuple[ServerState, Metrics]:
            number = int(state.round) + 1
            self._begin(number)
            after, metrics = play(state, cohort, key)
            self._check_state(algorithm, after, number)
            self._stages.write(round=number, stage=END, states=self.exchange.states)
            return after, {**metrics, "network": self._of_round}

        if sides.evaluate is not None:  # the server has no model
            algorithm = algorithm._replace(
                evaluate=sides.evaluate, validate=None, predict=None, outputs=Outputs()
            )
        outputs = algorithm.outputs._replace(clients=None)
        return algorithm._replace(init=init, round=round_, outputs=outputs)

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
            round=round_number,
            stage=step,
            clients=sorted(requests),
            step=self.exchange.next_step,
        )
        head: Record = {**records.prefixed(self._told, SETUP), "cohort": len(requests)}
        messages = {
            client: {
                **head,
                **self.clients.of_hello(client),
                **records.prefixed(pytrees.to_record(message), MESSAGE),
            }
            for client, message in requests.items()
        }
        seconds: dict[int, float] = {}
        measured: dict[int, dict[str, float]] = {}

        def read(client: int, content: Record) -> Any:
            seconds[client] = records.number(content, SECONDS)
            found = self._read(reply, check, client, content)
            measured[client] = {
                name.rpartition(".")[2]: round(float(value), 6)
                for name, value in content.items()
                if _IS_METRIC.search(name) and np.ndim(value) == 0
            }
            return found

        if not in_session:
            self._before_session = None
        elif self._before_session is None:
            self._before_session = dict(self.exchange.states)
        answers = self.exchange.ask(
            step,
            messages,
            round=round_number,
            read=read,
            continues=self._continues,
        )
        self._count(answers, round_number, seconds, {c: m for c, m in measured.items() if m})
        answers.enough(self.limits.quorum, then=_THEN)
        return answers.replies

    def _begin(self, number: int) -> None:
        """Continue clients from their states before round `number`; let them drop those that are obsolete."""
        self._of_round, self._norms = {}, {}
        self.clients.find_returned()
        self.exchange.nodes |= self.clients.nodes
        if not self._continues:
            return
        if not self._begun:
            self.exchange.states = self._stages.states_after(number - 1)
            self._begun = True
        # The older checkpoint too: if the newest one is damaged, the next start continues from that.
        saved = Checkpoints(self.place / "checkpoints").oldest()
        if saved is None or saved >= number or saved == self._committed:
            return
        if (states := self._stages.states().get(saved)) is not None:
            self.exchange.commit(states)
            self._committed = saved

    def _read(self, form: Any, check: Check, client: int, content: Record) -> Any:
        """Read a client's reply."""
        found = pytrees.from_record(records.part(content, REPLY), form)
        try:
            norm = _norm(check(client, found))
        except Unusable as error:
            raise BadMessage(str(error)) from error
        if norm > self.limits.largest_norm:
            limit = f"config.deployment.largest_norm={self.limits.largest_norm:g}"
            raise BadMessage(f"its reply has the norm {norm:.3g}, above {limit}")
        self._norms[client] = max(norm, self._norms.get(client, 0.0))
        return found

    def _check_state(self, algorithm: FederatedAlgorithm, state: ServerState, number: int) -> None:
        """Check that a new state can be trained on, before it is evaluated and saved.

        Its predictions and, in float32, its squared norm must be finite. Otherwise clients would compute nan
        losses and gradients, and would be blamed for them.
        """
        x = self.federation.x[: rows_at_once()]
        if not len(x):  # the server holds no example
            x = np.ones((1, *x.shape[1:]), x.dtype)
        seen = () if algorithm.predict is None else algorithm.predict(state, x)
        if _norm(state) <= _LARGEST_NORM and np.isfinite(_norm(seen)):
            return
        first, *others = sorted(self._norms, key=lambda client: -self._norms[client])
        next_one = f", the next one {self._norms[others[0]]:.3g}" if others else ""
        norm = f"{self._norms[first]:.3g}{next_one}"
        blame = (
            f"the largest change is that of client {first}, with the norm {norm}; lower "
            "config.deployment.largest_norm to refuse such replies, and"
        )
        if not self._norms[first]:
            blame = "the changes were summed under masks, so whose it is is unknown;"
        raise UnusableModel(
            f"round {number}: the new model or its predictions are not finite or too large, and are not "
            f"stored; {blame} the same command continues from the state before"
        )

    def _count(
        self,
        answers: Answers,
        number: int,
        seconds: Mapping[int, float],
        measured: Mapping[int, Mapping[str, float]],
    ) -> None:
        """Record how a stage ended; clients that left it go on from the states that count."""
        for client, lost in answers.lost.items():
            before = (self._before_session or {}).get(client)
            if lost.kind == "StateLost":  # it begins anew in its next round
                self.exchange.states.pop(client, None)
            elif before is not None:
                self.exchange.states[client] = before
        steps = {client: seconds[client] for client in answers.replies}
        rest = [answers.arrived_s[client] - taken for client, taken in steps.items()]
        found = {
            "replies": len(answers.replies),
            "lost": len(answers.lost),
            "seconds": round(answers.seconds, 3),
            "upload_bytes": answers.bytes_up,
            "download_bytes": answers.bytes_down,
            "step_max": round(max(steps.values(), default=0.0), 3),
            "transport_max": round(max(rest, default=0.0), 3),
        }
        for key, value in found.items():
            self._of_round[key] = round(self._of_round.get(key, 0) + value, 3)
        line = {"round": number, "stage": answers.step + ENDED, **found}
        line["why"] = {client: each.reason for client, each in answers.lost.items()}
        self._stages.write(**line, **({"metrics": measured} if measured else {}))
        lost_ones = f", {len(answers.lost)} lost" * bool(answers.lost)
        self.tell(
            f"{answers.label}: {len(answers.replies)} replies{lost_ones} in {answers.seconds:.1f} s (at "
            f"most: step {found['step_max']:.1f}, transport {found['transport_max']:.1f})"
        )


def _norm(tree: Any) -> float:
    """Euclidean norm of all fractions of a pytree, in float64: squares of float32 do not overflow."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    squares = (np.sum(np.square(np.asarray(leaf, np.float64))) for leaf in leaves)
    return float(np.sqrt(sum(squares, np.float64(0))))


def _has_states(algorithm: FederatedAlgorithm, federation: Federation) -> bool:
    """True if clients of this method carry a state from round to round."""
    assert algorithm.sides is not None
    key = jax.random.key(0)
    side = algorithm.sides().client
    return bool(jax.tree.leaves(side.state_form(key, federation)))
