"""Estimators as learners: each round fits a client's estimator anew, on its own labels and the public ones.

    h_t <- A(D u P),    rows of D with weight 1,    u of P with  lambda w_u

A pickled estimator may run code when it is read, and one of another version may not be readable. So a state
holds no estimators. It holds the training data of each estimator's last fit, which with the seed determines
the estimator. The estimators are cached in memory by a digest of that data. They are fitted again for a state
from a checkpoint: repeated fits are identical. A state holds digests of examples, not the examples; those
passed to `init` and `fit` are stored in memory.
"""

from __future__ import annotations

import atexit
import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from threadpoolctl import threadpool_limits

from jaxfed.errors import UsageError
from jaxfed.estimators.client_model import ClientModel, Recipe, Task, fitted_or_why, reason
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Array, Cohort, own_examples
from jaxfed.federation.execution.settings import HERE, Execution, digest_of
from jaxfed.host.parallel.workers import Mapped, worker_processes
from jaxfed.host.row_table import RowTable
from jaxfed.learners.learner import SPOILED, Fitted, Learner, Taught, check_classes
from jaxfed.training.server.client_rows import rows_for

_KEPT_PER_CLIENT = 2  # the newest model, and that of an older state


class Lesson(NamedTuple):
    """Training data of one client's estimator."""

    seed: np.ndarray  # int32 scalar
    own: np.ndarray  # uint8 [32], digest of its own labeled examples
    public: np.ndarray  # uint8 [32], digest of the public examples
    label: np.ndarray  # int32 [U], the public labels; -1 for none
    weight: np.ndarray  # float32 [U], 0 or more

    @property
    def public_rows(self) -> np.ndarray:
        """int64, the public examples with a label and a positive weight."""
        return np.flatnonzero((self.label >= 0) & (self.weight > 0))


class EstimatorState(NamedTuple):
    """Training data of all clients' estimators in their last fit, [M, ...], and which have a fit, bool [M].

    U is 0 before the first public labels. Labels and weights that are many are tables, of which a round
    writes the cohort's rows.
    """

    lesson: Lesson
    is_fitted: np.ndarray


def refitting(
    recipe: Recipe, num_classes: int, pseudo_weight: float, execution: Execution = HERE
) -> Learner:
    """Return the learner whose clients have estimators of this recipe.

    `execution.workers` processes fit estimators side by side; 0: one after another, in this process. The
    models are the same. (A script that uses processes guards its entry by `if __name__ == "__main__":`.)

    A fit of any number of steps is one fit. A client whose labels, own and public, are those of its last fit
    is not fitted again. `Taught.soft` is ignored. Without any label, own or public, a client keeps its last
    model; before its first one it has no vote.

    `metrics` have `fit_accuracy`: the mean over fitted clients, on the rows that each was fitted on.

    A client whose estimator cannot answer has no valid answers, and the reason is logged.

    Raises:
        UsageError: in `fit`, a process that died.
    """
    estimators = _Estimators(recipe, num_classes, pseudo_weight, execution)
    return Learner(
        estimators.init,
        estimators.fit,
        estimators.predict,
        estimators.predict_proba if recipe.has_probabilities else None,
        continues=False,
    )


