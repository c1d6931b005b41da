import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxfed.host import row_table
from jaxfed.host.checkpoint import Checkpoints, copied_leaves
from jaxfed.host.row_table import RowTable

NUM, FIRST = 50, np.float32([1, 2, 3])


def table_of(rows):
    return RowTable(len(rows), rows[0]).replaced(np.arange(len(rows)), rows)


def plain(table):
    return np.asarray(table)


@pytest.mark.parametrize("merged_from", [1, 4096])
def test_every_version_stays_a_value(monkeypatch, merged_from):
    """Versions of a tree of futures, drawn at random, beside arrays that are copied whole."""
    monkeypatch.setattr(row_table, "_MERGED_FROM", merged_from)
    rng = np.random.default_rng(0)
    start = RowTable(NUM, FIRST)
    versions = [(start, np.tile(FIRST, (NUM, 1)))]
    for step in range(60):
        is_newest = rng.random() < 0.7
        table, array = versions[-1 if is_newest else rng.integers(len(versions))]
        places = rng.choice(NUM, size=rng.integers(0, 8), replace=False)
        rows = rng.normal(size=(len(places), 3)).astype(np.float32)
        array = array.copy()
        array[places] = rows
        versions.append((table.replaced(places, rows), array))
        if step % 20 == 19:
            del versions[rng.integers(len(versions) - 1)]
    for table, array in versions:
        np.testing.assert_array_equal(plain(table), array)
        np.testing.assert_array_equal(table[[7, 7, 3]], array[[7, 7, 3]])
        np.testing.assert_array_equal(table[4], array[4])
        unchanged = np.setdiff1d(np.arange(NUM), table.changed())
        np.testing.assert_array_equal(array[unchanged], np.tile(FIRST, (len(unchanged), 1)))


def test_rows_are_written_in_place_and_nobody_keeps_what_nobody_holds():
    table = RowTable(NUM, FIRST).replaced([0], FIRST[None])
    place, size = table._array.rows.ctypes.data, []
    for number in range(100):
        table = table.replaced([number % NUM], np.full((1, 3), number, np.float32))
        assert table._array.rows.ctypes.data == place
        size.append(len(table._array.older))
    assert set(size) == {0}
    assert not table._patches


def test_a_version_keeps_no_more_than_the_rows_that_changed_since(monkeypatch):
    monkeypatch.setattr(row_table, "_MERGED_FROM", 1)
    best = table = RowTable(NUM, FIRST).replaced([0], FIRST[None])
    for number in range(400):
        table = table.replaced([number % 5], np.full((1, 3), number, np.float32))
    assert sum(len(places) for places, _ in best._patches) <= 10
    np.testing.assert_array_equal(plain(best), np.tile(FIRST, (NUM, 1)))


def test_typed_keys():
    keys = jax.random.split(jax.random.key(0, impl="rbg"), 5)
    table = table_of(keys)
    assert (table.shape, table.dtype) == (keys.shape, keys.dtype)
    assert jax.random.key_impl(table[[1]]) == jax.random.key_impl(keys)
    after = table.replaced([2], keys[:1])
    for there, wanted in ((table, keys), (after, keys.at[2].set(keys[0]))):
        np.testing.assert_array_equal(plain(there), jax.random.key_data(wanted))


def checkpointed(state, template, tmp_path):
    Checkpoints(tmp_path / "a").save(1, state, {})
    return Checkpoints(tmp_path / "a").latest().state(template=template)


@pytest.mark.parametrize("block", [1, 2**24])
@pytest.mark.parametrize("first", [FIRST, jnp.bfloat16([1, 2]), np.int8(3)], ids=str)
@pytest.mark.parametrize("forms", ["tt", "ta", "at"])
def test_a_checkpoint_has_the_changed_rows(tmp_path, monkeypatch, block, first, forms):
    """Tables and arrays are read from each other's checkpoints: their limit may have changed."""
    monkeypatch.setattr(row_table, "_BLOCK", block)
    start = RowTable(NUM, first)
    table = start.replaced([7, 3], np.zeros((2, *first.shape), first.dtype))
    arrays = {"t": lambda table: table, "a": lambda table: jnp.asarray(plain(table))}
    state, template = (
        {"w": arrays[form](each)} for form, each in zip(forms, (table, start), strict=True)
    )
    restored = checkpointed(state, template, tmp_path)["w"]
    assert isinstance(restored, RowTable) == (forms[1] == "t")
    assert restored.dtype == table.dtype
    np.testing.assert_array_equal(plain(restored), plain(table))
    np.testing.assert_array_equal(plain(start), np.repeat(np.asarray(first)[None], NUM, 0))
    if forms == "tt":
        np.testing.assert_array_equal(restored.changed(), [3, 7])
        with np.load(next((tmp_path / "a").iterdir())) as saved:
            assert saved["state/w"].shape == (2, *first.shape)


def test_a_checkpoint_of_keys(tmp_path):
    table = table_of(jax.random.split(jax.random.key(3), 4))
    restored = checkpointed(table, table_of(jax.random.split(jax.random.key(4), 4)), tmp_path)
    np.testing.assert_array_equal(plain(restored), plain(table))


def test_a_save_in_the_background_copies_no_table_and_has_its_version(tmp_path):
    table = RowTable(NUM, FIRST).replaced([1], FIRST[None] + 1)
    before = plain(table)
    leaves = copied_leaves({"w": table})
    assert leaves[0][1] is table
    table.replaced([1, 2], np.zeros((2, 3), np.float32))  # the run goes on
    Checkpoints(tmp_path).write(1, leaves, {})
    restored = Checkpoints(tmp_path).latest().state(template={"w": RowTable(NUM, FIRST)})["w"]
    np.testing.assert_array_equal(plain(restored), before)


@pytest.mark.parametrize(
    ("num_rows", "size", "step"), [(100_000, 1_000, 1_000), (1_000_000, 25, 50)]
)
def test_memory_is_that_of_the_rows_that_were_written(num_rows, size, step):
    """Pages in use of tables of 400 and 100 MB, with rows of 4 kB and of 100 bytes far from each other."""

    def in_use():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    table = RowTable(num_rows, np.zeros(size, np.float32))
    before = in_use()
    places = np.arange(0, num_rows, step)
    table = table.replaced(places, np.ones((len(places), size), np.float32))
    np.testing.assert_array_equal(table[[0, 1]].sum(axis=1), [size, 0])
    assert in_use() - before < 20e6


def test_a_place_that_occurs_twice_has_the_last_row():
    """And the next new place has a row of its own."""
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    table = RowTable(NUM, FIRST).replaced([5, 2, 5], rows[:3]).replaced([9], rows[3:])
    np.testing.assert_array_equal(table[[5, 2, 9, 0]], [rows[2], rows[1], rows[3], FIRST])
    assert table._array.num_written == 3
