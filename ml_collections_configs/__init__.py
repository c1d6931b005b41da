"""One file an experiment: `get_config(variant)` and, where it has one, `sweep(add)`.

Each starts from `jaxfed.config.base`. Configs of one's own that import `base` from here still work.
"""

from jaxfed.config import base as base
