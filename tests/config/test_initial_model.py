"""`training.initial_model`: what cannot be started from is refused before anything is made."""

from functools import partial

import jax
import numpy as np
import pytest
from small_simulations import prepared

from jaxfed.config import file as config_file
from jaxfed.config.assembly import Ingredients, checksums, make_model
from jaxfed.config.check import check
from jaxfed.config.data.simulation import Simulation
from jaxfed.errors import UsageError
from jaxfed.host.checkpoint import Checkpoints

CONFIG = "ml_collections_configs/fedavg_xclp.py:smoke"
SETTINGS = ["algorithm=fedavg", "baselines=", "num_repeats=2", "dataset.train_size=200"]


def load(*overrides):
    return config_file.load(CONFIG, [*SETTINGS, *overrides])


def save(folder, *overrides, repeats=(0, 1)):
    """What a run of this config leaves under states/, as `initial_model` names it."""
    config = load(*overrides)
    model = make_model(config, Simulation(config).federation(0))
    for repeat in repeats:
        state = {"model": model.init(jax.random.key(repeat)), "round": 3}
        record = {"round": 3, "network": config.model.name}
        Checkpoints(folder / "states" / f"fedavg-{repeat}").save(3, state, record)
    return f"{folder}/states/fedavg-{{repeat}}"


def check_all(initial_model, *overrides):
    """What `launch.run` checks before it makes a workdir."""
    config = load(*overrides)
    config.training.initial_model = initial_model
    check(config)
    prepared(config)
    return config


def test_a_state_of_the_same_model_is_where_training_starts(tmp_path):
    config = check_all(save(tmp_path))
    federation = Simulation(config).federation(1)
    expected = make_model(config, federation).init(jax.random.key(1))
    jax.tree.map(
        np.testing.assert_array_equal,
        Ingredients(config, federation, 1).training().initial_model,
        expected,
    )


def other_classes(place):
    x, y = np.zeros((60, 8, 8, 1), np.uint8), np.arange(60) % 3
    np.savez(place / "three.npz", x=x, y=y)
    return save(place)


def damaged(place):
    given = save(place)
    (file,) = (place / "states" / "fedavg-1").iterdir()
    content = bytearray(file.read_bytes())
    content[500] ^= 1
    file.write_bytes(content)
    return given


def folder_of(place, name):
    save(place)
    (place / "states" / "fedavg-0" / "empty").mkdir()
    return str(place / name)


THREE = ("dataset.name={}/three.npz", "dataset.train_size=0")
CASES = [  # what is saved, overrides, words of the line
    (
        lambda place: save(place, "model.hidden=128"),
        ("model.hidden=64",),
        r"it has float32\[128.*\], the model float32\[64.*\]",
    ),
    (
        lambda place: save(place, "model.hidden=64"),
        ("model.hidden=(64,64)",),
        "is not this method's state: it lacks ",
    ),
    (other_classes, THREE, r"it has float32\[10\], the model float32\[3\]"),
    (lambda place: save(place, repeats=(0,)), (), "states/fedavg-1 holds no saved state"),
    (damaged, (), "damaged checkpoint"),
    (partial(folder_of, name="states/fedavg-0/empty"), (), "holds no saved state; give WORKDIR"),
]


@pytest.mark.parametrize(("saved", "overrides", "words"), CASES)
def test_a_state_that_training_cannot_start_from_is_refused(tmp_path, saved, overrides, words):
    given = saved(tmp_path)
    with pytest.raises(UsageError, match=f"^config.training.initial_model=.*{words}"):
        check_all(given, *(text.format(tmp_path) for text in overrides))


def test_states_and_weights_that_change_are_noticed(tmp_path):
    given = save(tmp_path)
    config = load("fedavg.training.learning_rate=0.1", f"fedavg.training.initial_model={given}")
    simulation = Simulation(config)
    before = simulation.data_checksums()
    save(tmp_path, "model.hidden=8", repeats=[1])
    key = "fedavg.training.initial_model of repeat"
    after = simulation.data_checksums()
    assert {name for name in after if before[name] != after[name]} == {f"{key} 1"}
    assert f"{key} 0" in before

    weights = tmp_path / "efficientnet_lite0.safetensors"
    weights.write_bytes(b"1")
    wanted = f"dataset.root={tmp_path}"
    sources = {
        "preprocessing.network": load("preprocessing.kind=pretrained", wanted),
        "training.initial_model": load(
            "training.initial_model=pretrained", "model.name=efficientnet_lite0", wanted
        ),
    }
    first = {name: checksums(config) for name, config in sources.items()}
    weights.write_bytes(b"2")
    for name, config in sources.items():
        assert first[name].keys() == {name}
        assert checksums(config) != first[name]
    config = load("preprocessing.kind=federated_features", f"training.initial_model={given}")
    config.algorithm = "xclp"  # which trains nothing of its own
    assert len(checksums(config)) == 2
    assert checksums(load()) == {}
