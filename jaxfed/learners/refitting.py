"""Estimators as learners: each round fits a client's estimator anew, on its own labels and the public ones.

    h_t <- A(D u P),    rows of D with weight 1,    u of P with  lambda w_u

They are those of FedCT's Table 2, or any class with scikit-learn's interface. FedCT (arXiv 2310.05696, E.3)
states these settings: trees split by the Gini index, with at least 2 samples to split; RuleFit has a tree
size of 4 and at most 200 rules. All others are the libraries' defaults, as in the authors' code.

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
from collections.abc import Mapping
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from threadpoolctl import threadpool_limits

from jaxfed.estimators.client_model import (
    RULE_FIT,
    ClientModel,
    EstimatorSpec,
    Task,
    fitted_or_why,
    reason,
)
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Array, Cohort, own_examples
from jaxfed.federation.execution import HERE, Execution, digest_of
from jaxfed.host.parallel.workers import Mapped, worker_processes
from jaxfed.host.row_table import RowTable
from jaxfed.learners.learner import SPOILED, Fitted, Learner, PublicTargets, check_classes
from jaxfed.settings import Count, Ge, Note, NotNegative, hinted
from jaxfed.training.server_state import rows_for

_KEPT_PER_CLIENT = 2  # the newest model, and that of an older state


@hinted
def decision_tree(
    *,
    num_classes: int,
    max_depth: Annotated[int, Ge(0), Note("0 is no bound")] = 0,
    pseudo_weight: NotNegative = 1.0,
    execution: Execution = HERE,
) -> Learner:
    """One tree (CART by the Gini index; scikit-learn's).

    Args:
        max_depth: largest depth; 0: no bound.
        pseudo_weight: lambda, factor on the weights of public labels; the client's own labels have weight 1.
    """
    settings = {"max_depth": max_depth or None}
    spec = EstimatorSpec("decision_tree", "sklearn.tree.DecisionTreeClassifier", settings)
    return refitting(spec, num_classes, pseudo_weight, execution)


@hinted
def random_forest(
    *,
    num_classes: int,
    num_trees: Count = 100,
    pseudo_weight: NotNegative = 1.0,
    execution: Execution = HERE,
) -> Learner:
    """Trees on bootstrap samples, with random features at each split (Breiman 2001; scikit-learn's).

    Args:
        num_trees: number of trees.
        pseudo_weight: lambda, factor on the weights of public labels; the client's own labels have weight 1.
    """
    settings = {"n_estimators": num_trees, "max_depth": None}
    spec = EstimatorSpec("random_forest", "sklearn.ensemble.RandomForestClassifier", settings)
    return refitting(spec, num_classes, pseudo_weight, execution)


@hinted
def xgboost(
    *,
    num_classes: int,
    num_trees: Count = 100,
    pseudo_weight: NotNegative = 1.0,
    execution: Execution = HERE,
) -> Learner:
    """Gradient boosting of trees (Chen, Guestrin, KDD 2016; XGBoost's, whose defaults these are).

    Needs requirements-learners.txt. The authors' code sets the objective for two classes, whatever their
    number; here XGBoost chooses it.

    Args:
        num_trees: number of boosting rounds.
        pseudo_weight: lambda, factor on the weights of public labels; the client's own labels have weight 1.
    """
    settings = {"n_estimators": num_trees, "max_depth": 6, "learning_rate": 0.3}
    spec = EstimatorSpec("xgboost", "xgboost.XGBClassifier", settings)
    return refitting(spec, num_classes, pseudo_weight, execution)


@hinted
def rulefit(
    *,
    num_classes: int,
    tree_size: Annotated[int, Ge(2)] = 4,
    max_rules: Count = 200,
    pseudo_weight: NotNegative = 1.0,
    execution: Execution = HERE,
) -> Learner:
    """Rules of boosted trees under an L1-penalized logistic regression (Friedman, Popescu 2008; imodels').

    Needs requirements-learners.txt. More than two classes are fitted one against the rest. It takes no
    weights: public rows of any weight above 0 count as much as the client's own. The authors use another
    implementation, the package rulefit, without linear terms.

    The penalty is the smallest one that leaves `max_rules` rules, as in imodels, found in fewer fits
    (`jaxfed.estimators.rule_fit`). imodels' documentation has cross-validation as the default; up to 3.0.4
    the result of its folds is not used.

    Args:
        tree_size: number of leaves of the trees that give the rules.
        max_rules: largest number of rules.
        pseudo_weight: lambda, factor on the weights of public labels; the client's own labels have weight 1.
    """
    spec = EstimatorSpec("rulefit", RULE_FIT, {"tree_size": tree_size, "max_rules": max_rules})
    return refitting(spec, num_classes, pseudo_weight, execution)


@hinted
def estimator(
    *,
    num_classes: int,
    estimator: str,
    pseudo_weight: NotNegative = 1.0,
    execution: Execution = HERE,
    **settings: Any,
) -> Learner:
    """Any classifier, by the dotted name of its class, such as "sklearn.svm.SVC", and its keywords.

    Only classes of `sklearn`, `xgboost` and `imodels` are allowed, so a config cannot run arbitrary code.
    Features are as `config.preprocessing` makes them, standardized or not.

    Args:
        estimator: dotted name of the class; keywords of this class are further keys.
        pseudo_weight: lambda, factor on the weights of public labels; the client's own labels have weight 1.
        **settings: keywords of the class.
    """
    spec = EstimatorSpec(estimator.rpartition(".")[2], estimator, settings)
    return refitting(spec, num_classes, pseudo_weight, execution)


class TrainingData(NamedTuple):
    """Training data of one client's estimator."""

    seed: np.ndarray  # int32 scalar
    labeled: np.ndarray  # uint8 [32], digest of its own labeled examples
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

    data: TrainingData
    is_fitted: np.ndarray


def refitting(
    spec: EstimatorSpec, num_classes: int, pseudo_weight: float, execution: Execution = HERE
) -> Learner:
    """Return the learner whose clients have estimators of this spec.

    `execution.workers` processes fit estimators side by side; 0: one after another, in this process. The
    models are the same. (A script that uses processes guards its entry by `if __name__ == "__main__":`.)

    A fit of any number of steps is one fit. A client whose labels, own and public, are those of its last fit
    is not fitted again. `PublicTargets.soft` is ignored. Without any label, own or public, a client keeps its
    last model; before its first one it has no vote.

    `metrics` have `fit_accuracy`: the mean over fitted clients, on the rows that each was fitted on.

    A client whose estimator cannot answer has no valid answers, and the reason is logged.
    """
    estimators = _Estimators(spec, num_classes, pseudo_weight, execution)
    return Learner(
        estimators.init,
        estimators.fit,
        functools.partial(estimators.answers, "predict"),
        functools.partial(estimators.answers, "proba") if spec.has_probabilities else None,
        continues=False,
    )


@dataclass(eq=False)
class _Estimators:
    """The learner's functions, and the models that they cache: the least recently used are dropped first."""

    spec: EstimatorSpec
    num_classes: int
    pseudo_weight: float
    execution: Execution
    _capacity: int = 1
    _examples: dict[bytes, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    _models: OrderedDict[bytes, ClientModel] = field(default_factory=OrderedDict)
    _warned: set[str] = field(default_factory=set)

    def init(self, key: jax.Array, federation: Federation) -> EstimatorState:
        """Return the state of clients without a fit, and store their examples."""
        check_classes(self.spec.name, self.num_classes, federation)
        num_clients = federation.num_clients
        self._capacity = max(self._capacity, _KEPT_PER_CLIENT * num_clients)
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(num_clients))
        most = np.iinfo(np.int32).max
        seed = jax.vmap(lambda one: jax.random.randint(one, (), 0, most))(keys)
        digests = [
            self._remember(federation.x[rows], federation.y[rows])
            for rows in federation.partition.labeled
        ]
        public = self._remember(federation.public_examples)
        data = TrainingData(
            seed=np.asarray(seed),
            labeled=np.stack(digests),
            public=np.stack([public] * num_clients),
            label=np.zeros((num_clients, 0), np.int32),
            weight=np.zeros((num_clients, 0), np.float32),
        )
        return EstimatorState(data, np.zeros(num_clients, bool))

    def fit(
        self,
        state: EstimatorState,
        cohort: Cohort,
        targets: PublicTargets | None,
        key: jax.Array,
        steps: int,
    ) -> Fitted:
        """Fit the cohort's estimators, those whose labels have changed."""
        del key
        data, is_fitted = state.data, np.array(state.is_fitted)
        if targets is not None:
            data = self._with_room(data, len(targets.x))
        data_of = self._training_data(data, cohort, targets) if steps else {}
        made, failed = self._models_of(data_of)
        if made:
            clients = np.array(list(made))
            is_fitted[clients] = True
            data = jax.tree.map(
                lambda leaf, *new: _replaced(leaf, np.stack(new), clients),
                *(data, *(data_of[client] for client in made)),
                is_leaf=lambda leaf: isinstance(leaf, RowTable),
            )
        accuracy = [model.fit_accuracy for model in made.values()]
        metrics = {"fit_accuracy": float(np.mean(accuracy))} if made else {}
        return Fitted(EstimatorState(data, is_fitted), failed, {"clients": len(made), **metrics})

    def answers(
        self, question: str, state: EstimatorState, client_id: Array, x: Array
    ) -> np.ndarray:
        """Classes by these clients' estimators ("predict"), or probabilities."""
        is_fitted, ids, x = np.asarray(state.is_fitted), np.asarray(client_id), np.asarray(x)
        labels = question == "predict"
        answers = np.full((len(ids), len(x)), -1, np.int32)
        if not labels:
            answers = np.zeros((*answers.shape, self.num_classes), np.float32)
        clients = {int(client) for client in ids if client >= 0 and is_fitted[client]}
        made, failed = self._models_of({client: _of_one(state.data, client) for client in clients})
        for index, client in enumerate(ids.tolist()):
            try:
                if client in made:
                    model = made[client]
                    with threadpool_limits(1):
                        answers[index] = (
                            model.labels(x) if labels else model.probabilities(x, self.num_classes)
                        )
            except Exception as error:  # from the estimator, of any kind
                failed[client] = f"{self.spec.name}: {reason(error)}"
            if client in failed:
                answers[index] = SPOILED if labels else np.nan
        for client, why in failed.items():
            logging.warning("client %d: %s", client, why)
        return answers

    def _remember(self, x: np.ndarray, y: np.ndarray | None = None) -> np.ndarray:
        """Store examples [n, ...] and labels int32 [n] for later fits; return their digest, uint8 [32]."""
        y = np.zeros(0, np.int32) if y is None else y
        digest = digest_of((x, y))
        self._examples.setdefault(digest, (x, y))
        return np.frombuffer(digest, np.uint8)

    def _with_room(self, data: TrainingData, num_public: int) -> TrainingData:
        """Training data [M, ...] with `num_public` public examples, unlabeled if there were none before."""
        if data.label.shape[1] == num_public:
            return data
        none = np.full(num_public, -1, np.int32), np.zeros(num_public, np.float32)
        tables: tuple[Any, Any] = rows_for(len(data.seed), none)
        rooms: list[Any] = [t if isinstance(t, RowTable) else np.array(t) for t in tables]
        return data._replace(label=rooms[0], weight=rooms[1])

    def _training_data(
        self, before: TrainingData, cohort: Cohort, targets: PublicTargets | None
    ) -> dict[int, TrainingData]:
        """Training data of the cohort's clients that have any label, own or public."""
        x, y = own_examples(cohort.x), np.asarray(cohort.y)
        public = None if targets is None else self._remember(np.asarray(targets.x))
        data_of = {}
        for index, client in enumerate(np.asarray(cohort.client_id).tolist()):
            if client < 0:
                continue
            labels = y[index, : len(x[index])]
            is_own = labels >= 0
            digest = self._remember(x[index][is_own], labels[is_own])
            data = _of_one(before, client)._replace(labeled=digest)
            if targets is not None and public is not None:
                label, weight = np.asarray(targets.label), np.asarray(targets.weight)
                data = data._replace(public=public, label=label, weight=weight)
            else:
                data = data._replace(label=np.full_like(data.label, -1))
            if is_own.any() or len(data.public_rows):
                data_of[client] = data
        return data_of

    def _models_of(
        self, data_of: Mapping[int, TrainingData]
    ) -> tuple[dict[int, ClientModel], dict[int, str]]:
        """Return the clients' models, and for the others the reason of their failure."""
        digests = {client: digest_of(tuple(data)) for client, data in data_of.items()}
        missing = {
            digest: client for client, digest in digests.items() if digest not in self._models
        }
        tasks = [self._task(data_of[client]) for client in missing.values()]
        why: dict[bytes, str] = {}
        for digest, made in zip(missing, self._done(tasks), strict=True):
            if isinstance(made, str):
                why[digest] = f"{self.spec.name}: {made}"
                continue
            self._models[digest] = made
            for warning in made.warnings:
                if warning not in self._warned:
                    self._warned.add(warning)
                    logging.warning("%s: %s", self.spec.name, warning)
        models = {}
        for client, digest in digests.items():
            if digest in self._models:
                self._models.move_to_end(digest)
                models[client] = self._models[digest]
        while len(self._models) > max(self._capacity, len(models)):
            self._models.popitem(last=False)
        return models, {client: why[each] for client, each in digests.items() if each in why}

    def _task(self, data: TrainingData) -> Task:
        x, y = self._examples[data.labeled.tobytes()]
        rows, weight = data.public_rows, np.ones(len(y), np.float32)
        if len(rows):
            public_x, _ = self._examples[data.public.tobytes()]
            x = np.concatenate([x, public_x[rows]])
            y = np.concatenate([y, data.label[rows]])
            weight = np.concatenate([weight, self.pseudo_weight * data.weight[rows]])
        return Task(self.spec, x, y, weight.astype(np.float32), int(data.seed))

    def _done(self, tasks: list[Task]) -> list[ClientModel | str]:
        workers = self.execution.workers
        if not workers or len(tasks) < 2:
            return list(map(fitted_or_why, tasks))
        try:
            return list(_processes(workers)(fitted_or_why, tasks))
        except BrokenProcessPool:
            _processes.cache_clear()  # a later run has others
            raise


def _of_one(data: TrainingData, client: int) -> TrainingData:
    return TrainingData(*(np.asarray(leaf[client]) for leaf in data))


def _replaced(leaf: Any, rows: np.ndarray, clients: np.ndarray) -> Any:
    """An array or table [M, ...] with the rows of these clients."""
    if isinstance(leaf, RowTable):
        return leaf.replaced(clients, rows)
    copy = np.array(leaf)
    copy[clients] = rows
    return copy


@functools.cache
def _processes(count: int) -> Mapped:
    """A `map` over `count` processes, shared by all learners; they end with this process."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(worker_processes(count))
