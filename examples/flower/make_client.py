"""Make a client's folder from arrays: what a site adapts to its own data.

python -m examples.flower.make_client FOLDER NUMBER NAME

Here the arrays are a part of scikit-learn's digits, of which every second label is hidden.
"""

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from jaxfed.flower.client.client_data import read


def main(folder: Path, number: int, name: str) -> None:
    digits = load_digits()
    own = np.arange(number, len(digits.target), 3)  # a third of all examples
    x = digits.images[own, :, :, None].astype(np.float32) / 16
    y = digits.target[own].astype(np.int32)
    test = len(own) * 4 // 5
    labels = np.where(np.arange(test) % 2, -1, y[:test])

    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    np.savez(folder / "train.npz", x=x[:test], y=labels)
    np.savez(folder / "test.npz", x=x[test:], y=y[test:])
    (folder / "client.toml").write_text(f'number = {number}\nname = "{name}"\nleast_clients = 3\n')
    read(folder, num_classes=10)  # an error says what is wrong
    print(f"{folder} is ready")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
