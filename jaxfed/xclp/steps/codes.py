"""Lines 1 to 4 of Algorithm 1: the session, hyperplanes Pi, codes, and noise on codes and labels.

Noise is an extension that the paper names as future work. Every client randomizes its bits and
labels before anything leaves it (`bit_epsilon`, `label_epsilon`). The server and the clients correct the bias
where they use them. `jaxfed.privacy.randomized_response` states what each guarantees, and what it does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.kernels import lsh
from jaxfed.kernels.lsh import streamed_bits
from jaxfed.privacy import randomized_response
from jaxfed.random_streams import Stream
from jaxfed.xclp.settings.parameters import STAGES, Parameters

if TYPE_CHECKING:
    from jaxfed.secure.session.channel import Presence
    from jaxfed.secure.session.parties import Session


def open_session(
    num_clients: int, p: Parameters, presence: Presence | None, client_ids: Sequence[int] | None
) -> Session | None:
    """Line 1, XS, if a step is a protocol: the parties agree on keys, the clients on a shared secret.

    The clients that leave are those of `presence`; None: of `p.presence`, which uses `client_ids`, their
    numbers in the federation; None: 0, 1, ....
    """
    if not p.has_session:
        return None
    # Imported here, because only protocols need its packages.
    from jaxfed.secure.session.parties import Session

    if presence is None:
        from jaxfed.secure.session.channel import presence_of

        ids = range(num_clients) if client_ids is None else client_ids
        presence = presence_of(p.departures, ids, STAGES)
    return Session(num_clients, presence=presence)


def setup(seed: int) -> jax.Array:
    """Line 1, XS, of a simulation: the seed comes from the experiment and is no secret.

    The key's 64 bits are the seed's lower ones; further words of 32 bits are folded in. (`jax.random.key`
    would leave out all but 32 bits.) A seed below 2^32 gives the key that `jax.random.key` gives.
    """
    low = np.array([seed >> 32 & 0xFFFFFFFF, seed & 0xFFFFFFFF], np.uint32)
    key = jax.random.wrap_key_data(jnp.asarray(low), impl="threefry2x32")
    rest = seed >> 64
    while rest:
        key = jax.random.fold_in(key, np.uint32(rest & 0xFFFFFFFF))
        rest >>= 32
    return key


def drawn_seed(key: jax.Array) -> int:
    """A seed for `setup`, drawn with a simulation's key: 64 bits, as many as the key has."""
    low, high = np.asarray(_two_words(key)).tolist()
    return high << 32 | low


@jax.jit
def _two_words(key: jax.Array) -> jax.Array:
    return jax.random.bits(key, (2,))


def projection_of_seed(seed: int, num_bits: int, dim: int, session: Session | None) -> jax.Array:
    """Line 3, CS: Pi, float32 [L, d], the same at all clients and in every run."""
    del session
    return lsh.hyperplanes(setup(seed), num_bits, dim)


def projection_of_group_secret(
    seed: int, num_bits: int, dim: int, session: Session | None
) -> jax.Array:
    """Line 3, CS: Pi, float32 [L, d], the same at all clients and different in every run."""
    from jaxfed.secure import cross_steps

    del seed
    assert session is not None  # `Parameters` has checked it
    return jnp.asarray(cross_steps.hyperplanes(session, num_bits, dim))


def client_codes(vectors: Sequence[np.ndarray], planes: jax.Array) -> list[np.ndarray]:
    """Lines 2 to 4, CS: B^(j) = sign(Pi V^(j)T), packed, uint32 [n_j, L / 32] a client.

    A row depends on its own vector and on Pi alone, so one call over all clients' rows stands for the clients
    working in parallel. The vectors stay in memory or on disk; the device holds a block of them at a time.
    """
    codes = streamed_bits(vectors, planes)
    return [codes[rows] for rows in rows_of(vectors)]


def randomized(
    codes: list[np.ndarray], labels: list[np.ndarray], p: Parameters, session: Session | None
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """CS: randomized response on each client's bits and labels, if `p` asks for it.

    With a session, the operating system draws the noise, and nobody can remove it. In a plaintext simulation
    it comes from the seed, with separate keys for bits and for labels. The noise of different points is
    independent, so one call over all points stands for the clients working in parallel.
    """
    if not (p.bit_epsilon or p.label_epsilon):
        return codes, labels
    bits: randomized_response.DrawUniform = randomized_response.from_system
    answers: randomized_response.DrawUniform = randomized_response.from_system
    if not session:
        keys = jax.random.split(jax.random.fold_in(setup(p.seed), Stream.NOISE))
        bits, answers = map(randomized_response.from_key, keys)
    rows = rows_of(labels)
    if p.bit_epsilon:
        joint = jnp.asarray(np.concatenate(codes))
        noisy = np.asarray(randomized_response.randomize_bits(joint, bits, p.bit_epsilon))
        codes = [noisy[part] for part in rows]
    if p.label_epsilon:
        answered = randomized_response.randomize_labels(
            np.concatenate(labels), answers, p.num_classes, p.label_epsilon
        )
        labels = [answered[part] for part in rows]
    return codes, labels


def rows_of(clients: Sequence[np.ndarray]) -> list[slice]:
    """R_j: the rows of the joint arrays that belong to client j, by the clients' arrays."""
    return list(rows_of_clients(dict(enumerate(clients))).values())


def rows_of_clients(clients: Mapping[int, np.ndarray]) -> dict[int, slice]:
    """R_j by client, from the clients' arrays [n_j, ...], in the clients' order."""
    ends = np.cumsum([len(points) for points in clients.values()]).tolist()
    return {j: slice(end - len(clients[j]), end) for j, end in zip(clients, ends, strict=True)}
