"""Public keys of Paillier's encryption: bases whose powers would hide nothing are refused."""

import gmpy2
import pytest
from gmpy2 import mpz

from jaxfed.errors import ProtocolError
from jaxfed.secure.primitives import paillier

BITS = 256
KEY = paillier.generate_key(BITS, insecure=True)
N, P, Q = KEY.public.n, mpz(KEY.phe.p), mpz(KEY.phe.q)
B = KEY.public.base


def joined(modulo_p, modulo_q):
    """The number below N with these remainders modulo p and q."""
    return (modulo_p + P * ((modulo_q - modulo_p) * gmpy2.invert(P, Q) % Q)) % N


def lifted(root):
    """The N-th power of a number below N: a ciphertext's remainder modulo N, as B is one."""
    return gmpy2.powmod(root, N, N * N)


def received(base):
    message = paillier.to_bytes([N], BITS // 8) + paillier.to_bytes([base], BITS // 4)
    return paillier.PublicKey.from_bytes(message, BITS)


BASES = {
    "1": mpz(1),
    "-1": N * N - 1,
    "1 modulo N": 1 + N,
    "1 modulo N, any": 1 + 12345 * N,
    "-1 modulo N": N - 1,
    "1 modulo p": lifted(joined(1, B % Q)),
    "-1 modulo p": lifted(joined(P - 1, B % Q)),
    "-1 modulo q": lifted(joined(B % P, Q - 1)),
    "1 modulo p, -1 modulo q": lifted(joined(1, Q - 1)),
}


@pytest.mark.parametrize("name", BASES)
def test_bases_of_a_small_order_are_refused(name):
    with pytest.raises(ProtocolError, match="base has a small order"):
        received(BASES[name])


def test_bases_of_keys_as_they_are_made_pass():
    for _ in range(20):
        public = paillier.generate_key(128, insecure=True).public
        message = public.to_bytes()
        assert paillier.PublicKey.from_bytes(message, 128).base == public.base
