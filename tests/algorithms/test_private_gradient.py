"""Who is drawn in a step, and gradients that are clipped one by one."""

from functools import partial
from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small_training import KEY

from jaxfed.algorithms.dp_fedavg_records import drawn_examples, private_gradient
from jaxfed.models.mlp import mlp
from jaxfed.training.local.batches import ClientData
from jaxfed.training.local.losses import weighted_loss

SHARE, CLIP = 0.3, 0.7


def client(number, padding=0, features=4, fill=7.0):
    """Every fifth example has no label, and is never drawn."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((number, features)).astype(np.float32)
    y = rng.integers(0, 3, number).astype(np.int32)
    y[::5] = -1
    mask = np.arange(number + padding) < number
    x = np.pad(x, [(0, padding), (0, 0)], constant_values=fill)
    y = np.pad(y, (0, padding), constant_values=2)
    return ClientData(*map(jnp.asarray, (x, y, np.ones(len(y), np.float32), y >= 0, mask)))


def drawn(data, steps=400):
    plan = drawn_examples(data, KEY, share=SHARE, steps=steps)
    index, used = jax.vmap(plan.rows)(jnp.arange(steps))
    members = np.zeros(index.shape, bool)
    np.put_along_axis(members, np.asarray(index), np.asarray(used), axis=1)
    assert (np.sort(index, axis=1) == np.arange(index.shape[1])).all()
    return plan, members


def test_draws_are_of_the_share_and_of_nothing_else():
    data = client(50)
    plan, members = drawn(data)
    assert int(plan.num_steps) == 400
    can = np.asarray(data.label) >= 0
    assert not members[:, ~can].any()
    sizes = members.sum(axis=1)
    assert sizes.mean() == pytest.approx(12, abs=0.6)  # of 40
    assert sizes.var() == pytest.approx(40 * 0.3 * 0.7, rel=0.3)
    often = members[:, can].mean(axis=0)  # of each example: deviation 0.023
    assert np.abs(often - 0.3).max() < 0.1
    pairs = np.cov(members[:, can].astype(float), rowvar=False)
    off = pairs[~np.eye(40, dtype=bool)].mean() / pairs.diagonal().mean()
    assert off == pytest.approx(0, abs=0.01)
    assert len({row.tobytes() for row in members}) > 390


def test_padding_is_never_drawn_and_draws_nobody_else():
    _, members = drawn(client(20), steps=30)
    _, padded = drawn(client(20, padding=9), steps=30)
    np.testing.assert_array_equal(padded[:, :20], members)
    assert not padded[:, 20:].any()


def test_a_client_without_labels_takes_no_step():
    nobody = client(20)._replace(label=jnp.full(20, -1))
    assert int(drawn_examples(nobody, KEY, share=0.3, steps=9).num_steps) == 0


def gradient_at(data, *, noise=0.0, chunk=3, features=4, model=None, loss=None):
    model = model or mlp((features,), 3, hidden=())
    state = model.init(KEY)
    plan = drawn_examples(data, KEY, share=SHARE, steps=5)
    made = private_gradient(clip=CLIP, noise_multiplier=noise, share=SHARE, chunk=chunk)
    gradient_of = made(loss or weighted_loss(model), anchor=state, data=data, plan=plan, key=KEY)
    parameters, statistics = nnx.split_state(state, nnx.Param, ...)
    return state, plan, lambda step: gradient_of(parameters, statistics, step)


@pytest.mark.parametrize("padding", [0, 11])
def test_the_mean_is_of_clipped_gradients_over_what_is_expected(padding):
    data = client(22, padding)
    state, plan, gradient_of = gradient_at(data)
    w = np.concatenate([state["head"]["kernel"][...], state["head"]["bias"][...][None]])
    index, used = map(np.asarray, plan.rows(jnp.int32(2)))
    rows = index[used]
    x = np.hstack([np.asarray(data.x)[rows], np.ones((len(rows), 1))])
    y = np.asarray(data.label)[rows]
    p = np.exp(x @ w)
    p /= p.sum(axis=1, keepdims=True)
    own = x[:, :, None] * (p - np.eye(3)[y])[:, None]
    norms = np.sqrt(np.square(own).sum(axis=(1, 2)))
    assert (norms > CLIP).any()
    assert len(rows) > 3  # more than a chunk
    short = own * np.minimum(1, CLIP / norms)[:, None, None]
    expected = short.sum(axis=0) / (0.3 * 17)
    value, _, gradient = gradient_of(jnp.int32(2))
    found = np.concatenate(
        [gradient["head"]["kernel"][...], np.asarray(gradient["head"]["bias"][...])[None]]
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert float(value) == pytest.approx(-np.log(p[np.arange(len(y)), y]).mean(), rel=1e-4)


def test_noise_has_its_deviation_though_nobody_is_drawn():
    """z C over the expected number, not over the drawn one; the same client draws other noise each step."""
    model = mlp((400,), 3, hidden=())
    data = client(3, features=400)  # two labels
    _, plan, gradient_of = gradient_at(data, noise=2.0, features=400, model=model)
    _, _, quiet = gradient_at(data, features=400, model=model)
    empty = [s for s in range(40) if not np.asarray(plan.rows(jnp.int32(s))[1]).any()][:2]
    for step in (empty[0], empty[1]):
        noise = jax.tree.map(
            jnp.subtract, gradient_of(jnp.int32(step))[2], quiet(jnp.int32(step))[2]
        )
        assert float(quiet(jnp.int32(step))[0]) == 0  # the mean loss of nobody
        values = np.asarray(noise["head"]["kernel"][...]).ravel()
        assert values.std() == pytest.approx(2.0 * CLIP / (SHARE * 2), rel=0.08)
        assert abs(values.mean()) < 0.3
    first, second = (
        np.asarray(gradient_of(jnp.int32(s))[2]["head"]["kernel"][...]).ravel() for s in empty
    )
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.15


def test_noise_draws_from_no_key_of_a_loss(monkeypatch):
    """The loss at row i has `fold_in` of the step's key and i; `split` of that key would make the same."""
    keys = {"loss": set(), "noise": set()}

    def record(kind, key):
        def note(data):
            keys[kind].add(tuple(map(int, data)))

        jax.debug.callback(note, jax.random.key_data(key))

    def noisy(tree, key, deviation):
        for own in (key, *jax.random.split(key, 2)):
            record("noise", own)
        return tree

    def loss(state, anchor, batch, key):
        record("loss", key)
        return weighted_loss(model)(state, anchor, batch, key)

    monkeypatch.setattr(import_module(private_gradient.__module__), "noisy", noisy)
    model = mlp((4,), 3, hidden=())
    gradient_at(client(9), noise=1.0, chunk=9, model=model, loss=loss)[2](jnp.int32(0))
    jax.effects_barrier()
    assert (len(keys["noise"]), len(keys["loss"])) == (3, 9)
    assert not keys["noise"] & keys["loss"]


def test_gradients_of_a_chunk_alone_are_in_memory():
    data = client(64, features=3000)
    results, temporary = [], []
    for chunk in (2, 64):
        _, _, gradient_of = gradient_at(data, chunk=chunk, features=3000)
        compiled = jax.jit(partial(lambda f, step: f(step)[2], gradient_of)).lower(jnp.int32(1))
        program = compiled.compile()
        results.append(program(jnp.int32(1)))
        temporary.append(program.memory_analysis().temp_size_in_bytes)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), *results)
    model = 3000 * 3 * 4
    assert temporary[0] < 12 * model  # two gradients, and what they are made of
    assert temporary[1] > 60 * model
