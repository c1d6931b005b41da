"""An audit on paper: rows, their adversaries, and what a rate resolves."""

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
