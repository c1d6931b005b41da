"""Lines 1 and 3 of Algorithm 1: the session of all parties, and the random hyperplanes Pi of the clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.kernels import lsh
from jaxfed.xclp.settings import departures
from jaxfed.xclp.settings.parameters import Parameters

if TYPE_CHECKING:
    from jaxfed.secure.session.channel import Presence
    from jaxfed.secure.session.parties import Session


def open_session(
    num_clients: int,
    p: Parameters,
    presence: Presence | None,
    client_ids: Sequence[int] | None,
) -> Session | None:
    """Line 1, XS, if a step is a protocol: the parties agree on keys, the clients on a shared secret.

    Args:
        num_clients: number of clients that are invited.
        p: the settings.
        presence: the clients that leave; None: those of `p.presence`.
        client_ids: the clients' numbers in the federation, as `p.presence` uses them; None: 0, 1, ....
    """
    if not p.has_session:
        return None
    # Imported here, because only protocols need its packages.
    from jaxfed.secure.session.parties import Session

    if p.mask_partners:
        from jaxfed.secure.session.neighborhoods import check_partners

        check_partners(num_clients, p.mask_partners, owner="xclp")
    if presence is None:
        ids = range(num_clients) if client_ids is None else client_ids
        presence = departures.presence_of(p.presence, ids, p.seed)
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
