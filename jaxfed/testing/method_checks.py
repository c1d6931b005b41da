"""Properties of every method: it learns, is reproducible, compiles once, and ignores padding and order.

    from jaxfed.testing import MethodChecks
    import mymethod                                   # registers it

    class TestMyMethod(MethodChecks):
        method = "mymethod"
        settings = ("mymethod.mu=0.5",)               # overrides, if the defaults do not suit

pytest runs the checks on handwritten digits, without a download: unequal clients, 12 rounds of four of them
(one round of all for a one-shot labeling method), and public examples if clients have models of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import file as config_file
from jaxfed.config.assembly import make_algorithm
from jaxfed.config.data.simulation import Simulation
from jaxfed.config.overrides import with_overrides
from jaxfed.data import Partition
from jaxfed.federation.algorithm import FederatedAlgorithm, ServerState, attribute_of
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.method import declared
from jaxfed.federation.rounds import Played, play, sample_clients
from jaxfed.host.checkpoint import Checkpoints

SEED = 3
_SMALL = (
    "dataset.train_size=500",
    "federation.num_clients=8",
    "federation.partition=dirichlet",
    "federation.dirichlet_alpha=1.0",
    "federation.num_labeled=160",
    "xclp.num_bits=256",
    "xclp.num_neighbors=3",
)
_PUBLIC = (
    "dataset.name=digits",
    "dataset.test_size=0",
    "preprocessing.kind=images",
    "federation.public_size=100",
    "learner.name=network",
    "training.learning_rate=0.01",
)


def has_learners(name: str) -> bool:
    """True if clients of the method have models of their own."""
    return declared(ALGORITHMS[name]).has_learners


def trains(name: str) -> bool:
    """True if the method of this name trains a global model or clients' own models."""
    return declared(ALGORITHMS[name]).trains


def is_one_shot(name: str) -> bool:
    """True if one round of the method of this name labels all points of its cohort."""
    return declared(ALGORITHMS[name]).one_shot


@functools.cache
def arranged(
    name: str, strategy: str = "auto", settings: tuple[str, ...] = ()
) -> tuple[ConfigDict, Federation, FederatedAlgorithm]:
    """A method with its config, and digits among clients of unequal sizes."""
    made = _made(name, strategy, settings, has_rounds=trains(name))
    if not trains(name) and not is_one_shot(name):  # trains something of its own
        return _made(name, strategy, settings, has_rounds=True)
    return made


def _made(
    name: str, strategy: str, settings: tuple[str, ...], *, has_rounds: bool
) -> tuple[ConfigDict, Federation, FederatedAlgorithm]:
    """Return the method over 12 rounds of four clients, or over one round of all."""
    if has_learners(name):
        config = config_file.load("fedct.py", (*_PUBLIC, *_SMALL))
    else:
        file = "fedavg_xclp" if has_rounds else "xclp_digits"
        config = config_file.load(f"{file}.py", _SMALL)
    with config.unlocked():
        config.rounds = 12 if has_rounds else 1
        config.cohort_size = 4 if has_rounds else 0
        config.training.labeled_only_rounds = 2
        config.execution.strategy = strategy
    config = with_overrides(config, settings)
    federation = Simulation(config).federation(SEED)
    # A network with an accuracy of about one half, for the method that needs one.
    guess = np.where(np.arange(len(federation.y)) % 2, federation.y, 0).astype(np.int32)
    federation = replace(federation, predicted=guess)
    return config, federation, make_algorithm(config, name, federation)


def started(algorithm: FederatedAlgorithm, federation: Federation) -> ServerState:
    """The state before the first round."""
    return algorithm.init(jax.random.fold_in(jax.random.key(SEED), 0), federation)


def played(
    algorithm: FederatedAlgorithm,
    config: ConfigDict,
    federation: Federation,
    state: ServerState,
    first: int,
    last: int,
    change: Callable[[Cohort], Cohort] = lambda cohort: cohort,
) -> ServerState:
    """The state after the rounds from `first` to `last`."""
    for one in rounds_of(algorithm, config, federation, state, first, last, change):
        state = one.after
    return state


