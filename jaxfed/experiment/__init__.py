"""One experiment from its first round to its summary, and sweeps of experiments: the loop and its workdir.

It knows no method by name. Reports and the library build on it.
"""
