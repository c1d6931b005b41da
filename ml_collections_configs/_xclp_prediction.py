"""Shared settings, variants and sweeps of the XCLP prediction experiments on image sets.

Variants, to be joined by commas:
  pretrained      features of EfficientNet-Lite0 in place of pixels
  few_labels      sweep over 5 and 10 % of labels
  leave_one_out   sweep over the client that gives no labels and is labeled by the others (Table 2)
  graphs          sweep over the graph on labeled points only, or on unlabeled ones too (Table 3)
  many_clients    1,000 clients that are compared with all or a few others (`xclp.compared_clients`), on as
                  many images; sweep over two partitions
  privacy         sweep over budgets of randomized response, on bits and on labels, on as many images
  sweeps          one key at a time around the defaults, on 10,000 + 2,000 of the images
  tuned           every method at its own settings (alpha, kNN's k), by cross-validation over the labeled
                  points; in a sweep every point twice, with the paper's settings and with these
  auto            XCLP and label propagation with settings by leave-one-out (`jaxfed.xclp.selection.choice`)
  smoke           under a minute: 500 + 200 of the images, two repeats
"""

from collections.abc import Callable

from ml_collections import ConfigDict

from jaxfed.config import base

Add = Callable[..., None]

ONE_AT_A_TIME = {
    "federation.labeled_fraction": (0.02, 0.05, 0.1, 0.2, 0.5),
    "federation.num_clients": (2, 5, 10, 20, 50),
    "federation.dirichlet_alpha": (0.1, 0.3, 1.0, 3.0, 10.0),
    "xclp.num_bits": (64, 128, 256, 512, 1024, 2048, 4096, 8192),
    "xclp.num_neighbors": (3, 5, 10, 20, 50),
    "xclp.alpha": (0.5, 0.8, 0.9, 0.95, 0.99, 0.999),
}

COMPARED = (20, 40, 80, 160)  # 2, 4, 8 and 16 log2 of 1,000 clients
COMPARED_BY = ("random", "neighbors")

# eps of randomized response, of each LSH bit or of a label; the last values change hardly any.
PRIVACY_BUDGETS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)


def get_config(dataset: str, variant: str) -> ConfigDict:
    """Ten clients with unequal classes, a tenth of the labels, three repeats as in the paper."""
    config = base.get_config()
    config.dataset.test_rows = "shared"  # as in the tables of results/
    config.dataset.name = dataset
    config.num_repeats = 3
    config.federation.partition = "dirichlet"
    config.federation.dirichlet_alpha = 1.0
    config.paper_table = "xclp/1"
    return base.apply_variants(config, variant, VARIANTS, exclusive=[SWEEPS])


def _pretrained(config: ConfigDict) -> None:
    config.preprocessing.kind = "pretrained"


def _few_labels(config: ConfigDict) -> None:
    config.paper_table = "xclp/3"


def _leave_one_out(config: ConfigDict) -> None:
    config.paper_table = "xclp/2"
    config.federation.labeled_fraction = 1.0
    # The left-out client has no labels, so methods inside a single client cannot label it.
    config.baselines = ("pooled_lp",)
    _part(config)


def _graphs(config: ConfigDict) -> None:
    config.paper_table = "xclp/3"
    _part(config)


def _many_clients(config: ConfigDict) -> None:
    config.paper_table = ""
    config.federation.num_clients = 1000
    for number in COMPARED:
        for by in COMPARED_BY:
            section = {"algorithm": "xclp", "compared_clients": number, "compared_by": by}
            config[f"xclp_{number}_{by}"] = ConfigDict(section)
    compared = (f"xclp_{number}_{by}" for number in COMPARED for by in COMPARED_BY)
    config.baselines = (*compared, "client_knn")
    _part(config)


def privacy(config: ConfigDict) -> None:
    """Baselines of XCLP: each client alone, and pooled data without privacy."""
    config.baselines = ("client_knn", "pooled_lp")


def _privacy(config: ConfigDict) -> None:
    privacy(config)
    _part(config)


def _part(config: ConfigDict) -> None:
    config.dataset.train_size = 10_000
    config.dataset.test_size = 2_000


def _smoke(config: ConfigDict) -> None:
    base.smoke(config)
    config.federation.num_clients = min(config.federation.num_clients, 100)
    config.dataset.train_size = 500
    config.dataset.test_size = 200


VARIANTS = {
    "pretrained": _pretrained,
    "few_labels": _few_labels,
    "leave_one_out": _leave_one_out,
    "graphs": _graphs,
    "many_clients": _many_clients,
    "privacy": _privacy,
    "sweeps": _part,
    "smoke": _smoke,
}


SWEEPS = ("few_labels", "leave_one_out", "graphs", "many_clients", "privacy", "sweeps")


def sweep(add: Add, variant: str = "") -> None:
    """Sweep of the variant; by default `sweeps`."""
    add = base.beside_tuned(add, variant)
    names = variant.split(",")
    if "few_labels" in names:
        for fraction in (0.05, 0.1):
            add(**{"federation.labeled_fraction": fraction})
    elif "leave_one_out" in names:
        for client in range(base.get_config().federation.num_clients):
            add(**{"federation.left_out_client": client})
    elif "graphs" in names:
        for fraction in (0.05, 0.1, 0.2, 1.0):
            for graph in ("labeled", "labeled+unlabeled"):
                add(**{"federation.labeled_fraction": fraction, "federation.graph": graph})
    elif "many_clients" in names:
        add(**{"federation.partition": "iid"})
        add(**{"federation.dirichlet_alpha": 0.1})
    elif "privacy" in names:
        privacy_budgets(add)
    else:
        one_at_a_time(add)


def privacy_budgets(add: Add) -> None:
    """Noise on bits alone, and on labels alone."""
    for key in ("xclp.bit_epsilon", "xclp.label_epsilon"):
        for epsilon in PRIVACY_BUDGETS:
            add(**{key: epsilon})


def one_at_a_time(add: Add) -> None:
    """Every value of every key of `ONE_AT_A_TIME`, with the config's values of the other keys."""
    for key, values in ONE_AT_A_TIME.items():
        for value in values:
            add(**{key: value})
