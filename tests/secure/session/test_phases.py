"""Drivers in phases: the same sums, distances and frames in one process and by replayed clients."""

import itertools

import numpy as np
import pytest
from replayed_parties import Replayed, Seeded

from jaxfed.errors import ProtocolError
from jaxfed.kernels import knn
from jaxfed.secure import class_means, cross_steps, influence_columns, vote_sums
from jaxfed.secure.hamming import protocols
from jaxfed.secure.primitives.ring import FixedPoint
from jaxfed.secure.session import framing
from jaxfed.secure.session.channel import Channel
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.framing import Header
from jaxfed.xclp.steps.contributions import ColumnsClient, Sent

NUM_CLIENTS = 4
RNG = np.random.default_rng(0)
MARKS = {j: RNG.integers(0, 2, (7, 3)) for j in range(NUM_CLIENTS)}
CODES = {
    j: RNG.integers(0, 2**32, (size, 1), dtype=np.uint32) for j, size in enumerate((3, 1, 0, 2))
}
ROWS = {0: slice(0, 3), 1: slice(3, 4), 2: slice(4, 4), 3: slice(4, 6)}
VALUES = {j: RNG.normal(size=(6, 2)) for j in range(NUM_CLIENTS)}
SHOWN = {j: class_means.Shown(VALUES[j], np.arange(6) % (j + 2) > 0) for j in VALUES}


def votes(session, **options):
    return vote_sums.vote_histogram(session, MARKS, **options), session.contributors


def row_sums(session, **options):
    sums = cross_steps.sums_of_rows(session, VALUES, ROWS, **options)
    return session.results("finish") if isinstance(session, Replayed) else sums


def means(session, **options):
    return class_means.class_means(session, SHOWN, **options)


def columns(session):
    """Z^(j) of labels that are one-hot, by columns of S that the server sends two at a time."""
    s = np.arange(36, dtype=np.float32).reshape(6, 6)
    labels = {j: np.eye(own.stop - own.start, 3, dtype=np.float32) for j, own in ROWS.items()}
    parties = session.parties(ColumnsClient, labels, list(labels), num_points=6)
    sizes = {j: len(own) for j, own in labels.items()}
    positions = influence_columns.collected_positions(parties, session.endpoints[SERVER], sizes)
    for client, own in positions.items():
        product = Sent(parties, session.endpoints[SERVER], client, own, 6)
        if len(own):
            product.multiply(np.pad(s[:, own], ((0, 0), (0, 2))), own)
        product.finished()
    if isinstance(session, Replayed):
        return session.results("finished")
    return {j: parties("finished", [j])[j] for j in positions}


def neighbors(session):
    return cross_steps.nearest_others(session, CODES, 3, protocols.masked)


STEPS = {
    "votes": votes,
    "votes, resilient": lambda session: votes(session, is_resilient=True),
    "row sums": row_sums,
    "row sums, resilient": lambda session: row_sums(session, resilient=True),
    "row sums, signed": lambda session: row_sums(session, resilient=True, signed=True),
    "neighbors": neighbors,
}


ALSO = {
    "means": means,
    "means, resilient": lambda s: means(s, is_resilient=True),
    "columns": columns,
}


def assert_same(ours, theirs):
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        ours, theirs = list(ours.values()), [theirs[key] for key in ours]
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("step", [*STEPS, *ALSO])
def test_replayed_clients_send_the_same_frames(step):
    local, remote = Seeded(NUM_CLIENTS), Replayed(NUM_CLIENTS)
    run = {**STEPS, **ALSO}[step]
    assert_same(run(local), run(remote))
    sent = {
        client: [frame for answer in own.sent for frame in answer]
        for client, own in remote.remotes.items()
    }
    for client, frames in sent.items():
        routes = [own for (sender, _), own in local.channel.frames.items() if sender == client]
        assert sorted(frames) == sorted(itertools.chain(*routes))
    assert local.communication().metrics() == remote.communication().metrics()
    assert not remote.presence.gone


NO_INPUTS = dict.fromkeys(range(NUM_CLIENTS))


@pytest.mark.parametrize(
    ("private", "local", "run"),
    [
        (
            MARKS,
            votes,
            lambda session: (
                vote_sums.vote_histogram(session, NO_INPUTS, shape=(7, 3)),
                session.contributors,
            ),
        ),
        (
            VALUES,
            row_sums,
            lambda session: (
                cross_steps.sums_of_rows(session, NO_INPUTS, ROWS, num_classes=2)
                and session.results("finish")
            ),
        ),
    ],
    ids=["votes", "row sums"],
)
def test_the_server_has_no_private_input(private, local, run):
    session = Replayed(NUM_CLIENTS, private=private)
    assert_same(local(Seeded(NUM_CLIENTS)), run(session))


def killed(client, number):
    """The client does not answer from its exchange `number` on."""
    return lambda who, exchange, frames: None if (who, exchange) == (client, number) else frames


