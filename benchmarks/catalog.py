"""Benchmarks of `launch.bench`: one file per kernel or protocol, with named peers in the same run."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from benchmarks.kernels import graphs, hashing, neighbors, peak_memory
from benchmarks.methods import deployment, experiment, labeling, labeling_cost, later_points, start
from benchmarks.protocols import many_clients, row_sums, secure_hamming, sparse_sums
from benchmarks.rounds import (
    fedavg_round,
    fssl_round,
    learners,
    on_disk,
    population,
    protofssl_round,
    scaling,
    shadow_models,
)
from benchmarks.timing.contest import Contest

_LARGE_50 = partial(graphs.large_propagation, neighbors=(50,))

# name -> a function (peers wanted?) -> contests; slow set-up happens only when a contest is drawn.
BENCHMARKS: dict[str, Callable[[bool], Iterator[Contest]]] = {
    "lsh": hashing.projection,
    "hamming": hashing.distances,
    "knn": neighbors.hamming_knn,
    "peak_memory": peak_memory.peak_memory,
    "cosine_knn": neighbors.cosine_knn,
    "graph": graphs.construction,
    "label_propagation": graphs.propagation,
    "large_propagation": graphs.large_propagation,
    "large_propagation_50": _LARGE_50,
    "xclp": labeling.xclp,
    "labeling_cost": labeling_cost.labeling_cost,
    "later_points": later_points.later_points,
    "round": fedavg_round.fedavg_round,
    "scaling": scaling.scaling,
    "population": population.population,
    "on_disk": on_disk.on_disk,
    "experiment": experiment.experiment,
    "experiment_mlp": partial(experiment.experiment, networks=("mlp",)),
    "experiment_cnn": partial(experiment.experiment, networks=("cnn",)),
    "start": start.first_result,
    "deployment": deployment.deployment,
    "protofssl_round": protofssl_round.protofssl_round,
    "fssl_round": fssl_round.fssl_round,
    "learners": learners.learners,
    "shadow_models": shadow_models.shadow_models,
    "secure_hamming": secure_hamming.distances,
    "many_clients": many_clients.pairs,
    "all_pairs": many_clients.all_pairs,
    "row_sums": row_sums.masking,
    "sparse_sums": sparse_sums.sums,
    "large_sums": sparse_sums.large_sums,
    "model_sums": sparse_sums.model_sums,
}

# Benchmarks that are part of another one.
PART_OF = {
    "experiment_mlp": "experiment",
    "experiment_cnn": "experiment",
    "large_propagation_50": "large_propagation",
}

# Benchmarks that accept other numbers of points.
OF_ANY_SIZE: dict[str, Callable[[bool, Sequence[int]], Iterator[Contest]]] = {
    "knn": neighbors.hamming_knn,
    "cosine_knn": neighbors.cosine_knn,
    "graph": graphs.construction,
    "label_propagation": graphs.propagation,
    "large_propagation": graphs.large_propagation,
    "large_propagation_50": _LARGE_50,
}
