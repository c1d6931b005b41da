"""Every checksum and digest sees all of its input: one changed byte anywhere gives another one."""

import numpy as np
import pytest

from jaxfed.config.data import simulation
from jaxfed.data import features
from jaxfed.federation.execution import digest_of
from jaxfed.host import storage
from jaxfed.models.encoders import Encoder

SIZE = 3 * 2**20 + 5  # files are read in blocks of 2^20 bytes
PLACES = [0, 1, 4095, 4096, 2**20 - 1, 2**20, 2**20 + 1, SIZE // 2, 2 * 2**20, SIZE - 6, SIZE - 1]


def of_a_file(content, folder):
    (folder / "file").write_bytes(content.tobytes())
    return storage.file_checksum(folder / "file")


def of_images(content, folder):
    (folder / "weights").write_bytes(b"weights")
    return features._cache_key(content, Encoder("network", (folder / "weights",), 32))


def of_weights(content, folder):
    (folder / "weights").write_bytes(content.tobytes())
    images = np.zeros(3, np.uint8)
    return features._cache_key(images, Encoder("network", (folder / "weights",), 32))


DIGESTS = {
    "file": of_a_file,
    "arrays of a run": lambda content, folder: simulation._checksum(content),
    "arguments of a cache": lambda content, folder: digest_of({"a": [content]}),
    "images of features": of_images,
    "weights of features": of_weights,
}


@pytest.mark.parametrize("name", DIGESTS)
def test_a_changed_byte_anywhere_gives_another_digest(name, tmp_path, monkeypatch):
    monkeypatch.setenv("JAXFED_CACHE", str(tmp_path / "cache"))
    digest = DIGESTS[name]
    content = np.random.default_rng(0).integers(0, 256, SIZE, dtype=np.uint8)
    expected = digest(content, tmp_path)
    assert digest(content.copy(), tmp_path) == expected
    for place in PLACES:
        changed = content.copy()
        changed[place] ^= 1
        assert digest(changed, tmp_path) != expected, place
