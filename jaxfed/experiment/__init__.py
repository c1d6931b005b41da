"""One experiment from its first round to its summary, and sweeps of them: the loop and its workdir.

Knows no method by name. The launcher imports it, and reports read what it leaves.
"""
