"""FedAvg on one's own arrays with one's own Flax network; no config, no files.

python -m examples.own_network
"""

import numpy as np
from flax import nnx
from sklearn.datasets import load_digits

import jaxfed


class Network(nnx.Module):
    """Written as any Flax network: dropout and BatchNorm need nothing from jaxfed."""

    def __init__(self, rngs: nnx.Rngs):
        self.first = nnx.Linear(64, 128, rngs=rngs)
        self.norm = nnx.BatchNorm(128, momentum=0.9, rngs=rngs)  # few steps a round
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.last = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, x):
        return self.last(self.dropout(nnx.relu(self.norm(self.first(x)))))


def main(rounds: int = 20) -> float:
    x, y = load_digits(return_X_y=True)
    x = x.astype(np.float32) / 16
    clients = [(x[start:1500:10], y[start:1500:10]) for start in range(10)]

    federation = jaxfed.Federation.from_clients(clients, test=(x[1500:], y[1500:]))
    training = jaxfed.Training(jaxfed.from_flax(Network, input_shape=(64,)))
    method = jaxfed.algorithms.fedavg(training=training)
    result = jaxfed.simulate(method, federation, rounds=rounds, cohort_size=5, seed=0)
    print(f"test accuracy {result.metrics['test_accuracy']:.3f}")
    print(f"the first test image is a {result.predict(x[1500:1501]).argmax()}")
    return result.metrics["test_accuracy"]


if __name__ == "__main__":
    main()
