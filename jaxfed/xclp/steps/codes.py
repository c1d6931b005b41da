"""Lines 2 to 4 of Algorithm 1, client steps: codes of the vectors, and noise on codes and labels.

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

from jaxfed.kernels.lsh import streamed_bits
from jaxfed.privacy import randomized_response
from jaxfed.random_streams import Stream
from jaxfed.xclp.settings.parameters import Parameters
from jaxfed.xclp.steps.projection import setup

if TYPE_CHECKING:
    from jaxfed.secure.session.parties import Session


def client_codes(vectors: Sequence[np.ndarray], planes: jax.Array) -> list[np.ndarray]:
    """Lines 2 to 4, CS: B^(j) = sign(Pi V^(j)T), packed, uint32 [n_j, L / 32] a client.

    A row depends on its own vector and on Pi alone, so one call over all clients' rows stands for the clients
    working in parallel. The vectors stay in memory or on disk; the device holds a block of them at a time.
    """
    codes = streamed_bits(vectors, planes)
    return [codes[rows] for rows in rows_of([len(v) for v in vectors])]


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
    rows = rows_of([len(y) for y in labels])
    if p.bit_epsilon:
        joint = jnp.asarray(np.concatenate(codes))
        noisy = np.asarray(randomized_response.randomize_bits(joint, bits, p.bit_epsilon))
        codes = [noisy[own] for own in rows]
    if p.label_epsilon:
        answered = randomized_response.randomize_labels(
            np.concatenate(labels), answers, p.num_classes, p.label_epsilon
        )
        labels = [answered[own] for own in rows]
    return codes, labels


def rows_of(sizes: Sequence[int]) -> list[slice]:
    """R_j: the rows of the joint arrays that belong to client j."""
    ends = np.cumsum(sizes)
    return [slice(int(end) - size, int(end)) for size, end in zip(sizes, ends, strict=True)]


def rows_of_clients(sizes: Mapping[int, int]) -> dict[int, slice]:
    """R_j by client, from every client's number of rows, in the clients' order."""
    return dict(zip(sizes, rows_of(list(sizes.values())), strict=True))
