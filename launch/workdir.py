"""The flag of all entries that write results into one folder."""

from __future__ import annotations

from absl import flags

WORKDIR = flags.DEFINE_string("workdir", None, "Where results go; made if it does not exist.")
