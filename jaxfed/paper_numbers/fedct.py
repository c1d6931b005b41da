"""A. Abourayya, J. Kleesiek, K. Rao, E. Ayday, B. Rao, G. I. Webb, M. Kamp. Protecting Sensitive Data through
Federated Co-Training (later: Little is Enough). https://arxiv.org/abs/2310.05696

Its Tables 1 to 5 and Appendix C.4. Accuracies, printed as shares, are in percent. VUL is the area under the
ROC curve of membership attacks, 0.5 is a guess; the tool that made it is no longer to be had. `launch.audit`
has attacks of its own, whose areas stand in its own tables: none is put beside these.
"""

from functools import partial

from jaxfed.paper_numbers.table import MEANS_ALONE, PaperCell, PaperTable, means

_FEDCT = (
    "A. Abourayya, J. Kleesiek, K. Rao, E. Ayday, B. Rao, G. I. Webb, M. Kamp: Protecting Sensitive Data "
    "through Federated Co-Training, https://arxiv.org/abs/2310.05696"
)

_table = partial(PaperTable, citation=_FEDCT)
_METHODS = ("FedCT", "DP-FedCT", "FedAvg", "DP-FedAvg", "DD")
_LEARNERS = ("DT", "RuleFit", "XGBoost", "Random Forest")


def _attacked(*pairs: tuple[float, float, float]) -> tuple[PaperCell, ...]:
    """Cells of (accuracy, its deviation, VUL), a method each."""
    return tuple(cell for mean, std, attack in pairs for cell in ((mean, std), (attack, None)))


def _beside(*pairs: tuple[float, float, float]) -> tuple[PaperCell, ...]:
    """Cells of (FedCT, its deviation, centralized), a learner each."""
    return tuple(cell for mean, std, pooled in pairs for cell in ((mean, std), (pooled, None)))


TABLES = {
    "fedct/1": _table(
        number=1,
        title="Accuracy (ACC) and vulnerability (VUL, smaller is better), 5 clients, homogeneous data",
        data="CIFAR-10, Fashion-MNIST, SVHN and two sets of scans",
        setting="data set",
        columns=tuple(f"{method}: {kind}" for method in _METHODS for kind in ("ACC", "VUL")),
        rows={
            "CIFAR-10": _attacked(
                *((77, 0.3, 0.52), (76, 0.2, 0.51), (77, 2.0, 0.73)),
                *((68, 0.2, 0.70), (67, 1.2, 0.61)),
            ),
            "Fashion-MNIST": _attacked(
                *((82, 0.4, 0.51), (80, 0.1, 0.52), (83, 2.4, 0.72)),
                *((69, 0.2, 0.71), (82, 1.6, 0.60)),
            ),
            "Pneumonia": _attacked(
                *((76, 0.8, 0.51), (75, 0.4, 0.51), (74, 1.3, 0.76)),
                *((61, 0.4, 0.69), (77, 0.3, 0.63)),
            ),
            "MRI": _attacked(
                *((63, 0.4, 0.52), (62, 0.2, 0.51), (66, 1.5, 0.73)),
                *((56, 0.3, 0.62), (68, 0.8, 0.60)),
            ),
            "SVHN": _attacked(
                *((88, 0.2, 0.53), (86, 0.1, 0.53), (91, 2.6, 0.71)),
                *((71, 0.5, 0.70), (73, 1.4, 0.59)),
            ),
        },
        other_metrics={f"{method}: VUL": "membership_auc" for method in _METHODS},
        decimals=(0, 1),
    ),
    "fedct/2": _table(
        number=2,
        title="Interpretable models, 5 clients",
        data="five sets of the UCI repository",
        setting="data set",
        columns=tuple(
            f"{learner}: {method}" for learner in _LEARNERS for method in ("FedCT", "centralized")
        ),
        rows={
            "WineQuality": _beside((95, 1, 92), (93, 1, 95), (94, 1, 94), (96, 1, 98)),
            "BreastCancer": _beside((89, 1, 89), (92, 1, 93), (93, 1, 94), (90, 2, 93)),
            "AdultsIncome": _beside((81, 1, 82), (84, 2, 85), (85, 2, 87), (85, 1, 86)),
            "Mushroom": _beside((98, 1, 100), (98, 2, 100), (98, 1, 100), (99, 1, 100)),
            "Covertypes": _beside((88, 2, 94), (73, 2, 76), (84, 2, 87), (90, 1, 95)),
        },
        decimals=(0, 0),
    ),
    "fedct/3": _table(
        number=3,
        title="FedCT, clients with learners of different kinds",
        data="BreastCancer",
        setting="learners",
        columns=("ACC",),
        rows={
            "DT, RF, RuleFit, XGBoost, RF": means(95),
            "DT, MLP, RuleFit, XGBoost, RF": means(93),
            "XGBoost at all": means(94),
        },
        statistics=MEANS_ALONE,
        decimals=(0, 0),
    ),
    "fedct/4": _table(
        number=4,
        title="FedCT and PATE, m clients or teachers",
        data="Fashion-MNIST, CIFAR-10, SVHN and two sets of scans",
        setting="data set, m",
        columns=("FedCT", "PATE"),
        rows={
            "Fashion-MNIST, 5": means(76.58, 64.51),
            "CIFAR-10, 5": means(76.08, 70.39),
            "Pneumonia, 5": means(74.78, 72.08),
            "MRI, 5": means(62.74, 60.38),
            "SVHN, 5": means(88.05, 87.21),
            "Fashion-MNIST, 100": means(71.54, 63.18),
            "Pneumonia, 100": means(72.69, 69.03),
        },
        statistics=MEANS_ALONE,
        decimals=(2, 2),
    ),
    "fedct/5": _table(
        number=5,
        title="Clients with a part of their data by Dirichlet(alpha_1), the rest by Dirichlet(alpha_2)",
        data="Fashion-MNIST",
        setting="alpha_1, alpha_2",
        columns=("FedCT", "FedAvg", "DD"),
        rows={
            "100, 0.01": means(79.81, 79.07, 79.034),
            "0.01, 0.01": means(36.63, 73.39, 35.85),
        },
        statistics=MEANS_ALONE,
        decimals=(2, 2),
    ),
    "fedct/C.4": _table(
        number="Appendix C.4",
        title="Classes are superclasses, and of each a client has one class",
        data="CIFAR-100",
        setting="method",
        columns=("ACC",),
        rows={"FedCT": means(51.06), "FedMD": means(50)},
        statistics=MEANS_ALONE,
        decimals=(2, 2),
    ),
}
