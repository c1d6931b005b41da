"""One experiment from its first round to its summary, and sweeps of them: the loop and its workdir.

Knows no method by name. Reports and the library stand on it.
"""