def rounds_of(
    algorithm: FederatedAlgorithm,
    config: ConfigDict,
    federation: Federation,
    state: ServerState,
    first: int,
    last: int,
    change: Callable[[Cohort], Cohort] = lambda cohort: cohort,
) -> Generator[Played]:
    """The rounds from `first` to `last`, one after another."""

    def cohort_of(number: int) -> Cohort:
        return change(federation.cohort(sample_clients(config, federation, SEED, number)))

    rounds, key = range(first, last + 1), jax.random.key(SEED)
    return play(algorithm, state, rounds, cohort_of=cohort_of, key=key)


def padded(cohort: Cohort, fill: float, num_rows: int = 2) -> Cohort:
    """The cohort with more rows and one more client, filled with garbage."""

    def pad(array: Any, value: float, axes: int) -> np.ndarray:
        widths = [(0, 1), (0, num_rows)][:axes] + [(0, 0)] * (array.ndim - axes)
        return np.pad(array, widths, constant_values=value)

    return Cohort(
        client_id=np.append(cohort.client_id, -1).astype(np.int32),
        x=pad(cohort.x, fill, 2),
        y=pad(cohort.y, -1, 2),
        mask=pad(cohort.mask, False, 2),
    )


def odd(federation: Federation) -> Federation:
    """The federation without its last class, whose first clients have one example, no labels, and nothing."""

    def known(rows: np.ndarray) -> np.ndarray:
        return rows[federation.y[rows] != federation.num_classes - 1]

    parts = [[known(rows) for rows in part] for part in federation.partition]
    for part, most in zip(parts, ((1, 0, 0), (0, 9, 0), (0, 0, 0)), strict=True):
        part[:3] = [rows[:number] for rows, number in zip(part[:3], most, strict=True)]
        part[3:] = [rows[:20] for rows in part[3:]]
    return replace(
        federation.with_partition(Partition(*parts)),
        validation=known(federation.validation),
        test=known(federation.test),
        server=known(federation.server),
    )


def _renamed(labels: Any, to: np.ndarray) -> Any:
    """Rename the classes of labels; -1 and None stay."""
    return None if labels is None else np.where(labels >= 0, to[labels], labels).astype(np.int32)


def _reordered(leaf: Any, to: np.ndarray) -> Any:
    """Reorder an array along its axes with one entry per class, for renamed classes."""
    for axis, size in enumerate(leaf.shape if isinstance(leaf, jax.Array | np.ndarray) else ()):
        if size == len(to):
            leaf = jnp.take(leaf, np.argsort(to), axis)
    return leaf


def assert_equal(a: Any, b: Any, **tolerance: float) -> None:
    """Compare leaf by leaf; bit by bit without a tolerance."""
    (paths, leaves), (others, theirs) = (_flat(tree) for tree in (a, b))
    assert paths == others
    compare: Callable[..., None] = np.testing.assert_array_equal
    if tolerance:
        compare = functools.partial(np.testing.assert_allclose, **tolerance)
    for path, ours, other in zip(paths, leaves, theirs, strict=True):
        compare(_plain(ours), _plain(other), err_msg=f"the states differ at {path}")


def _flat(tree: Any) -> tuple[list[str], list[Any]]:
    """The leaves' paths, and the leaves."""
    flat = jax.tree_util.tree_leaves_with_path(tree)
    return [jax.tree_util.keystr(path) for path, _ in flat], [leaf for _, leaf in flat]


def _plain(leaf: Any) -> Any:
    """A leaf as a NumPy array; a typed key as its words."""
    is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf


def num_compilations() -> int:
    """Number of programs that JAX has compiled or read from its cache so far."""
    return len(_COMPILED)


_COMPILED: list[str] = []


def _count(event: str, *_: Any, **__: Any) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        _COMPILED.append(event)


jax.monitoring.register_event_duration_secs_listener(_count)


@functools.lru_cache(maxsize=1)
def _uninterrupted(name: str, settings: tuple[str, ...]) -> tuple[list[ServerState], list[int]]:
    """The states before the first round and after each, and the numbers of programs compiled by then."""
    config, federation, algorithm = arranged(name, "auto", settings)
    states, counts = [started(algorithm, federation)], []
    for one in rounds_of(algorithm, config, federation, states[0], 1, max(config.rounds, 4)):
        states.append(one.after)
        counts.append(num_compilations())
    return states, counts


