"""A table, short runs on it, and what a run gives for its rows, for tests of predictors."""

import numpy as np

FEW = {"algorithm": "fedavg", "baselines": (), "num_repeats": 1, "rounds": 3, "training__epochs": 1}
FEW |= {"progress": False, "execution__plots": False}


def write_table(path):
    """A CSV file with numbers, gaps, texts and row numbers; its rows, an array of dicts."""
    rng = np.random.default_rng(0)
    lines = []
    for number in range(120):
        a, b, color = rng.random(), 1000 * rng.normal(), rng.choice(["red", "green", "", "blue"])
        label = "yes" if a + 0.3 * (color == "red") > 0.6 else "no"
        lines.append(f"{f'{a:.5f}' if number % 7 else 'NA'},{b:.2f},{color},{number},{label}\n")
    path.write_text("a,b,color,id,label\n" + "".join(lines))
    names = ("a", "b", "color", "id", "label")
    return np.array([dict(zip(names, line.strip().split(","), strict=True)) for line in lines])


def as_in_the_run(result, x, repeat=0):
    """Raw examples of a data set as the run numbers them, and its model's probabilities."""
    federation = result.federation(repeat)
    return x[result._source.numbers], result.model(repeat=repeat)(federation.x)
