"""Learners of five clients: networks against a PyTorch loop, forests with and without processes.

Networks start from the same weights and draw their own batches; results are compared by their loss on
unlabeled public examples. Forests are identical, tree by tree.

Lower bound of a client's step: its matrix products at the machine's rate for large ones, and Adam's 28 bytes
per parameter (gradient, parameter and two moments read, three of them written) at the memory's bandwidth, or
faster in cache. In addition there are batches, random draws, a copy of the kernel for both directions, and
hundreds of small operations on one core while the others wait. So networks get a core each if cores are
devices (`jaxfed.federation.execution`), as here: none waits for another's products, and the last
of an odd number uses all cores. In November 2026, on two cores with AVX-512, this reached 58 % of the rate of
large products. PyTorch's loop reached 38 % and took 1.51 times as long (results/bench_learners.json).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.rounds.fedavg_round import (
    NUM_CLASSES,
    Parameters,
    alike,
    as_dict,
    labeled_clients,
    noisy_patterns,
    on_cpu,
    put,
)
from benchmarks.timing.contest import Contest, Work, optional_peer
from jaxfed.federation.clients import Federation
from jaxfed.federation.execution import HERE, Execution
from jaxfed.host.parallel.devices import num_cores
from jaxfed.learners import LEARNERS, Learner, PublicTargets
from jaxfed.learners.networks import NetworkState
from jaxfed.models.mlp import mlp
from jaxfed.models.model import normalized
from jaxfed.training.local.batches import Batches
from jaxfed.training.local.local_training import LocalTraining, rebuilt
from jaxfed.training.specification import Training

CLIENTS, EXAMPLES, PUBLIC = 5, 2000, 5000  # FedCT's clients of Fashion-MNIST; a tenth of its U
STEPS, BATCH, RATE = 50, 64, 1e-3  # its period b, and Adam's rate
FEATURES, ROWS, TREES = 54, 500, 50  # as wide as Covertype
TAUGHT = 2000
# Forward, the kernels' gradients, and the inputs' gradients of all layers but the first.
MULTIPLY_ADDS = 3 * (784 * 512 + 512 * 512 + 512 * 10) - 784 * 512
TORCH, IN_TURN = "PyTorch loop", "one after another"


def learners(with_peers: bool) -> Iterator[Contest]:
    """50 steps of FedCT's network for Fashion-MNIST, 64 own and 64 public images each; random forests."""
    yield _networks(with_peers)
    yield _forests()


def _networks(with_peers: bool) -> Contest:
    federation = _images()
    x, y = federation.public_examples, federation.y[federation.public]
    shape, (mean, deviation) = x.shape[1:], federation.normalization
    training = Training(
        normalized(mlp(shape, NUM_CLASSES), mean, deviation),
        local=LocalTraining(
            optimizer=optax.adam,
            learning_rate=optax.constant_schedule(RATE),
            batches=Batches("joint", BATCH, 1),
        ),
    )
    learner = LEARNERS["network"](training=training, public_batch_size=BATCH)
    start = learner.init(jax.random.key(0), federation)
    is_labeled = np.arange(PUBLIC) < PUBLIC // 2  # answers are compared on the others
    label = np.where(is_labeled, y, -1).astype(np.int32)
    targets = PublicTargets(jnp.asarray(x), label, np.ones(PUBLIC, np.float32))

    def advance() -> Parameters:
        fitted = learner.fit(start, federation.cohort(), targets, jax.random.key(1), STEPS)
        return as_dict(fitted.state.model)

    loop = partial(torch_loop, steps=STEPS, batch=BATCH, label=label)
    peers = optional_peer(TORCH, loop, federation, as_dict(start.model)) if with_peers else {}
    return Contest(
        task="learners, networks",
        case={"clients": CLIENTS, "steps": STEPS, "batch": f"{BATCH}+{BATCH}"},
        ours=advance,
        peers=peers,
        agreement=equally_good(learner, start, x[~is_labeled], y[~is_labeled]),
        work=Work(2 * MULTIPLY_ADDS * CLIENTS * STEPS * 2 * BATCH, "matmul_f32_flops"),
        targets=dict.fromkeys(peers, 1.5 if on_cpu() else 2.0),
    )


def _images() -> Federation:
    rng = np.random.default_rng(0)
    y = rng.integers(NUM_CLASSES, size=CLIENTS * EXAMPLES + PUBLIC).astype(np.int32)
    x = noisy_patterns(rng, y, side=28, channels=1, contrast=4)
    return labeled_clients(x, y, CLIENTS, EXAMPLES, NUM_CLASSES)


