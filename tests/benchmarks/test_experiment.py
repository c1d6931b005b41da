"""The whole-run benchmark: all are given the same experiment, and its runs are told of twice."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from benchmarks.methods import experiment
from benchmarks.peers import jax_network, played, task
from benchmarks.timing import contest
from benchmarks.timing.record import as_line
from jaxfed.config import file as config_file
from jaxfed.config.assembly import make_model
from jaxfed.config.data.simulation import Simulation


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Four clients of few images, no Fashion-MNIST."""
    monkeypatch.setenv("JAXFED_DATA", str(tmp_path / "nothing"))
    monkeypatch.setattr(contest, "REST", 0)
    for name, value in {"CLIENTS": 4, "TEST": 20, "ROUNDS": 3}.items():
        monkeypatch.setattr(experiment, name, value)
    monkeypatch.setattr(experiment, "EXAMPLES", {"mlp": 10, "cnn": 10})
    settings_of = experiment.settings_of

    def few(network, folder):
        return settings_of(network, folder) | {"cohort_size": 2, "training.batch_size": 5}

    monkeypatch.setattr(experiment, "settings_of", few)
    return tmp_path


def config_of(network, folder):
    keys = experiment.settings_of(network, folder)
    return config_file.load(str(experiment._ROOT / experiment._CONFIG), experiment.texts(keys))


@pytest.mark.sample(1)
@pytest.mark.parametrize("network", experiment.NETWORKS)
def test_a_task_is_the_configs_experiment_its_network_included(small, network):
    config = config_of(network, small)
    federation = Simulation(config).federation(config.seed)
    made = experiment.task_of(config)
    made.save(small)
    given = task.load(small)
    assert given.settings == made.settings == task.Settings(3, 2, 5, 0.1, 5, 10)
    assert given.clients.shape == (4, 10)
    for client, rows in enumerate(given.clients):
        points = federation.partition.labeled[client]
        np.testing.assert_array_equal(given.images[rows], federation.x[points])
        np.testing.assert_array_equal(given.labels[rows], federation.y[points])
    np.testing.assert_array_equal(given.test_images, federation.x[federation.test])
    assert len(given.test_labels) == 20
    np.testing.assert_allclose(given.x.mean(), 0, atol=1e-5)
    np.testing.assert_allclose(given.x.std(), 1, rtol=1e-5)
    model = make_model(config, federation)
    state = model.init(jax.random.key(0))
    for path, variable in nnx.to_flat_state(state):
        variable[...] = jnp.asarray(given.start[".".join(map(str, path))])
    expected = np.asarray(model.apply(state, jnp.asarray(given.test_images)))
    with jax.numpy_rank_promotion("allow"):  # as users of other frameworks write it
        found = jax_network.logits(given.start, jnp.asarray(given.x_test))
    np.testing.assert_allclose(found, expected, atol=1e-4)
    torch_network = pytest.importorskip("benchmarks.peers.torch_network", exc_type=ImportError)
    theirs = torch_network.network(given.start)(torch_network.images(given.x_test))
    np.testing.assert_allclose(theirs.detach().numpy(), expected, atol=1e-4)


def test_one_run_is_timed_from_start_to_end_and_by_its_rounds(small, monkeypatch):
    """Three samples and one before them, no more, of each; the second contest plays nothing."""
    calls = []

    def play(name, median):
        calls.append(name)
        return played.Played([9.0, median, 0.0], 0.5 if name == "jaxfed" else 0.5125)

    monkeypatch.setattr(experiment, "NETWORKS", {"mlp": experiment.NETWORKS["mlp"]})
    monkeypatch.setattr(experiment, "jaxfed", lambda folder, keys: play("jaxfed", 0.25))
    monkeypatch.setattr(experiment, "peer", lambda folder, file: partial(play, file, 0.5))
    whole, rounds = (
        contest.run_contest(drawn, {}) for drawn in experiment.experiment(with_peers=True)
    )
    names = list(experiment.PEERS.values())
    assert calls == ["jaxfed", *names] * 4
    assert whole["case"]["data"] == "noisy_patterns"
    assert whole["figures"].keys() == {"s at the first start", "accuracy"}
    assert whole["agreement"]["Flower"] == "accuracies 0.500 and 0.512"
    assert all(len(seconds) == 3 for seconds in whole["seconds"].values())
    assert rounds["median_seconds"] == {"jaxfed": 0.25} | dict.fromkeys(experiment.PEERS, 0.5)
    assert rounds["peers"]["FedJAX"] == {
        "ratio": 2,
        "ratio_range": [2, 2],
        "target": 1.2,
        "scaled_from_part": None,
        "unreliable": None,
    }
    assert "FedJAX: 500.00 ms, 2.00 x (target 1.2)" in as_line(rounds)


def test_accuracies_beyond_chance_are_no_contest():
    good, bad = (experiment.Run(1.0, played.Played([1.0], share)) for share in (0.8, 0.7))
    with pytest.raises(AssertionError, match=r"accuracies 0\.8 and 0\.7"):
        experiment._equally_good(good, bad)


@pytest.mark.slow
def test_our_run_is_the_launchers_and_leaves_what_it_measured(small):
    keys = experiment.settings_of("mlp", small) | {"model.hidden": (8,)}
    run = experiment.jaxfed(small, keys)
    assert len(run.round_seconds) == 2
    assert all(seconds > 0 for seconds in run.round_seconds)
    assert 0 <= run.accuracy <= 1
    assert any((small / "jaxfed" / "checkpoints").iterdir())
