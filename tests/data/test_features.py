import jax
import numpy as np
import pytest
from efficientnet_weights import write_weights

from jaxfed.data import features as module
from jaxfed.data.features import pretrained_features
from jaxfed.errors import UsageError
from jaxfed.kernels.images import squares
from jaxfed.models import efficientnet as networks
from jaxfed.models.efficientnet import NETWORKS, efficientnet, read_weights

NETWORK = "efficientnet_lite0"
SIZE = 32


@pytest.fixture(scope="module", autouse=True)
def three_blocks():
    """EfficientNets of 3 blocks in place of 16: their first one, a stride, a sum."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(networks, "STAGES", networks.STAGES[:2])
        yield


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / f"{NETWORK}.safetensors"
    template = jax.eval_shape(efficientnet(NETWORK).init, jax.random.key(0))
    rng = np.random.default_rng(0)

    def positive(leaf):
        fan_in = np.prod(leaf.shape[:-1])
        return (rng.uniform(-0.7, 1.3, leaf.shape) ** 2 / np.sqrt(fan_in)).astype(np.float32)

    write_weights(path, jax.tree.map(positive, template))
    return path


@pytest.fixture
def extract(tmp_path, monkeypatch, weights):
    """`pretrained_features`, small, with a cache of its own and shards of 4 images."""
    monkeypatch.setenv("JAXFED_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "SHARD_SIZE", 4)
    monkeypatch.setattr(module, "_batch_size", lambda: 2)

    def call(images, **given):
        return pretrained_features(images, **{"weights": weights, "image_size": SIZE} | given)

    return call


@pytest.fixture
def no_computing(monkeypatch):
    def refuse(*_):
        raise AssertionError("computed what the cache holds")

    return lambda: monkeypatch.setattr(module, "_extractor", refuse)


def _images(n=11, channels=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, 8, 8, channels)).astype(np.uint8)


def _files(tmp_path):
    return sorted(tmp_path.glob("features-*/x.npy"))


@pytest.mark.slow
def test_each_row_is_the_networks_features_of_the_prepared_image(extract, weights):
    images = _images()
    model = efficientnet(NETWORK)
    state = read_weights(weights, jax.eval_shape(model.init, jax.random.key(0)))
    expected = jax.jit(model.features)(state, squares(images, SIZE, *NETWORKS[NETWORK][:2]))
    expected = np.asarray(expected)
    assert expected.std(0).max() > 0  # images differ
    computed = extract(images)
    assert computed.dtype == np.float32
    assert computed.shape == (11, 1280)
    np.testing.assert_allclose(computed, expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.slow
def test_grey_is_repeated_and_floats_are_scaled(extract):
    grey = _images(3, channels=1)
    expected = extract(np.repeat(grey, 3, axis=-1))
    scale = np.abs(expected).max()
    np.testing.assert_allclose(extract(grey), expected, atol=1e-5 * scale)
    np.testing.assert_allclose(extract(grey / 255), expected, atol=1e-4 * scale)


def test_what_is_kept_is_not_computed_again(extract, no_computing, tmp_path):
    seen = []
    first = extract(_images())
    assert len(_files(tmp_path)) == 3
    no_computing()
    np.testing.assert_array_equal(extract(_images(), progress=seen.append), first)
    assert seen == [4, 8, 11]
    with pytest.raises(AssertionError):
        extract(_images(seed=1))


def test_an_interrupted_extraction_resumes(extract, tmp_path):
    expected = extract(_images())
    for file in _files(tmp_path):
        file.unlink()
    computed = []

    def interrupt(done):
        computed.append(done)
        if done >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract(_images(), progress=interrupt)
    assert computed == [0, 4]
    assert len(_files(tmp_path)) == 1  # the whole shard, and nothing half-written
    seen = []
    np.testing.assert_array_equal(extract(_images(), progress=seen.append), expected)
    assert seen == [4, 4, 8, 8, 11]


@pytest.mark.parametrize(
    ("images", "given", "message"),
    [
        (np.zeros((3, 8, 8), np.uint8), {}, r"shape \(3, 8, 8\)"),
        (np.zeros((3, 8, 8, 3), np.int32), {}, "int32"),
        (np.full((3, 8, 8, 3), 16.0), {}, "0 to 1"),
        (np.full((3, 8, 8, 3), np.nan), {}, "0 to 1"),
    ],
)
def test_what_cannot_be_used_is_refused(extract, images, given, message):
    with pytest.raises(UsageError, match=message) as refused:
        extract(images, **given)
    assert "\n" not in str(refused.value)