def is_right(step, outcome, session, gone):
    """The outcome is that of the clients that stayed, with the contribution of who left or without."""
    staying = [j for j in range(NUM_CLIENTS) if j not in gone]
    if step.startswith("votes"):
        histogram, summed = outcome
        assert set(staying) <= set(summed)
        np.testing.assert_array_equal(histogram, sum(MARKS[j] for j in summed))
    elif step.startswith("row sums"):
        assert sorted(outcome) == staying
        least = sum(VALUES[j] for j in staying)
        for mine, own in outcome.items():
            possible = [least, *(least + VALUES[j] for j in gone)]
            error = min(np.max(np.abs(own - z[ROWS[mine]]), initial=0) for z in possible)
            assert error <= FixedPoint(NUM_CLIENTS).error
    else:
        assert outcome.clients == staying
        _, distances = knn.hamming_knn(np.concatenate([CODES[j] for j in staying]), 3)
        np.testing.assert_array_equal(outcome.distances, distances)


@pytest.mark.sample(5)
@pytest.mark.parametrize("gone", [0, 3])
@pytest.mark.parametrize("step", STEPS)
def test_a_client_killed_in_any_phase_is_lost(step, gone):
    for number in itertools.count():
        session = Replayed(NUM_CLIENTS, killed(gone, number))
        outcome = STEPS[step](session)
        if not session.presence.gone:
            break
        assert session.presence.gone == {gone}
        is_right(step, outcome, session, {gone})
    assert number >= 3


def flipped(frame):
    """Not authentic any more; a key of setup, which nothing protects, is no element of the field."""
    return frame[:-1] + bytes([frame[-1] ^ 128 if len(frame) > 102 else 255])


GARBAGE = {
    "nothing": lambda frames: [],
    "noise": lambda frames: [b"garbage" * 30] * len(frames),
    "cut": lambda frames: [frame[:-1] for frame in frames],
    "flipped": lambda frames: [flipped(frame) for frame in frames],
    "another's": lambda frames: [
        Header(bytes(16), 2, SERVER, "hello", 0, 32, False).packed() + bytes(32)
    ],
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("kind", GARBAGE)
@pytest.mark.parametrize("step", STEPS)
def test_garbage_to_the_server_loses_its_sender(step, kind):
    honest = Replayed(NUM_CLIENTS)
    STEPS[step](honest)
    num_lost = 0
    for number in range(len(honest.names)):
        changed = []

        def fault(who, exchange, frames, number=number, changed=changed):
            for_server = [f for f in frames if framing.parsed(f).header.receiver == SERVER]
            if (who, exchange) != (3, number) or not for_server:
                return frames
            changed.append(for_server)
            return [f for f in frames if f not in for_server] + GARBAGE[kind](for_server)

        session = Replayed(NUM_CLIENTS, fault)
        outcome = STEPS[step](session)
        assert session.presence.gone == ({3} if changed else set())
        is_right(step, outcome, session, session.presence.gone)
        num_lost += bool(changed)
    assert num_lost >= 2


class Liar:
    """An endpoint that sends other bytes in messages of one kind, as many."""

    def __init__(self, endpoint, kind):
        self._endpoint, self._kind = endpoint, kind

    def __getattr__(self, name):
        return getattr(self._endpoint, name)

    def send(self, receiver, kind, payload):
        lie = (
            np.random.default_rng(0).bytes(len(payload)) if kind.startswith(self._kind) else payload
        )
        self._endpoint.send(receiver, kind, lie)


@pytest.mark.parametrize("liar", [0, 3])
@pytest.mark.parametrize("kind", ["points", "shares"])
def test_whose_shares_fit_nobody_elses_is_lost(liar, kind):
    """Each pair of clients that disagrees has two suspects, all of them together have one."""
    codes = {j: RNG.integers(0, 2**32, (8, 1), dtype=np.uint32) for j in range(NUM_CLIENTS)}
    session = Seeded(NUM_CLIENTS)
    session.endpoints[liar] = Liar(session.endpoints[liar], kind)
    found = cross_steps.nearest_others(session, codes, 3, protocols.masked)
    assert session.presence.gone == {liar}
    _, distances = knn.hamming_knn(np.concatenate([codes[j] for j in found.clients]), 3)
    np.testing.assert_array_equal(found.distances, distances)
    session = Seeded(2)
    session.endpoints[1] = Liar(session.endpoints[1], kind)
    with pytest.raises(ProtocolError, match="shares of clients 0 and 1 do not fit together"):
        cross_steps.nearest_others(session, {j: codes[j] for j in (0, 1)}, 3, protocols.masked)


def test_frames_of_others_and_for_others_are_refused():
    frame = Header(bytes(16), 1, SERVER, "hello", 0, 0, False).packed()
    for address, sender in ((SERVER, 0), (0, None)):
        with pytest.raises(ProtocolError, match="frame"):
            Channel.of_party(address).feed([frame], sender)
