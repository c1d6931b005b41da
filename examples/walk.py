"""From clients to plots, cell by cell: open it in an editor that knows `# %%`, or run it as it is.

python -m examples.walk
"""

# %% The clients: the digits split among ten of them, a tenth of the labels at each.
import jaxfed
from jaxfed.data import Dirichlet, Labels, load, partition
from jaxfed.reports.figures import partition_figure

digits = load("digits")
parts = partition(
    digits.y, num_clients=10, scheme=Dirichlet(0.5), labels=Labels(fraction=0.1), seed=0
)
counts = [
    [[(digits.y[points] == c).sum() for c in range(10)] for points in clients]
    for clients in (parts.labeled, parts.unlabeled)
]
figure = partition_figure({"labeled": counts[0], "unlabeled": counts[1]})

# %% XCLP on these arrays, without a config: labels for every client's own points.
vectors = [digits.x[[*a, *b]].reshape(-1, 64) for a, b in zip(*parts[:2], strict=True)]
labels = [[*digits.y[a], *[-1] * len(b)] for a, b in zip(*parts[:2], strict=True)]
labelings = jaxfed.xclp.propagate_labels(vectors, labels, num_classes=10)
truth = [digits.y[[*a, *b]] for a, b in zip(*parts[:2], strict=True)]
right = sum((labeling.labels == y).sum() for labeling, y in zip(labelings, truth, strict=True))
print(f"XCLP is right on {right} of {len(digits.y)} points")

# %% The same as an experiment: baselines, repeats, files, and tables out of them.
result = jaxfed.run("xclp_digits:smoke", progress=False)
print(result)
for method in result.methods:
    accuracy = result.summary["algorithms"][method]["test_accuracy"]
    print(f"{method:>14}  {accuracy['mean']:.3f} +- {accuracy['std']:.3f}")

# %% Every point that XCLP labeled: where is it unsure, and rightly so?
table = result.predictions("xclp")
new = table.query("role == 'new'")
print(new.groupby(new.label == new.truth).confidence.mean())

# %% The plots that every run draws are in its workdir.
print(sorted(path.name for path in (result.workdir / "plots").iterdir()))
