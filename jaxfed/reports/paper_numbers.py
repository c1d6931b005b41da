"""Results that the papers print, for orientation beside one's own: theirs are on other data.

Accuracies are in percent, mean and standard deviation over three runs, copied from the tables of

    J. Scott, M. Yeo, C. H. Lampert. Cross-client Label Propagation for Transductive and
    Semi-Supervised Federated Learning. https://openreview.net/forum?id=gYO4GX8R5k (`XCLP`).

A config names the table it is modeled on by the key `paper_table`, such as "xclp/1".
"""

from typing import NamedTuple

from jaxfed.errors import UsageError

_XCLP = (
    "J. Scott, M. Yeo, C. H. Lampert: Cross-client Label Propagation for Transductive and "
    "Semi-Supervised Federated Learning, https://openreview.net/forum?id=gYO4GX8R5k"
)

PaperCell = tuple[float, float]


class PaperTable(NamedTuple):
    """A table of a paper: `rows` maps a setting to (mean, deviation) in percent, one a column."""

    number: int
    title: str
    data: str
    citation: str
    setting: str
    columns: tuple[str, ...]
    rows: dict[str, tuple[PaperCell, ...]]


PAPER_TABLES = {
    "xclp/1": PaperTable(
        number=1,
        title="XCLP for prediction, two preprocessing functions, training sets of different size",
        data="Fed-ISIC2019",
        citation=_XCLP,
        setting="training set size",
        columns=(
            "pretrained: per-client LP",
            "pretrained: XCLP",
            "finetuned: FedAvg",
            "finetuned: per-client LP",
            "finetuned: XCLP",
        ),
        rows={
            "954": ((30.70, 1.25), (34.00, 1.12), (43.78, 0.88), (45.35, 1.25), (47.48, 1.12)),
            "1882": ((31.40, 1.18), (34.61, 0.93), (46.83, 0.75), (48.10, 1.18), (52.34, 0.93)),
            "3744": ((37.41, 0.20), (38.49, 0.88), (52.87, 0.14), (56.98, 0.20), (59.49, 0.88)),
            "18597": ((55.10, 0.51), (53.38, 0.67), (63.78, 0.20), (73.30, 0.51), (74.22, 0.67)),
        },
    ),
    "xclp/2": PaperTable(
        number=2,
        title="XCLP for prediction, leave one client out",
        data="Fed-ISIC2019",
        citation=_XCLP,
        setting="left-out client",
        columns=("FedAvg", "XCLP"),
        rows={
            "1": ((35.15, 0.96), (38.89, 1.34)),
            "2": ((68.75, 0.72), (67.05, 0.54)),
            "3": ((51.94, 2.52), (62.02, 1.13)),
            "4": ((42.72, 0.79), (54.84, 0.78)),
            "5": ((41.53, 1.60), (52.28, 0.58)),
            "6": ((46.92, 3.69), (61.27, 3.19)),
        },
    ),
    "xclp/3": PaperTable(
        number=3,
        title="XCLP for prediction, graph on labeled against labeled and unlabeled training data",
        data="Fed-ISIC2019",
        citation=_XCLP,
        setting="labeled fraction",
        columns=("FedAvg", "XCLP (labeled)", "XCLP (labeled+unlabeled)"),
        rows={
            "0.05": ((43.78, 0.88), (47.48, 1.12), (49.50, 1.42)),
            "0.1": ((46.83, 0.75), (52.34, 0.93), (53.78, 0.90)),
            "0.2": ((52.87, 0.14), (59.49, 0.88), (61.09, 0.66)),
            "1.0": ((63.78, 0.20), (74.22, 0.67), (74.22, 0.67)),
        },
    ),
    "xclp/6": PaperTable(
        number=6,
        title="XCLP for prediction, identity and linear embedding, fractions of labeled data",
        data="FEMNIST",
        citation=_XCLP,
        setting="labeled fraction",
        columns=(
            "identity: per-client LP",
            "identity: XCLP",
            "linear: FedAvg",
            "linear: per-client LP",
            "linear: XCLP",
        ),
        rows={
            "0.1": ((33.74, 0.20), (49.29, 0.16), (53.09, 0.19), (37.27, 0.12), (52.39, 0.30)),
            "0.2": ((44.79, 0.03), (53.93, 0.04), (57.54, 0.46), (50.89, 0.11), (58.57, 0.13)),
            "0.5": ((50.99, 0.06), (59.37, 0.13), (61.07, 0.49), (59.20, 0.19), (63.46, 0.11)),
            "1.0": ((51.91, 0.07), (62.35, 0.07), (62.90, 0.31), (59.42, 0.11), (66.18, 0.20)),
        },
    ),
}


def paper_table(name: str) -> PaperTable:
    """The paper's table that a config names by `paper_table`."""
    if name not in PAPER_TABLES:
        known = ", ".join(PAPER_TABLES)
        raise UsageError(f"paper_table: {name!r} is no table known here; known are {known}")
    return PAPER_TABLES[name]
