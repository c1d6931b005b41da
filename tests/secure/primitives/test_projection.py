"""Pi out of the group secret: its entries, how much secret is in it, and XCLP with it."""

from statistics import NormalDist

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats
from secure_labels import digits, disagreement

from jaxfed import xclp
from jaxfed.errors import ProtocolError
from jaxfed.secure import cross_steps
from jaxfed.secure.primitives import prg
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.parties import Session
from jaxfed.xclp.settings.parameters import PROJECTIONS

SEED = bytes(range(32))
PARAMETERS = {"num_classes": 10, "num_bits": 64, "num_neighbors": 3, "alpha": 0.9}


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_entries_are_normal_quantiles_of_aes(dim):
    """By another AES mode and another quantile function, word by word."""
    encryptor = Cipher(algorithms.AES(SEED), modes.ECB()).encryptor()
    blocks = -(-dim // 2)
    planes = prg.hyperplanes(SEED, 32, dim)
    for row in (0, 1, 31):
        counters = range(row * blocks, (row + 1) * blocks)
        stream = b"".join(encryptor.update(number.to_bytes(16, "big")) for number in counters)
        for column in range(dim):
            word = int.from_bytes(stream[8 * column : 8 * column + 8], "little")
            expected = NormalDist().inv_cdf(((word >> 11) + 0.5) / 2**53)
            assert planes[row, column] == pytest.approx(expected, rel=1e-6)


def test_entries_are_independent_normals():
    planes = prg.hyperplanes(SEED, 512, 65)
    assert planes.dtype == np.float32
    assert stats.kstest(planes.ravel().astype(np.float64), "norm").pvalue > 1e-4
    for axis in (0, 1):
        products = (planes * np.roll(planes, 1, axis)).mean()
        assert abs(products) < 5 / np.sqrt(planes.size)
    other = prg.hyperplanes(bytes(32), 512, 65)
    assert abs((planes * other).mean()) < 5 / np.sqrt(planes.size)


def test_rows_stay_when_there_are_more():
    planes = prg.hyperplanes(SEED, 1024, 3)
    np.testing.assert_array_equal(planes[:320], prg.hyperplanes(SEED, 320, 3))


def test_all_bits_of_the_seed_count():
    """Each of the 256 alone gives another first row; a seed that is shorter is none."""
    rows = {prg.hyperplanes(SEED, 1, 2).tobytes()}
    for bit in range(256):
        changed = bytearray(SEED)
        changed[bit // 8] ^= 1 << bit % 8
        rows.add(prg.hyperplanes(bytes(changed), 1, 2).tobytes())
    assert len(rows) == 257
    with pytest.raises(ValueError, match="32 bytes"):
        prg.hyperplanes(SEED[:16], 32, 2)


def test_clients_draw_the_same_and_the_server_cannot():
    session, other = Session(3), Session(3)
    planes = cross_steps.hyperplanes(session, 64, 3)
    for client in range(3):
        seed = session.endpoints[client].group_seed("xclp/projection")
        np.testing.assert_array_equal(prg.hyperplanes(seed, 64, 3), planes)
    with pytest.raises(ProtocolError, match="no group secret"):
        session.endpoints[SERVER].group_seed("xclp/projection")
    assert not np.array_equal(cross_steps.hyperplanes(other, 64, 3), planes)


def labels(monkeypatch, planes, **parameters):
    """Labels of three clients, and the Pi that made them; `planes`, if given, is used in its place."""
    used = []
    for name in ("seed", "group_secret"):
        draw = PROJECTIONS[name]

        def recorded(*arguments, draw=draw):
            used.append(draw(*arguments) if planes is None else planes)
            return used[-1]

        monkeypatch.setitem(PROJECTIONS, name, recorded)
    predictions = xclp.propagate_labels(*digits(3, 60), **PARAMETERS, **parameters)
    monkeypatch.undo()
    return predictions, used[-1]


def test_labels_are_those_of_plaintext_with_the_same_hyperplanes(monkeypatch):
    secret = {
        "projection": "group_secret",
        "hamming": "masked",
        "row_sums": "masked",
        "influence": "columns",
    }
    secure, planes = labels(monkeypatch, None, **secret)
    plain, _ = labels(monkeypatch, planes)
    assert disagreement(secure, plain, 3) <= 1
    again, others = labels(monkeypatch, None, **secret)
    assert not np.array_equal(planes, others)
    assert any(not np.array_equal(a.scores, b.scores) for a, b in zip(secure, again, strict=True))
