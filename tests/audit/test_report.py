"""An audit on paper: rows, their adversaries, and what a rate resolves."""

import itertools

import pytest
from whole_figures import assert_nothing_is_cut

from jaxfed.audit.report import attack_text, vulnerability_figure, vulnerability_table


def test_a_table_and_a_figure():
    rows = [
        {
            "method": name,
            "accuracy": accuracy,
            "accuracy_spread": None,
            "accuracy_on": "test" if accuracy else "",
            "attack": "strongest: loss on labels, round 1" if auc else "",
            "leaves": name != "local_learning",
            **({"auc": auc, "low": auc - 0.01, "high": auc + 0.01} if auc else {}),
            **({"tpr_at_1_percent": 0.02, "tpr_at_none": 0.04} if auc else {}),
            **(
                {"tpr_at_none_low": 0.01, "tpr_at_none_high": 0.1, "others_at_once": n}
                if auc
                else {}
            ),
            "adversary": "server" if name == "fedavg" else "nobody" if auc else "",
        }
        for name, accuracy, auc, n in (
            ("fedavg", 0.8, 0.7, 125),
            ("local_learning", 0.6, 0.9, 99),
            ("per_client_lp", None, None, None),
        )
    ]
    lines = vulnerability_table(rows).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == [
        "| Per-client LP",
        "| FedAvg",
        "| Each client alone",
    ]
    # A rate is given only where the number of others resolves it.
    assert "| 2.0 | 4.0 (1.0 to 10.0; n = 125) |" in lines[3]
    assert "| – | 4.0 (1.0 to 10.0; n = 99) |" in lines[4]
    assert [line.split(" | ")[1] for line in lines[2:]] == ["–", "server", "nobody"]
    assert attack_text(rows[1]).endswith("(which nobody has)")
    names = vulnerability_figure(rows).axes[0].texts
    assert [text.get_text() for text in names] == ["Each client alone", "FedAvg"]
    assert vulnerability_figure([]).axes[0].texts[:] == []


@pytest.mark.parametrize("accuracies", [[0.5] * 12, [0.1, 0.5, 0.501, 0.502, 0.503, 0.9]])
def test_names_of_a_figure_stand_beside_the_axes_and_no_line_crosses_another(accuracies):
    rows = [
        {"method": f"a_variant_with_a_long_name_{i}, of two settings", "adversary": "server"}
        | {"accuracy": accuracy, "accuracy_spread": None, "leaves": True}
        | {"auc": 0.9 - 0.05 * i, "low": 0.3, "high": 0.95 - 0.05 * i}
        for i, accuracy in enumerate(accuracies)
    ]
    figure = vulnerability_figure(rows)
    assert_nothing_is_cut(figure)
    (ax,) = figure.axes
    right = ax.get_window_extent().x1
    boxes = [text.get_window_extent() for text in ax.texts]
    assert len(boxes) == len(rows)
    assert min(box.x0 for box in boxes) > right
    assert all(below.y1 <= above.y0 + 1 for below, above in itertools.pairwise(boxes))
    leaders = [line.get_ydata() for line in ax.lines if line.get_transform() != ax.transData]
    ends = [ends for ends in leaders if len(ends) == 2 and tuple(ends) != (0, 1)]
    assert all(a[0] <= b[0] and a[1] < b[1] for a, b in itertools.pairwise(ends[-len(rows) :]))


def test_an_adversary_of_a_method_that_has_several_is_named_with_its_auc():
    rows = [
        {"method": "xclp", "adversary": adversary, "accuracy": 0.9, "accuracy_spread": None}
        | {"leaves": True, "auc": auc, "low": auc, "high": auc}
        for adversary, auc in (("server", 1.0), ("one more client", 0.7))
    ]
    names = [text.get_text() for text in vulnerability_figure(rows).axes[0].texts]
    assert names == ["XCLP (server, 1.00)", "XCLP (one more client, 0.70)"]
