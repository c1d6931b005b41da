"""The federation: clients and cohorts, sampling, execution, communication, and the interface of a method.

There is no training and no method here; secure protocols count their bytes with `Communication`. All wings
above import it.
"""
