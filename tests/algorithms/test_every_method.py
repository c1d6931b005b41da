"""What every method must hold, run over ALGORITHMS: a new one is checked here without an edit."""

import dataclasses
import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilations import num_compilations

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import file as config_file
from jaxfed.config.assembly import make_algorithm
from jaxfed.config.simulation import Simulation
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.sampling import sample_clients
from jaxfed.host.checkpoint import Checkpoints

pytestmark = pytest.mark.usefixtures("shared_programs")

TRAINED = [
    name for name in ALGORITHMS if "training" in inspect.signature(ALGORITHMS[name]).parameters
]
SEED = 3


SMALL = (
    "dataset.train_size=500",
    "federation.num_clients=8",
    "federation.partition=dirichlet",
    "federation.dirichlet_alpha=1.0",
    "federation.num_labeled=160",
    "xclp.num_bits=256",
    "xclp.num_neighbors=3",
)


@functools.cache
def arranged(name, strategy="auto"):
    """A method for digits among clients of unequal sizes, as its kind of experiment has them."""
    is_trained = name in TRAINED
    file = "fedavg_xclp" if is_trained else "xclp_digits"
    config = config_file.load(f"ml_collections_configs/{file}.py", SMALL)
    config.rounds = 12 if is_trained else 1
    config.cohort_size = 4 if is_trained else 0
    config.training.labeled_only_rounds = 2
    config.execution.strategy = strategy
    federation = Simulation(config).federation(SEED)
    # A network that is right in half of all cases, for the method that needs one.
    guess = np.where(np.arange(len(federation.y)) % 2, federation.y, 0).astype(np.int32)
    federation = dataclasses.replace(federation, predicted=guess)
    return config, federation, make_algorithm(config, name, federation)


def cohort_of(config, federation, number):
    return federation.cohort(sample_clients(config, federation, SEED, number))


def started(algorithm, federation):
    return algorithm.init(jax.random.fold_in(jax.random.key(SEED), 0), federation)


def played(algorithm, config, federation, state, first, last, change=lambda cohort: cohort):
    """The state after the rounds from `first` to `last`."""
    for number in range(first, last + 1):
        cohort = change(cohort_of(config, federation, number))
        state, _ = algorithm.round(state, cohort, jax.random.fold_in(jax.random.key(SEED), number))
    return state


def plain(leaf):
    """A leaf as NumPy takes it: a typed key as its words."""
    is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf


def assert_equal(a, b, **tolerance):
    """Leaf by leaf; to the bit without a tolerance."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(map(plain, jax.tree.leaves(a)), map(plain, jax.tree.leaves(b)), strict=True):
        if tolerance:
            np.testing.assert_allclose(x, y, **tolerance)
        else:
            np.testing.assert_array_equal(x, y)


@pytest.fixture(scope="module", params=ALGORITHMS)
def arrangement(request):
    return arranged(request.param)


def test_learns_and_is_repeatable(arrangement):
    config, federation, algorithm = arrangement
    states = [
        played(algorithm, config, federation, started(algorithm, federation), 1, config.rounds)
        for _ in range(2)
    ]
    assert_equal(*states)
    assert algorithm.evaluate(states[0], federation)["test_accuracy"] > 0.4


def test_rounds_are_compiled_once(arrangement):
    config, federation, algorithm = arrangement
    stages = config.training.labeled_only_rounds + 1
    state = played(algorithm, config, federation, started(algorithm, federation), 1, stages)
    before = num_compilations()
    played(algorithm, config, federation, state, stages + 1, config.rounds)
    assert num_compilations() == before


def padded(cohort, fill):
    """Two rows and one client more than there are, with rubbish in them."""

    def pad(array, value, axes):
        widths = [(0, 1), (0, 2)][:axes] + [(0, 0)] * (array.ndim - axes)
        return np.pad(array, widths, constant_values=value)

    return Cohort(
        client_id=np.append(cohort.client_id, -1).astype(np.int32),
        x=pad(cohort.x, fill, 2),
        y=pad(cohort.y, -1, 2),
        mask=pad(cohort.mask, False, 2),
    )


@pytest.mark.parametrize("name", TRAINED)
def test_the_order_of_clients_is_inert(name):
    config, federation, algorithm = arranged(name)
    last = config.training.labeled_only_rounds + 1
    start = started(algorithm, federation)
    backwards = played(
        algorithm, config, federation, start, 1, last, lambda c: Cohort(*(f[::-1] for f in c))
    )
    assert_equal(played(algorithm, config, federation, start, 1, last), backwards)


@pytest.mark.parametrize("strategy", ["vmap", pytest.param("shard_map", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.usefixtures("quick_compilation")
def test_strategies_agree_and_padding_is_inert(name, strategy):
    """One comparison of both, since a second shape would be as long to compile again."""
    config, federation, one_by_one = arranged(name)
    _, _, other = arranged(name, strategy)
    last = config.training.labeled_only_rounds + 1
    start = started(one_by_one, federation)
    assert_equal(
        played(one_by_one, config, federation, start, 1, last),
        played(other, config, federation, start, 1, last, lambda c: padded(c, 7.0)),
        rtol=1e-4,
        atol=1e-5,
    )


def test_resumed_equals_uninterrupted(arrangement, tmp_path):
    config, federation, algorithm = arrangement
    start = started(algorithm, federation)
    whole = played(algorithm, config, federation, start, 1, 4)
    Checkpoints(tmp_path).save(3, played(algorithm, config, federation, start, 1, 3), {})
    restored = Checkpoints(tmp_path).latest().state(template=start)
    assert_equal(whole, played(algorithm, config, federation, restored, 4, 4))
