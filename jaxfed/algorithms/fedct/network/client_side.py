"""A client's side of FedCT on a network: it keeps its model, and answers one message at a time.

A client's state has its row of the learner's state as the bytes of an .npz file, which holds arrays alone.
Estimators are no part of it: they are fitted again from it (`jaxfed.learners.refitting`). Noise on labels
comes from the operating system's generator, so nobody else can remove it; in a simulation it comes from the
seed, and there a run over a network with noise differs.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.algorithms.fedct.client_turn import ClientWork, Message, fitted_answers
from jaxfed.algorithms.fedct.label_noise import released_marks
from jaxfed.algorithms.fedct.network import messages, summing_client
from jaxfed.algorithms.fedct.network.messages import TURN
from jaxfed.errors import ProtocolError
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.sides import ClientSide
from jaxfed.learners.client_fit import check_clients, speaking
from jaxfed.learners.learner import State
from jaxfed.privacy import randomized_response as rr
from jaxfed.secure.session.network import exchanges
from jaxfed.training.consensus.client_sums import ConsensusSums
from jaxfed.training.consensus.consensus import Consensus
from jaxfed.training.consensus.opened_tally import own_tally

NO_STATE = {"model": b"", **summing_client.NO_SUMMAND}


@dataclass(frozen=True, eq=False)
class CoTrainingClient:
    """A client of one run; its functions are those of a `ClientSide`.

    Attributes:
        work: the client's settings.
        consensus: the rule that the server applies.
        sums: how answers are added.
        mask_partners: of each client, under masks; 0: all.
        key: typed, of the models before the first round.
        federation: as the client knows it.
        draw: source of noise.
    """

    work: ClientWork
    consensus: Consensus
    sums: ConsensusSums
    mask_partners: int
    key: jax.Array
    federation: Federation
    draw: rr.DrawUniform = rr.from_system

    def answer(self, step: str, own: Any, request: Any, cohort: Cohort) -> tuple[Any, Any]:
        """Return the client's new state and its reply.

        Raises:
            ProtocolError: a letter that does not belong to the state.
        """
        if step == TURN:
            return self.turn(own, request, cohort)
        if self.sums == "plaintext":
            raise ProtocolError(f"a step {step!r}, and answers are not summed under masks")
        return summing_client.answered(step, own, request, self.sums, self.mask_partners)

    def turn(self, own: Any, request: Any, cohort: Cohort) -> tuple[Any, Any]:
        """Lines 3 to 6 of Algorithm 1."""
        check_clients(self.federation, self.work.num_classes, self.work.public)
        rows = self.work.privacy.known_rows(len(self.work.public))
        if request["rows"] != rows:  # fewer would be less noise than the settings say
            raise ProtocolError(f"noise for {request['rows']} labels, and not for {rows}")
        client = int(np.asarray(cohort.client_id)[0])
        message = Message(request["label"], request["weight"], request["rows"])
        key = jax.random.wrap_key_data(jnp.asarray(request["key"]))
        fit, answers = fitted_answers(
            self.work, self.restored(own["model"], client), cohort, message, key
        )
        speaks = bool(speaking(fit.client_id, answers)[0] >= 0)
        content, tally, abstains = (
            self.sent(answers[0], message.rows) if speaks else (b"", b"", False)
        )
        reply = messages.reply_form() | {
            "answers": content,
            "speaks": speaks,
            "abstains": abstains,
            "failed": bool(len(fit.failed)),
            **{name: float(fit.metrics.get(name, -1.0)) for name in ("train_loss", "fit_accuracy")},
            "clients": int(fit.metrics["clients"]),
        }
        kept = {"model": _to_bytes(fit.state, client), "tally": tally, "round": request["round"]}
        return NO_STATE | kept, reply

    def sent(self, answers: np.ndarray, rows: int) -> tuple[bytes, bytes, bool]:
        """Return bytes sent in the clear, or else kept as a summand; and whether labels are missing."""
        work, number = self.work, len(self.work.public)
        if work.privacy.has_noise:
            marks = released_marks(work.privacy, rows, answers, number, work.num_classes, self.draw)
            if self.sums != "plaintext":
                return b"", summing_client.tally_bytes(marks.astype(np.int32)), False
            content, abstains = messages.packed_marks(work, marks)
            return content, b"", abstains
        if self.sums != "plaintext":
            tally = own_tally(self.consensus, answers)
            return b"", summing_client.tally_bytes(tally), False
        abstains = work.question == "predict" and bool((answers < 0).any())
        return messages.packed_answers(work, answers), b"", abstains

    def restored(self, content: bytes, client: int) -> State:
        """Return the learner's state of all clients with this client's row; other rows are not read."""
        first = self.work.learner.init(self.key, self.federation)
        if not content:
            return first
        leaves, structure = jax.tree.flatten(first)
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            rows = [stored[str(number)] for number in range(len(leaves))]
        return jax.tree.unflatten(
            structure,
            [_with_row(leaf, row, client) for leaf, row in zip(leaves, rows, strict=True)],
        )


def co_training_client(
    work: ClientWork, consensus: Consensus, sums: ConsensusSums, mask_partners: int
) -> ClientSide:
    """Return a client's side of FedCT."""

    def placed(key: jax.Array, federation: Federation) -> ClientSide:
        here = CoTrainingClient(work, consensus, sums, mask_partners, key, federation)
        return side._replace(answer=here.answer)

    def nowhere(step: str, own: Any, request: Any, cohort: Cohort) -> tuple[Any, Any]:
        raise AssertionError("a client of FedCT needs its federation: `ClientSide.at`")

    side = ClientSide(
        lambda key, federation: NO_STATE,
        nowhere,
        lambda step, federation: (
            messages.turn_form(len(work.public)) if step == TURN else exchanges.REQUEST
        ),
        lambda key, federation: NO_STATE,
        placed,
    )
    return side


def _to_bytes(state: State, client: int) -> bytes:
    """The client's row of each leaf, as an .npz file."""
    rows = {
        str(number): np.asarray(_data(leaf)[client])
        for number, leaf in enumerate(jax.tree.leaves(state))
    }
    content = io.BytesIO()
    np.savez(content, **rows)  # type: ignore[arg-type]
    return content.getvalue()


def _with_row(leaf: Any, row: np.ndarray, client: int) -> Any:
    """A leaf [M, ...] with this row; rows of another shape than the leaf's replace all."""
    data = np.array(_data(leaf))
    if data.shape[1:] != row.shape:
        data = np.zeros((len(data), *row.shape), row.dtype)
    data[client] = row
    if _is_key(leaf):
        return jax.random.wrap_key_data(jnp.asarray(data))
    return jnp.asarray(data) if isinstance(leaf, jax.Array) else data


def _data(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
