"""Training of a part of a network: its head, its norms, or low-rank updates of its dense layers.

A state w is split into v, which is trained, sent and stored, and u, which stays as everybody has it:

    "head"    v: the parameters that the head reads. Features are those of evaluation.
    "norms"   v: the head, and scale and bias of every norm.
    "lora"    v: the head, and for every dense kernel W [in, out] below it A [in, r] and B [r, out]:
              W = W_0 + (alpha / r) A B,    r up to each `in`,    A^T A = I and B = 0 before the first step

Running statistics are in v of "norms" and "lora"; "head" leaves them as they are. A network without a head
has none in v.

E. J. Hu et al. "LoRA: Low-Rank Adaptation of Large Language Models". ICLR 2022. Its A is drawn from a uniform
distribution; here its columns are orthonormal. It is drawn once, never again in a later round. With
`lora_factors="both"` A and B are averaged one by one, as FedAvg does with any parameter; the mean of products
A_k B_k is another matrix. With "b" A is in u and B alone is trained (FFA-LoRA: Y. Sun, Z. Li, Y. Li, B. Ding,
ICLR 2024), so the mean of B_k gives exactly the mean of products, and half of the numbers are sent.

"b" with r = alpha = `in` at every layer trains the dense kernels and the head in full, up to rounding:
A A^T = I, so a step of SGD moves A B by the step of W. The same holds with momentum, and for means over
clients. It does not hold with weight decay, which draws W to W_0 instead of 0, nor with an optimizer that
scales entries separately. A network with no other parameters is then trained as by "all".

Bytes of v, 4 each: sum over dense kernels of r (in + out), with "b" r out; and of the head.

u is a constant of the compiled programs. That suits some 100 million parameters; for larger networks compute
features once (`jaxfed.data.features`) and train a head on them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.models.head import Path, head_paths, read_by_head
from jaxfed.models.model import Model, compose

Trainable = Literal["all", "head", "norms", "lora"]
LoraFactors = Literal["both", "b"]


def partly_trained(
    model: Model,
    start: nnx.State,
    trainable: Trainable,
    *,
    lora_rank: int,
    lora_alpha: float,
    lora_factors: LoraFactors,
    key: jax.Array | None = None,
) -> tuple[Model, Callable[[nnx.State], nnx.State]]:
    """Return the model whose states are v, and the function w -> v of a state before its first step.

    Args:
        model: the whole network, of states w.
        start: w; everything that is not trained stays as it is there.
        trainable: the part that is trained.
        lora_rank, lora_alpha, lora_factors: of "lora".
        key: of A; None: key 0.

    Raises:
        UsageError: the network has no such part, or a dense layer of fewer than `lora_rank` inputs.
    """
    if trainable == "all":
        return model, lambda state: state
    chosen, factors, scale = _split(model, start, trainable, lora_rank, lora_alpha, key)
    moves, sends_a = trainable != "head", lora_factors == "both"

    def part(state: nnx.State) -> nnx.State:
        leaves = dict(nnx.to_flat_state(state))
        kept = {
            name: leaf
            for name, leaf in leaves.items()
            if name in chosen or (moves and isinstance(leaf, nnx.BatchStat))
        }
        for name, a in factors.items():
            if sends_a:
                kept[(*name[:-1], "lora_a")] = nnx.Param(a)
            b = jnp.zeros((a.shape[1], leaves[name].shape[1]), jnp.float32)
            kept[(*name[:-1], "lora_b")] = nnx.Param(b)
        return nnx.from_flat_state(sorted(kept.items(), key=lambda item: str(item[0])))

    def joined(state: nnx.State, *, is_body: bool = True) -> nnx.State:
        """Return w of v; for the head alone, kernels below it may be those of the start."""
        leaves, trained = dict(nnx.to_flat_state(start)), dict(nnx.to_flat_state(state))
        for name, a in factors.items() if is_body else ():
            a = trained[(*name[:-1], "lora_a")][...] if sends_a else a
            product = a @ trained[(*name[:-1], "lora_b")][...]
            leaves[name] = nnx.Param(leaves[name][...] + scale * product)
        return nnx.from_flat_state((name, trained.get(name, leaf)) for name, leaf in leaves.items())

    def features(state: nnx.State, x: jax.Array) -> jax.Array:
        return model.features(joined(state) if moves else start, x)

    def train_features(
        state: nnx.State, x: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, nnx.State]:
        if not moves:
            return features(state, x), state
        activations, after = model.train_features(joined(state), x, key)
        return activations, nnx.merge_state(state, nnx.filter_state(after, nnx.BatchStat))

    made = compose(
        init=lambda key: part(model.init(key)),
        features=features,
        head=lambda state, features: model.head(joined(state, is_body=False), features),
        train_features=train_features,
        by_example=model.by_example or not moves,
    )
    return made, part


def _split(
    model: Model,
    start: nnx.State,
    trainable: Trainable,
    rank: int,
    alpha: float,
    key: jax.Array | None,
) -> tuple[frozenset[Path], dict[Path, jax.Array], float]:
    """Names of the leaves of w that v has; dense kernel's name -> A; the factor of A B."""
    setting = f"trainable={trainable!r}"
    head = head_paths(model, setting) if trainable == "head" else read_by_head(model)
    leaves = dict(nnx.to_flat_state(nnx.filter_state(start, nnx.Param)))
    trained, what = head, ""
    if trainable == "norms":
        scales = {name[:-1] for name in leaves if name[-1] == "scale"}
        trained, what = frozenset(name for name in leaves if name[:-1] in scales), "norm"
    elif trainable == "lora":
        kernels = (name for name, leaf in leaves.items() if name[-1] == "kernel" and leaf.ndim == 2)
        trained, what = frozenset(kernels) - head, "dense layer below its head"
    if not trained:
        wrong, other = f"the network has no {what}", "use another part, or 'all'"
        raise UsageError(wrong, key="trainable", value=trainable, allowed=other)
    if trainable != "lora":
        return head | trained, {}, 1.0
    key, draw = jax.random.key(0) if key is None else key, jax.nn.initializers.orthogonal()
    if rank > (least := min(leaves[name].shape[0] for name in trained)):
        wrong = f"a dense layer has {least} inputs"
        raise UsageError(wrong, key="lora_rank", value=rank, allowed=f"use at most {least}")
    factors = {
        name: draw(jax.random.fold_in(key, number), (leaves[name].shape[0], rank), jnp.float32)
        for number, name in enumerate(sorted(trained, key=str))
    }
    return head, factors, alpha / rank
