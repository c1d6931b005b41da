"""Cache of fitted estimators, by their training data; missing ones are fitted side by side."""

from __future__ import annotations

import atexit
import functools
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
from absl import logging

from jaxfed.errors import UsageError
from jaxfed.estimators.client_model import ClientModel, Task, fitted_or_why
from jaxfed.estimators.recipe import Recipe
from jaxfed.federation.execution.result_cache import digest_of
from jaxfed.host.parallel.workers import Mapped, worker_processes


class Lesson(NamedTuple):
    """Training data of one client's estimator.

    Fields:
        seed: int32 scalar.
        own: uint8 [32], digest of its own labeled examples.
        public: uint8 [32], digest of the public examples.
        label: int32 [U], the public labels; -1 for none.
        weight: float32 [U], 0 or more.
    """

    seed: np.ndarray
    own: np.ndarray
    public: np.ndarray
    label: np.ndarray
    weight: np.ndarray

    @property
    def public_rows(self) -> np.ndarray:
        """int64, the public examples with a label and a positive weight."""
        return np.flatnonzero((self.label >= 0) & (self.weight > 0))


class FittedModels:
    """Cache of the models of one recipe.

    Attributes:
        capacity: largest number of models; the least recently used are dropped first.
    """

    def __init__(self, recipe: Recipe, *, pseudo_weight: float, workers: int) -> None:
        self.capacity = 1
        self._recipe, self._pseudo_weight, self._workers = recipe, pseudo_weight, workers
        self._examples: dict[bytes, tuple[np.ndarray, np.ndarray]] = {}
        self._models: OrderedDict[bytes, ClientModel] = OrderedDict()
        self._told: set[str] = set()

    def remember(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Store examples [n, ...] and labels int32 [n] for lessons; return their digest, uint8 [32]."""
        digest = digest_of((x, y))
        self._examples.setdefault(digest, (x, y))
        return np.frombuffer(digest, np.uint8)

    def of(self, lessons: Mapping[int, Lesson]) -> tuple[dict[int, ClientModel], dict[int, str]]:
        """Return the clients' models, and for the others the reason of their failure.

        Raises:
            UsageError: a lesson of examples that were never remembered.
        """
        digests = {client: digest_of(tuple(lesson)) for client, lesson in lessons.items()}
        missing = {
            digest: client for client, digest in digests.items() if digest not in self._models
        }
        tasks = [self._task(lessons[client]) for client in missing.values()]
        why: dict[bytes, str] = {}
        for digest, made in zip(missing, self._done(tasks), strict=True):
            if isinstance(made, str):
                why[digest] = made
            else:
                self._models[digest] = made
                self._tell(made)
        models = {}
        for client, digest in digests.items():
            if digest in self._models:
                self._models.move_to_end(digest)
                models[client] = self._models[digest]
        while len(self._models) > max(self.capacity, len(models)):
            self._models.popitem(last=False)
        return models, {client: why[each] for client, each in digests.items() if each in why}

    def _task(self, lesson: Lesson) -> Task:
        try:
            x, y = self._examples[lesson.own.tobytes()]
            rows, weight = lesson.public_rows, np.ones(len(y), np.float32)
            if len(rows):
                public_x, _ = self._examples[lesson.public.tobytes()]
                x = np.concatenate([x, public_x[rows]])
                y = np.concatenate([y, lesson.label[rows]])
                weight = np.concatenate([weight, self._pseudo_weight * lesson.weight[rows]])
        except KeyError:
            raise UsageError(
                f"{self._recipe.name}: a state of other clients or public examples than `init` was given"
            ) from None
        return Task(self._recipe, x, y, weight.astype(np.float32), int(lesson.seed))

    def _done(self, tasks: list[Task]) -> list[ClientModel | str]:
        if last := len(tasks) % max(self._workers, 1):
            # The fifth of five tasks gets the threads of both processes; one would be idle otherwise.
            threads = self._workers // last
            tasks[-last:] = [task._replace(threads=threads) for task in tasks[-last:]]
        if not self._workers or len(tasks) < 2:
            return list(map(fitted_or_why, tasks))
        done: list[ClientModel | str] = []
        try:
            # One by one, so that results before the death of a process are kept.
            done.extend(iter(_processes(self._workers)(fitted_or_why, tasks)))
        except BrokenProcessPool:
            _processes.cache_clear()
            logging.warning(
                "%s: one of execution.workers=%d processes died, perhaps out of memory; the other models are "
                "fitted one by one",
                self._recipe.name,
                self._workers,
            )
            done += [_by_itself(task) for task in tasks[len(done) :]]
        return done

    def _tell(self, model: ClientModel) -> None:
        for warning in model.warnings:
            if warning not in self._told:
                self._told.add(warning)
                logging.warning("%s: %s", self._recipe.name, warning)


def _by_itself(task: Task) -> ClientModel | str:
    """Fit one model in a process of its own; if that dies, only this client is left without a model."""
    try:
        [made] = _processes(1)(fitted_or_why, [task])
    except BrokenProcessPool:
        _processes.cache_clear()
        return "the process that fitted it died, even as the only one"
    return made


@functools.cache
def _processes(count: int) -> Mapped:
    """A `map` over `count` processes, shared by all learners; they end with this process."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(worker_processes(count))