class _Estimators:
    """The learner's functions, and the models that they cache: the least recently used are dropped first."""

    def __init__(
        self, recipe: Recipe, num_classes: int, pseudo_weight: float, execution: Execution
    ) -> None:
        self.recipe, self.num_classes = recipe, num_classes
        self.pseudo_weight, self.execution = pseudo_weight, execution
        self._capacity = 1
        self._examples: dict[bytes, tuple[np.ndarray, np.ndarray]] = {}
        self._models: OrderedDict[bytes, ClientModel] = OrderedDict()
        self._warned: set[str] = set()

    def init(self, key: jax.Array, federation: Federation) -> EstimatorState:
        """Return the state of clients without a fit, and store their examples."""
        check_classes(self.recipe.name, self.num_classes, federation)
        num_clients = federation.num_clients
        self._capacity = max(self._capacity, _KEPT_PER_CLIENT * num_clients)
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(num_clients))
        most = np.iinfo(np.int32).max
        seed = jax.vmap(lambda one: jax.random.randint(one, (), 0, most))(keys)
        own = [
            self._remember(federation.x[rows], federation.y[rows])
            for rows in federation.partition.labeled
        ]
        public = self._remember(federation.public_examples)
        lesson = Lesson(
            seed=np.asarray(seed),
            own=np.stack(own),
            public=np.stack([public] * num_clients),
            label=np.zeros((num_clients, 0), np.int32),
            weight=np.zeros((num_clients, 0), np.float32),
        )
        return EstimatorState(lesson, np.zeros(num_clients, bool))

    def fit(
        self,
        state: EstimatorState,
        cohort: Cohort,
        taught: Taught | None,
        key: jax.Array,
        steps: int,
    ) -> Fitted:
        """Fit the cohort's estimators, those whose labels have changed."""
        del key
        lesson, is_fitted = state.lesson, np.array(state.is_fitted)
        if taught is not None:
            lesson = self._with_room(lesson, len(taught.x))
        lessons = self._lessons(lesson, cohort, taught) if steps else {}
        made, failed = self._models_of(lessons)
        if made:
            clients = np.array(list(made))
            is_fitted[clients] = True
            lesson = jax.tree.map(
                lambda field, *new: _replaced(field, np.stack(new), clients),
                *(lesson, *(lessons[client] for client in made)),
                is_leaf=lambda field: isinstance(field, RowTable),
            )
        accuracy = [model.fit_accuracy for model in made.values()]
        metrics = {"fit_accuracy": float(np.mean(accuracy))} if made else {}
        return Fitted(EstimatorState(lesson, is_fitted), failed, {"clients": len(made), **metrics})

    def predict(self, state: EstimatorState, client_id: Array, x: Array) -> np.ndarray:
        """Classes by these clients' estimators."""
        labels = np.full((len(client_id), len(x)), -1, np.int32)
        return self._answered(
            *(labels, SPOILED, state, client_id), lambda model: model.labels(np.asarray(x))
        )

    def predict_proba(self, state: EstimatorState, client_id: Array, x: Array) -> np.ndarray:
        """Probabilities by these clients' estimators."""
        spread = np.zeros((len(client_id), len(x), self.num_classes), np.float32)
        return self._answered(
            *(spread, np.nan, state, client_id),
            lambda model: model.probabilities(np.asarray(x), self.num_classes),
        )

    def _answered(
        self,
        answers: np.ndarray,
        spoiled: float,
        state: EstimatorState,
        client_id: Array,
        ask: Callable[[ClientModel], np.ndarray],
    ) -> np.ndarray:
        """Write the answers of the clients that have a model into their rows."""
        is_fitted, ids = np.asarray(state.is_fitted), np.asarray(client_id)
        there = {int(client) for client in ids if client >= 0 and is_fitted[client]}
        made, failed = self._models_of({client: _of_one(state.lesson, client) for client in there})
        for place, client in enumerate(ids.tolist()):
            try:
                if client in made:
                    with threadpool_limits(1):
                        answers[place] = ask(made[client])
            except Exception as error:  # from the estimator, of any kind
                failed[client] = f"{self.recipe.name}: {reason(error)}"
            if client in failed:
                answers[place] = spoiled
        for client, why in failed.items():
            logging.warning("client %d: %s", client, why)
        return answers

    def _remember(self, x: np.ndarray, y: np.ndarray | None = None) -> np.ndarray:
        """Store examples [n, ...] and labels int32 [n] for lessons; return their digest, uint8 [32]."""
        y = np.zeros(0, np.int32) if y is None else y
        digest = digest_of((x, y))
        self._examples.setdefault(digest, (x, y))
        return np.frombuffer(digest, np.uint8)

    def _with_room(self, lesson: Lesson, num_public: int) -> Lesson:
        """Lessons [M, ...] with `num_public` public examples, unlabeled if there were none before."""
        if lesson.label.shape[1] == num_public:
            return lesson
        none = np.full(num_public, -1, np.int32), np.zeros(num_public, np.float32)
        tables: tuple[Any, Any] = rows_for(len(lesson.seed), none)
        rooms: list[Any] = [own if isinstance(own, RowTable) else np.array(own) for own in tables]
        return lesson._replace(label=rooms[0], weight=rooms[1])

    def _lessons(self, before: Lesson, cohort: Cohort, taught: Taught | None) -> dict[int, Lesson]:
        """Training data of the cohort's clients that have any label, own or public."""
        x, y = own_examples(cohort.x), np.asarray(cohort.y)
        public = None if taught is None else self._remember(np.asarray(taught.x))
        lessons = {}
        for place, client in enumerate(np.asarray(cohort.client_id).tolist()):
            if client < 0:
                continue
            labels = y[place, : len(x[place])]
            is_own = labels >= 0
            own = self._remember(x[place][is_own], labels[is_own])
            lesson = _of_one(before, client)._replace(own=own)
            if taught is not None and public is not None:
                label, weight = np.asarray(taught.label), np.asarray(taught.weight)
                lesson = lesson._replace(public=public, label=label, weight=weight)
            else:
                lesson = lesson._replace(label=np.full_like(lesson.label, -1))
            if is_own.any() or len(lesson.public_rows):
                lessons[client] = lesson
        return lessons

    def _models_of(
        self, lessons: Mapping[int, Lesson]
    ) -> tuple[dict[int, ClientModel], dict[int, str]]:
        """Return the clients' models, and for the others the reason of their failure."""
        digests = {client: digest_of(tuple(lesson)) for client, lesson in lessons.items()}
        missing = {
            digest: client for client, digest in digests.items() if digest not in self._models
        }
        tasks = [self._task(lessons[client]) for client in missing.values()]
        why: dict[bytes, str] = {}
        for digest, made in zip(missing, self._done(tasks), strict=True):
            if isinstance(made, str):
                why[digest] = f"{self.recipe.name}: {made}"
                continue
            self._models[digest] = made
            for warning in made.warnings:
                if warning not in self._warned:
                    self._warned.add(warning)
                    logging.warning("%s: %s", self.recipe.name, warning)
        models = {}
        for client, digest in digests.items():
            if digest in self._models:
                self._models.move_to_end(digest)
                models[client] = self._models[digest]
        while len(self._models) > max(self._capacity, len(models)):
            self._models.popitem(last=False)
        return models, {client: why[each] for client, each in digests.items() if each in why}

    def _task(self, lesson: Lesson) -> Task:
        x, y = self._examples[lesson.own.tobytes()]
        rows, weight = lesson.public_rows, np.ones(len(y), np.float32)
        if len(rows):
            public_x, _ = self._examples[lesson.public.tobytes()]
            x = np.concatenate([x, public_x[rows]])
            y = np.concatenate([y, lesson.label[rows]])
            weight = np.concatenate([weight, self.pseudo_weight * lesson.weight[rows]])
        return Task(self.recipe, x, y, weight.astype(np.float32), int(lesson.seed))

    def _done(self, tasks: list[Task]) -> list[ClientModel | str]:
        workers = self.execution.workers
        if not workers or len(tasks) < 2:
            return list(map(fitted_or_why, tasks))
        try:
            return list(_processes(workers)(fitted_or_why, tasks))
        except BrokenProcessPool:
            _processes.cache_clear()
            raise UsageError(
                f"{self.recipe.name}: a process died, perhaps out of memory",
                key="execution.workers",
                value=workers,
                allowed="use fewer",
            ) from None


def _of_one(lesson: Lesson, client: int) -> Lesson:
    return Lesson(*(np.asarray(field[client]) for field in lesson))


def _replaced(field: Any, rows: np.ndarray, clients: np.ndarray) -> Any:
    """A field [M, ...] with the rows of these clients."""
    if isinstance(field, RowTable):
        return field.replaced(clients, rows)
    copy = np.array(field)
    copy[clients] = rows
    return copy


@functools.cache
def _processes(count: int) -> Mapped:
    """A `map` over `count` processes, shared by all learners; they end with this process."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(worker_processes(count))
