"""Episodes: what is drawn, how often, and what only fills a step's rows."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from jaxfed.training.local.batches import Batches, ClientData, Episodes, _episodes, draw

SIZES = Episodes(num_classes=3, support=2, query=2, unlabeled=5)


def test_an_episode_is_drawn_without_replacement_class_by_class():
    label = np.array([2, 0, 0, 0, 0, 1, 2, 2, 2, -1, -1, -1, -1], np.int32)
    is_labeled, is_unlabeled = label >= 0, label < 0
    drawn = jax.jit(partial(draw, sizes=SIZES))
    seen = np.zeros((2, 13))
    for seed in range(300):
        index, used = map(np.asarray, drawn(jax.random.key(seed), label, is_labeled, is_unlabeled))
        support, query, unlabeled = index[:6], index[6:12], index[12:]
        for k in range(3):
            own = [*support[2 * k : 2 * k + 2][used[2 * k : 2 * k + 2]]]
            own += [*query[2 * k : 2 * k + 2][used[6 + 2 * k : 8 + 2 * k]]]
            assert (label[own] == k).all()
            assert len(set(own)) == len(own) == min(4, (label == k).sum())
        assert (label[unlabeled] == -1).all()
        assert used[12:].sum() == 4
        assert len(set(unlabeled[used[12:]])) == 4
        seen[0, support[used[:6]]] += 1
        seen[1, query[used[6:12]]] += 1
    # Four examples of class 0, two places in each part: 150 of 300 times each, give or take 35.
    assert np.abs(seen[:, 1:5] - 150).max() < 36


def test_places_left_over_repeat_labeled_examples():
    """Padding would count in batch statistics: rows of a class that the client lacks hold no padding."""
    label, is_example = np.array([1, 2, 2, -1, -1, 0], np.int32), np.arange(6) < 5
    members = is_example & (label >= 0), is_example & (label < 0)
    index, used = jax.jit(partial(draw, sizes=SIZES))(jax.random.key(0), label, *members)
    assert not np.any(used[:2])
    assert np.all(label[index[:12]] > 0)


def test_every_pair_of_support_and_query_is_equally_likely():
    """Six examples of class 0, two padding rows that have its label, and unlabeled ones."""
    label = np.array([0] * 6 + [1, 1, 2, -1, -1, -1, 0, -1], np.int32)
    is_example = np.arange(14) < 12
    sizes = Episodes(num_classes=3, support=1, query=1, unlabeled=2)
    drawn = jax.jit(
        jax.vmap(partial(draw, sizes=sizes), in_axes=(0, None, None, None)),
    )
    keys = jax.random.split(jax.random.key(0), 3000)
    index, used = map(
        np.asarray, drawn(keys, label, is_example & (label >= 0), is_example & (label < 0))
    )
    pairs = np.bincount(6 * index[:, 0] + index[:, 3], minlength=36).reshape(6, 6)
    assert not pairs.trace()
    assert stats.chisquare(pairs[~np.eye(6, dtype=bool)]).pvalue > 1e-4
    unlabeled = np.bincount(index[:, 6:].ravel(), minlength=14)
    assert unlabeled[9:12].sum() == 6000
    assert stats.chisquare(unlabeled[9:12]).pvalue > 1e-4
    np.testing.assert_array_equal(used.all(axis=0), [1, 1, 1, 1, 1, 0, 1, 1])  # class 2 has one


def test_one_step_tells_nothing_of_the_next():
    """A client's supports of one of six labels in two steps: 36 pairs, all equally likely."""
    is_labeled = jnp.arange(8) < 6
    label = jnp.where(is_labeled, 0, -1)
    data = ClientData(jnp.zeros((8, 1)), label, jnp.ones(8), is_labeled, jnp.ones(8, bool))
    batches = Batches("episodes", 3, 2, episodes=Episodes(1, support=1, query=1, unlabeled=1))

    def supports(key):
        plan = _episodes(data, batches, key)
        return jnp.stack([plan.rows(step)[0][0] for step in range(2)])

    keys = jax.random.split(jax.random.key(0), 3600)
    first, second = np.asarray(jax.jit(jax.vmap(supports))(keys)).T
    assert stats.chisquare(np.bincount(6 * first + second, minlength=36)).pvalue > 1e-6


def test_without_labels_there_is_no_step():
    everyone = jnp.ones(4, bool)
    batches = Batches("episodes", 3, 2, episodes=Episodes(1, support=1, query=1, unlabeled=1))
    for num_labeled, steps in ((0, 0), (1, 2)):
        is_labeled = jnp.arange(4) < num_labeled
        data = ClientData(
            jnp.zeros((4, 1)), jnp.zeros(4, jnp.int32), jnp.ones(4), is_labeled, everyone
        )
        assert _episodes(data, batches, jax.random.key(0)).num_steps == steps
