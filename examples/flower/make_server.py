"""Make the server's folder: the form of everybody's examples, and the examples that the server measures on.

python -m examples.flower.make_server FOLDER

Here these are every sixth of scikit-learn's digits; take examples that no site has.
"""

import json
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from jaxfed.flower.server.server_data import read


def main(folder: Path) -> None:
    digits = load_digits()
    x = digits.images[::6, :, :, None].astype(np.float32) / 16
    shared = {
        "class_names": [str(name) for name in digits.target_names],
        "example": ["float32", *x.shape[1:]],
    }
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    np.savez(folder / "test.npz", x=x, y=digits.target[::6].astype(np.int32))
    (folder / "shared.json").write_text(json.dumps(shared, indent=2) + "\n")
    read(folder)  # says what is wrong
    print(f"{folder} is ready")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
