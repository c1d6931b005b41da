"""Tables of the papers as printed, and ProtoFSSL's Table 2 from its Table 1 and from ResNet-9."""

from functools import cache

import jax
import jax.numpy as jnp
import pytest

from jaxfed.errors import UsageError
from jaxfed.kernels.devices import operations
from jaxfed.models import MODELS
from jaxfed.models.layers import by_definition
from jaxfed.paper_numbers import PAPER_COSTS, PAPER_TABLES, CostSetting, paper_table
from jaxfed.reports import tables


@pytest.mark.parametrize("name", PAPER_TABLES)
def test_papers_tables_are_whole(name):
    table = paper_table(name)
    assert {len(row) for row in table.rows.values()} == {len(table.columns)}
    assert set(table.other_metrics) <= set(table.columns)
    cells = [
        (table.measure(column), cell)
        for row in table.rows.values()
        for column, cell in zip(table.columns, row, strict=True)
        if cell is not None
    ]
    accuracies = [cell for metric, cell in cells if metric == table.metric]
    assert all(1 < mean <= 100 for mean, _ in accuracies)
    assert all(0 < std < 4 for _, std in accuracies if std is not None)
    assert all(0.5 < mean < 1 for metric, (mean, _) in cells if metric != table.metric)
    shown = tables.paper_orientation(table, "p")
    assert len(shown.records) == len(cells)
    assert table.data in shown.title
    assert "other data" in shown.caption


@pytest.mark.parametrize(
    ("name", "setting", "column", "cell"),
    [
        ("xclp/1", "18597", "pretrained: per-client LP", (55.10, 0.51)),
        ("xclp/6", "0.1", "identity: XCLP", (49.29, 0.16)),
        ("protofssl/3", "FixMatch-FedProx", "SVHN, iid", (87.6, None)),
        ("protofssl/8", "20", "E = 2", (42.7, None)),
        ("fedct/1", "SVHN", "DP-FedAvg: ACC", (71, 0.5)),
        ("fedct/2", "Covertypes", "RuleFit: FedCT", (73, 2)),
        ("fedct/3", "XGBoost at all", "ACC", (94, None)),
        ("fedct/C.4", "FedCT", "ACC", (51.06, None)),
    ],
)
def test_papers_numbers(name, setting, column, cell):
    table = paper_table(name)
    assert table.rows[setting][table.columns.index(column)] == cell


def test_an_unknown_paper_table_is_named():
    with pytest.raises(UsageError, match="'xclp/9'"):
        paper_table("xclp/9")


def network(name):
    """F forward, F forward and back, and Theta; one network is all methods' but ProtoFSSL's."""
    return costs(has_head=name != "protofssl")


@cache
def costs(*, has_head):
    shape = (32, 32, 3)
    model = MODELS["resnet9"](shape, 10 if has_head else None)
    state = jax.eval_shape(model.init, jax.random.key(0))
    image = jax.ShapeDtypeStruct((1, *shape), jnp.float32)

    def loss(state, x):
        return jnp.sum(model.apply(state, x))

    with by_definition():  # with the taps on the padding, as papers count
        forward = operations(model.apply, state, image)
        both = operations(jax.grad(loss), state, image)
    num_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    return forward, both, num_bytes


@pytest.mark.parametrize("name", PAPER_COSTS)
@pytest.mark.sample(2)
def test_table_2_is_one_epoch_of_forward_passes(name):
    forward, both, num_bytes = network(name)
    row = PAPER_COSTS[name]
    setting = CostSetting(forward, num_bytes, labeled=50, unlabeled=490)
    assert row.operations(setting) / 1e9 == pytest.approx(row.gigaflop, rel=1e-3)
    assert row.bytes(setting) / 1e6 == pytest.approx(row.megabytes, abs=0.06)
    assert both == pytest.approx(3 * forward, rel=0.01)


def test_the_forward_pass_of_resnet9_by_hand():
    convolutions = 9 * (
        32 * 32 * (3 * 64 + 64 * 128)
        + 16 * 16 * (2 * 128 * 128 + 128 * 256)
        + 8 * 8 * 256 * 512
        + 4 * 4 * 2 * 512 * 512
    )
    assert network("fixmatch")[0] == pytest.approx(2 * (convolutions + 512 * 10), rel=2e-3)