def equally_good(
    learner: Learner, start: NetworkState, x: np.ndarray, y: np.ndarray
) -> Callable[[Parameters, Parameters], str]:
    """Return a comparison of two sets of networks, trained from `start`, by their loss on these examples."""
    everyone = np.arange(len(start.fits), dtype=np.int32)

    def loss(parameters: Parameters) -> float:
        state = start._replace(model=rebuilt(start.model), fits=jnp.ones_like(start.fits))
        put(parameters, state.model)
        assert learner.scores is not None
        scores = jax.nn.log_softmax(learner.scores(state, everyone, x), axis=-1)
        return -float(scores[:, np.arange(len(y)), y].mean())

    def compare(ours: Parameters, theirs: Parameters) -> str:
        return alike(loss(ours), loss(theirs))

    return compare


def torch_loop(
    federation: Federation,
    start: Parameters,
    *,
    steps: int,
    batch: int,
    label: np.ndarray | None = None,
) -> Callable[[], Parameters]:
    """A typical PyTorch loop: one client's steps, then the next one's; all data on the device.

    With labels of public examples, int32 [U], half of every batch is public.
    """
    import torch
    from torch.nn import functional

    from benchmarks.peers.torch_network import network, parameters

    device = "cpu" if on_cpu() else "cuda"
    mean, deviation = (torch.tensor(part, device=device) for part in federation.normalization)
    starts = [
        network({key: value[client] for key, value in start.items()}).state_dict()
        for client in range(federation.num_clients)
    ]
    model = network({key: value[0] for key, value in start.items()}).to(device)
    own = [
        (torch.tensor(federation.x[rows]).to(device), torch.tensor(federation.y[rows]).to(device))
        for rows in federation.partition.labeled
    ]
    if label is not None:
        public_x = torch.tensor(federation.public_examples[label >= 0]).to(device)
        public_y = torch.tensor(label[label >= 0]).to(device)

    def advance() -> Parameters:
        torch.manual_seed(1)
        after: dict[str, list[np.ndarray]] = {key: [] for key in start}
        for client, (x, y) in enumerate(own):
            model.load_state_dict(starts[client])
            optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
            per_epoch = -(-len(x) // batch)
            for step in range(steps):
                if step % per_epoch == 0:
                    order = torch.randperm(len(x), device=device)
                turn = step % per_epoch * batch
                rows = order[turn : turn + batch]
                images = x[rows]
                if label is not None:
                    drawn = torch.randint(len(public_x), (batch,), device=device)
                    images = torch.cat([images, public_x[drawn]])
                logits = model((images.float() / 255 - mean) / deviation)
                loss = functional.cross_entropy(logits[: len(rows)], y[rows].long())
                if label is not None:
                    targets = logits[len(rows) :]
                    loss = loss + functional.cross_entropy(targets, public_y[drawn].long())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            for key, value in parameters(model, start).items():
                after[key].append(value)
        return {key: np.stack(each) for key, each in after.items()}

    return advance


def _forests() -> Contest:
    """Random forests of five clients in as many processes as there are cores, at most five."""
    workers = min(CLIENTS, num_cores())
    rng = np.random.default_rng(0)
    x = rng.standard_normal((CLIENTS * ROWS + TAUGHT, FEATURES)).astype(np.float32)
    y = (x @ rng.standard_normal((FEATURES, 7))).argmax(axis=1).astype(np.int32)
    federation = labeled_clients(x, y, CLIENTS, ROWS, 7)
    targets = PublicTargets(federation.public_examples, y[-TAUGHT:], np.ones(TAUGHT, np.float32))
    cohort = federation.cohort()

    def by(execution: Execution) -> Callable[[], np.ndarray]:
        def votes() -> np.ndarray:
            # A new learner each time, as a learner does not fit the same task again.
            learner = LEARNERS["random_forest"](num_classes=7, num_trees=TREES, execution=execution)
            state = learner.init(jax.random.key(0), federation)
            fitted = learner.fit(state, cohort, targets, jax.random.key(1), 1)
            assert not fitted.failed, fitted.failed
            return learner.predict(fitted.state, cohort.client_id, x[:ROWS])

        return votes

    return Contest(
        task="learners, forests",
        case={"clients": CLIENTS, "rows": ROWS + TAUGHT, "trees": TREES, "processes": workers},
        ours=by(Execution(workers)),
        peers={IN_TURN: by(HERE)},
        agreement=_the_same,
        # Three forests in one process and two in the other would be 1.67: the fifth is grown by both.
        targets={IN_TURN: 1.6} if workers > 1 else {},
    )


def _the_same(ours: Any, theirs: Any) -> str:
    np.testing.assert_array_equal(ours, theirs)
    return "the same votes"