class MethodChecks:
    """The checks, of one method.

    Attributes:
        method: its name in `ALGORITHMS`.
        settings: `KEY=VALUE` overrides of the config in the checks.
        least_accuracy: required on the test set after these rounds; chance is 0.1.
    """

    method: ClassVar[str]
    settings: ClassVar[tuple[str, ...]] = ()
    least_accuracy: ClassVar[float] = 0.4

    def test_learns_and_is_repeatable(self) -> None:
        """The same seed gives the same state, bit for bit, and the state is accurate enough."""
        config, federation, algorithm = self._arranged()
        state = self._states()[config.rounds]
        again = played(
            algorithm, config, federation, started(algorithm, federation), 1, config.rounds
        )
        assert_equal(state, again)
        accuracy = algorithm.evaluate(state, federation)["test_accuracy"]
        wrong = f"test accuracy {accuracy:.3f}, least_accuracy is {self.least_accuracy}"
        assert accuracy > self.least_accuracy, wrong

    def test_rounds_are_compiled_once(self) -> None:
        """Nothing is compiled after the first round of each stage."""
        config, _, _ = self._arranged()
        first = config.training.labeled_only_rounds
        counts = _uninterrupted(self.method, self.settings)[1][first : config.rounds]
        again = [first + i + 1 for i in range(1, len(counts)) if counts[i] > counts[i - 1]]
        assert not again, f"rounds {again} compile programs anew"

    def test_the_order_of_clients_is_inert(self) -> None:
        """A reversed cohort gives the same model, bit for bit; of one shot, the same labels.

        There equally near neighbors of another order may change a few labels.
        """
        config, federation, algorithm = self._arranged()
        one_shot = is_one_shot(self.method)
        last = 1 if one_shot else config.training.labeled_only_rounds + 1
        backwards = played(
            algorithm,
            config,
            federation,
            self._states()[0],
            1,
            last,
            lambda cohort: Cohort(*(field[::-1] for field in cohort)),
        )
        if not one_shot:
            assert_equal(self._states()[last], backwards)
        elif (predictions := attribute_of(algorithm.evaluate, "predictions")) is not None:
            states = self._states()[last], backwards
            ours, theirs = (predictions(state, federation).label for state in states)
            assert np.mean(ours == theirs) > 0.98

    def test_strategies_agree_and_padding_is_inert(self) -> None:
        """One comparison of both, as another shape would be compiled again; in one shot, of padding alone."""
        if not is_one_shot(self.method):
            self.agrees_with("vmap")
            return
        config, federation, algorithm = self._arranged()
        start, after = self._states()[:2]
        again = played(
            *(algorithm, config, federation, start, 1, 1),
            lambda cohort: padded(cohort, 7.0, num_rows=0),
        )
        assert_equal(after, again)

    def agrees_with(self, strategy: str) -> None:
        """Another execution strategy, with padding, gives the same state up to rounding."""
        config, federation, _ = self._arranged()
        _, _, other = self._arranged(strategy)
        last = config.training.labeled_only_rounds + 1
        start = self._states()[0]
        assert_equal(
            self._states()[last],
            played(other, config, federation, start, 1, last, lambda cohort: padded(cohort, 7.0)),
            rtol=1e-4,
            atol=1e-5,
        )

    def test_resumed_equals_uninterrupted(self, tmp_path: Path) -> None:
        """A state that was saved after any of four rounds, and loaded, continues bit for bit."""
        config, federation, algorithm = self._arranged()
        states = self._states()
        for number in range(4):
            Checkpoints(tmp_path / str(number)).save(number, states[number], {})
            saved = Checkpoints(tmp_path / str(number)).latest()
            assert saved is not None
            restored = saved.state(template=states[0])
            again = played(algorithm, config, federation, restored, number + 1, number + 1)
            assert_equal(states[number + 1], again)

    def test_odd_clients_take_part(self) -> None:
        """No number is infinite or NaN with clients of one example, of no label, and of nothing at all.

        Nobody has the last class, and no client has as many examples as a batch. Rounds over JAX's arrays
        have the bits of NumPy's.
        """
        config, federation, _ = self._arranged()
        federation = odd(federation)
        algorithm = make_algorithm(config, self.method, federation)
        states = []
        arrays: tuple[Callable[[Any], Any], ...] = (np.asarray, jnp.asarray)
        for make in arrays:
            cohort = Cohort(*map(make, federation.cohort(range(federation.num_clients))))
            *_, last = play(
                *(algorithm, started(algorithm, federation)),
                range(1, config.training.labeled_only_rounds + 2),
                cohort_of=functools.partial(lambda cohort, number: cohort, cohort),
                key=jax.random.key(SEED),
            )
            states.append(last.after)
        assert_equal(*states)
        for path, leaf in zip(*_flat((states[0], last.metrics)), strict=True):
            assert np.isfinite(_plain(leaf)).all(), path

    def test_nothing_is_learned_at_a_learning_rate_of_nearly_0(self) -> None:
        """With steps far below the rounding of any weight, the model stays as it was.

        A method whose server makes steps of its own, or adds noise, sets this to None.
        """
        if "training" not in declared(ALGORITHMS[self.method]).takes:
            return
        settings = (*self.settings, "training.learning_rate=1e-30")
        config, federation, algorithm = arranged(self.method, settings=settings)
        before = started(algorithm, federation)
        last = config.training.labeled_only_rounds + 1
        after = played(algorithm, config, federation, before, 1, last)
        assert_equal(before.model, after.model, rtol=1e-6, atol=1e-20)

    def test_renamed_classes_have_their_predictions(self) -> None:
        """Renaming the classes, in data and first state, changes nothing but their names in predictions.

        A method whose noise is drawn class by class, or whose ties go to the first class, sets this to None.
        """
        config, federation, algorithm = self._arranged()
        to = np.roll(np.arange(federation.num_classes), 1)  # class -> its other name
        renamed = replace(
            federation,
            y=_renamed(federation.y, to),
            predicted=_renamed(federation.predicted, to),
            public_labels=_renamed(federation.public_labels, to),
        )
        last = min(config.rounds, config.training.labeled_only_rounds + 2)
        start = self._states()[0]
        state = played(algorithm, config, federation, start, 1, last)
        other = make_algorithm(config, self.method, renamed)
        begun = started(other, renamed)
        if not is_one_shot(self.method):  # whose first state has given labels at most
            begun = jax.tree.map(lambda leaf: _reordered(leaf, to), start)
        after = played(other, config, renamed, begun, 1, last)
        if algorithm.predict is not None and other.predict is not None:
            x = federation.x[federation.test]
            predicted = np.asarray(other.predict(after, x))[:, to]
            np.testing.assert_allclose(algorithm.predict(state, x), predicted, rtol=1e-2, atol=1e-3)
        ours, theirs = (attribute_of(one.evaluate, "predictions") for one in (algorithm, other))
        if ours is not None and theirs is not None:
            labels = _renamed(ours(state, federation).label, to)
            assert np.mean(labels == theirs(after, renamed).label) > 0.98

    def test_predictions_are_what_was_measured(self) -> None:
        """The table of predictions, if the method has one, has the accuracy that `evaluate` returns."""
        config, federation, algorithm = self._arranged()
        predictions = attribute_of(algorithm.evaluate, "predictions")
        if predictions is None:
            return
        state = self._states()[config.rounds]
        table = predictions(state, federation)
        tested = np.isin(table.role, ("new", "test"))
        right = table.label[tested] == federation.y[table.example[tested]]
        assert np.mean(right) == algorithm.evaluate(state, federation)["test_accuracy"]

    def _arranged(
        self, strategy: str = "auto"
    ) -> tuple[ConfigDict, Federation, FederatedAlgorithm]:
        return arranged(self.method, strategy, self.settings)

    def _states(self) -> list[ServerState]:
        return _uninterrupted(self.method, self.settings)[0]
