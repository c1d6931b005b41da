"""An algorithm's second name: in reports a variant goes by its algorithm, and by its section's name."""

import pytest
from small_workdirs import bold, make_run, make_sweep
from whole_figures import assert_nothing_is_cut, run_figures

from jaxfed.experiment.store.records import read_run, sort_algorithms
from jaxfed.reports import tables
from jaxfed.reports.names import methods_of
from jaxfed.reports.report import build

# The pooled variant is best, and would by its name stand before all that are not XCLP's baselines.
ACCURACIES = {
    "a_pooled": (0.45, 0.46, 0.45),
    "a_xclp": (0.2, 0.21, 0.2),
    "fedavg": (0.1, 0.12, 0.1),
    "xclp": (0.3, 0.31, 0.3),
    "pooled_lp": (0.4, 0.41, 0.4),
}
SECTIONS = {
    "a_pooled__algorithm": "pooled_lp",
    "a_pooled__alpha": 0.9,
    "a_xclp__algorithm": "xclp",
    "a_xclp__alpha": 0.9,
}
DOTTED = {key.replace("__", "."): value for key, value in SECTIONS.items()}
NAMES = {
    "xclp": "XCLP",
    "a_xclp": "XCLP (a_xclp)",
    "fedavg": "FedAvg",
    "pooled_lp": "LP on pooled data",
    "a_pooled": "LP on pooled data (a_pooled)",
}


def run_of(place, accuracies=None, **settings):
    return read_run(make_run(place, accuracies or ACCURACIES, rounds=2, **{**SECTIONS, **settings}))


def test_a_run(tmp_path):
    run = run_of(tmp_path / "r")
    assert list(run.results) == list(NAMES)
    assert methods_of([run]).names == NAMES
    table = tables.run_table(run, "r")
    *names, to_variant, _, _, to_pooled = table.texts["method"]
    assert names == list(NAMES.values())
    assert to_variant == "XCLP − XCLP (a_xclp)"
    assert to_pooled == "XCLP − LP on pooled data (a_pooled)"
    assert bold(table) == {"XCLP"}


def test_figures_of_a_run(tmp_path):
    figures = run_figures(run_of(tmp_path / "r"))
    labels = figures["algorithms"].axes[0].get_yticklabels()
    assert [label.get_text().partition("  ")[0] for label in labels] == list(NAMES.values())
    assert labels[0].get_text() == "XCLP  30.33 ± 0.58"
    lines = {line.get_label(): line for line in figures["rounds"].axes[0].lines}
    assert list(lines) == list(NAMES.values())
    broken = [name for name, line in lines.items() if line.get_linestyle() == "--"]
    assert broken == [NAMES["pooled_lp"], NAMES["a_pooled"]]
    above = [name for name, line in lines.items() if line.get_zorder() == 4]
    assert above == [NAMES["xclp"], NAMES["a_xclp"]]
    for figure in figures.values():
        assert_nothing_is_cut(figure)


def test_a_sweep(tmp_path):
    key = "federation.labeled_fraction"
    swept = {f"f{fraction}": {key: fraction, **DOTTED} for fraction in (0.1, 0.2)}
    points = [(name, overrides, ACCURACIES) for name, overrides in swept.items()]
    (section,) = build([make_sweep(tmp_path / "s", points, {key: 0.1, **DOTTED})])
    assert [*section.tables[0].texts][-5:] == [*NAMES.values()]
    figure = section.pictures[0].draw()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(NAMES.values())
    assert_nothing_is_cut(figure)


def test_which_methods_a_run_has_is_no_column_of_settings(tmp_path):
    """Nor are the settings of a method that the other run does not have: their results tell."""
    make_run(tmp_path / "a", baselines=["a_xclp"], a_xclp__algorithm="xclp", a_xclp__alpha=0.9)
    make_run(tmp_path / "b", baselines=[], xclp__alpha=0.5)
    table, *_ = build([tmp_path])[0].tables
    assert [*table.texts][1:3] == ["propagation alpha", "XCLP"]


@pytest.mark.parametrize(
    ("mine", "name"),
    [
        ({"algorithm": "xclp", "alpha": 0.9}, "XCLP (mine)"),
        ({"algorithm": "fedprox", "pseudo_label": "xclp"}, "FedProx + XCLP (mine)"),
        ({"algorithm": "anothers", "mu": 0.1}, "anothers (mine)"),
    ],
)
def test_a_variant_has_the_name_of_its_section(tmp_path, mine, name):
    run = read_run(make_run(tmp_path / "r", dict.fromkeys(("xclp", "mine"), (0.5,)), mine=mine))
    assert methods_of([run]).names["mine"] == name


def test_a_column_over_several_runs_has_a_name_that_all_agree_on(tmp_path):
    def heading(*labelers):
        runs = [
            run_of(tmp_path / "-".join(labelers) / str(i), {"fedprox": (0.5,)}, fedprox=settings)
            for i, settings in enumerate({"pseudo_label": labeler} for labeler in labelers)
        ]
        return methods_of(runs).names["fedprox"]

    assert heading("per_client_lp", "per_client_lp") == "FedProx + per-client LP"
    assert heading("per_client_lp", "xclp") == "FedProx"


def test_variants_stand_behind_their_algorithms():
    of = {"a": "xclp", "b": "pooled_lp", "c": "scaffold", "d": "fedavg"}
    names = ["d", "c", "b", "a", "pooled_lp", "scaffold", "fedavg", "client_knn", "xclp"]
    order = ["xclp", "a", "client_knn", "fedavg", "d", "scaffold", "c", "pooled_lp", "b"]
    assert sort_algorithms(names, of) == order
