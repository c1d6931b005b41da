"""J. Scott, M. Yeo, C. H. Lampert. Cross-client Label Propagation for Transductive and Semi-Supervised
Federated Learning. TMLR 2023, https://openreview.net/forum?id=gYO4GX8R5k

Its Tables 1 to 6; accuracies in percent.
"""

from jaxfed.paper_numbers.table import PaperTable

_XCLP = (
    "J. Scott, M. Yeo, C. H. Lampert: Cross-client Label Propagation for Transductive and "
    "Semi-Supervised Federated Learning, https://openreview.net/forum?id=gYO4GX8R5k"
)


def _two_features(given: str, trained: str) -> tuple[str, ...]:
    """Columns of Tables 1 and 6: features that are there, and those of a network that FedAvg trains."""
    blocks = ((given, ("per-client LP", "XCLP")), (trained, ("FedAvg", "per-client LP", "XCLP")))
    return tuple(f"{features}: {method}" for features, methods in blocks for method in methods)


TABLES = {
    "xclp/1": PaperTable(
        number=1,
        title="XCLP for prediction, two preprocessing functions, training sets of different size",
        data="Fed-ISIC2019",
        citation=_XCLP,
        setting="training set size",
        columns=_two_features("pretrained", "finetuned"),
        rows={
            "954": ((30.70, 1.25), (34.00, 1.12), (43.78, 0.88), (45.35, 1.25), (47.48, 1.12)),
            "1882": ((31.40, 1.18), (34.61, 0.93), (46.83, 0.75), (48.10, 1.18), (52.34, 0.93)),
            "3744": ((37.41, 0.20), (38.49, 0.88), (52.87, 0.14), (56.98, 0.20), (59.49, 0.88)),
            "18597": ((55.10, 0.51), (53.38, 0.67), (63.78, 0.20), (73.30, 0.51), (74.22, 0.67)),
        },
        metric="test_balanced_accuracy",
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
        metric="test_balanced_accuracy",
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
        metric="test_balanced_accuracy",
    ),
    "xclp/4": PaperTable(
        number=4,
        title="XCLP for federated SSL, iid and non-iid, m_L clients with n_L labels, m = 100",
        data="CIFAR-10",
        citation=_XCLP,
        setting="method",
        columns=tuple(
            f"{split}: m_L = {num_labeled}, n_L = {num_labels}"
            for split in ("iid", "non-iid")
            for num_labeled in (100, 50)
            for num_labels in (1000, 5000)
        ),
        rows={
            "FedAvg (labeled only)": (
                *((55.46, 0.43), (76.13, 0.46), (56.97, 0.59), (80.36, 0.07)),
                *((50.94, 0.14), (75.34, 1.38), (53.26, 0.69), (79.65, 0.12)),
            ),
            "FedAvg+perclientLP": (
                *((61.75, 2.22), (85.11, 0.73), (65.29, 2.50), (84.41, 0.25)),
                *((50.94, 0.14), (76.61, 1.50), (53.26, 0.69), (79.65, 0.12)),
            ),
            "FedAvg+network": (
                *((60.12, 0.15), (79.45, 0.31), (59.14, 0.35), (81.04, 0.20)),
                *((60.60, 0.60), (80.07, 0.53), (59.82, 1.05), (81.14, 0.23)),
            ),
            "FedMatch": (
                *((50.93, 0.56), (72.22, 0.14), (57.10, 0.46), (77.80, 0.32)),
                *((50.71, 1.57), (71.99, 0.70), (48.24, 0.86), (66.37, 0.41)),
            ),
            "FedSiam": (
                *((67.02, 0.98), (82.06, 0.56), (62.98, 1.61), (78.45, 0.34)),
                *((67.85, 0.26), (82.23, 0.46), (62.29, 1.84), (78.84, 0.72)),
            ),
            "FedSem+": (
                *((59.98, 0.49), (79.49, 0.15), (59.67, 0.47), (80.94, 0.25)),
                *((60.93, 0.97), (79.70, 0.78), (59.74, 0.74), (81.30, 0.09)),
            ),
            "FedAvg+XCLP": (
                *((70.91, 0.71), (86.65, 0.16), (70.81, 1.65), (86.29, 0.34)),
                *((73.76, 0.71), (85.53, 0.56), (70.01, 1.29), (85.42, 0.43)),
            ),
        },
    ),
    "xclp/5": PaperTable(
        number=5,
        title="XCLP for federated SSL, m clients with n_L labels",
        data="CIFAR-100 and Mini-ImageNet",
        citation=_XCLP,
        setting="method",
        columns=tuple(
            f"{data}: m = {num_clients}, n_L = {100 * num_clients}"
            for data in ("CIFAR-100", "Mini-ImageNet")
            for num_clients in (50, 100)
        ),
        rows={
            "FedAvg (labeled only)": ((43.80, 0.19), (53.91, 0.25), (23.39, 0.52), (31.72, 0.54)),
            "FedAvg+network": ((43.80, 0.19), (54.19, 0.21), (23.98, 0.36), (31.86, 0.57)),
            "FedAvg+perclientLP": ((43.82, 0.59), (54.38, 0.36), (25.53, 0.22), (33.09, 0.62)),
            "FedAvg+XCLP": ((50.19, 0.60), (57.00, 0.08), (26.93, 0.41), (35.78, 0.56)),
        },
    ),
    "xclp/6": PaperTable(
        number=6,
        title="XCLP for prediction, identity and linear embedding, fractions of labeled data",
        data="FEMNIST",
        citation=_XCLP,
        setting="labeled fraction",
        columns=_two_features("identity", "linear"),
        rows={
            "0.1": ((33.74, 0.20), (49.29, 0.16), (53.09, 0.19), (37.27, 0.12), (52.39, 0.30)),
            "0.2": ((44.79, 0.03), (53.93, 0.04), (57.54, 0.46), (50.89, 0.11), (58.57, 0.13)),
            "0.5": ((50.99, 0.06), (59.37, 0.13), (61.07, 0.49), (59.20, 0.19), (63.46, 0.11)),
            "1.0": ((51.91, 0.07), (62.35, 0.07), (62.90, 0.31), (59.42, 0.11), (66.18, 0.20)),
        },
    ),
}
