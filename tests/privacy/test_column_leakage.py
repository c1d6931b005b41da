"""What columns give away, as docs/threat-model.md says.

Line 12 of Algorithm 1 gives client j the columns S_L^(j) of S = (I - alpha W)^-1 at its labeled points, n
numbers each. Two attacks read them:

    class of i           argmax_c  mean over l with y_l = c of S_il
    edge score of i, k   <s_i, s_k> / |s_i| |s_k|,     s_i = (S_il)_l,     as neighbors have similar rows of S

No protocol that sends columns prevents this, as the columns are the client's output.
"""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from threat_model import table

from jaxfed import xclp
from jaxfed.secure import influence_columns
from jaxfed.xclp.steps import knn_graph

NUM_CLIENTS = 5


def classes_from_columns(columns, labels, num_classes):
    """The likeliest class of every point, int [n], from columns [n, m] of points with classes int [m]."""
    one_hot = np.eye(num_classes)[labels]
    return (columns @ one_hot / np.maximum(one_hot.sum(axis=0), 1)).argmax(axis=1)


def edge_scores(columns):
    """Cosines of two points' rows, float64 [n, n]."""
    rows = np.asarray(columns, np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    directions = rows / np.where(lengths > 0, lengths, 1)
    return directions @ directions.T


def received_columns(monkeypatch, num_labeled):
    """All that client 0 is sent of S in a run over the digits; the truth, and the edges of the graph."""
    data, rng = load_digits(), np.random.default_rng(0)
    parts = np.array_split(rng.permutation(len(data.data)), NUM_CLIENTS)
    labels = [np.full(len(part), -1) for part in parts]
    labels[0][:num_labeled] = data.target[parts[0][:num_labeled]]
    columns, graphs = [], []
    received, graph_of = influence_columns.received_columns, knn_graph.server_graph

    def recorded_columns(endpoint, shape):
        columns.append(received(endpoint, shape))
        return columns[-1]

    def recorded_graph(indices, *arguments):
        graphs.append(np.asarray(indices))
        return graph_of(indices, *arguments)

    monkeypatch.setattr(influence_columns, "received_columns", recorded_columns)
    monkeypatch.setattr(knn_graph, "server_graph", recorded_graph)
    vectors = [data.data[part].astype(np.float32) for part in parts]
    xclp.propagate_labels(vectors, labels, num_classes=10, row_sums="masked", influence="columns")
    truth = data.target[np.concatenate(parts)]
    return columns, truth, len(parts[0]), graphs[0][: len(truth)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, marks=pytest.mark.slow if i else ())
        for i, row in enumerate(table("columns"))
    ],
    ids=lambda row: row[0],
)
def test_figures_of_the_threat_model(row, monkeypatch):
    num_labeled, classes, auc = int(row[0]), float(row[1]), float(row[2])
    [columns], truth, num_own, neighbors = received_columns(monkeypatch, num_labeled)
    found = classes_from_columns(columns, truth[:num_labeled], 10)
    assert 100 * np.mean((found == truth)[num_own:]) == pytest.approx(classes, abs=0.6)
    edges = np.zeros((len(truth),) * 2, bool)
    np.put_along_axis(edges, neighbors, True, axis=1)
    between = np.triu_indices(len(truth) - num_own, 1)
    others = (edges | edges.T)[num_own:, num_own:][between]
    scores = edge_scores(columns)[num_own:, num_own:][between]
    assert roc_auc_score(others, scores) == pytest.approx(auc, abs=0.006)
