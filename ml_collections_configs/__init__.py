"""One file an experiment: `get_config(variant)` and, where it has one, `sweep(add)`.

Each starts from `jaxfed.config.base`. Configs of one's own may import `base` or another config from here.
Files that begin with an underscore are found beside those that import them, as they are by `launch.run`.
"""

import sys
from pathlib import Path

from jaxfed.config import base as base

sys.path.append(str(Path(__file__).parent))  # last, so that nothing installed is hidden
