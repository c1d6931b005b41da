"""Federated training, from one client's steps to a whole round, in parts that methods combine.

Everything that two methods could use is here: teachers, models in two parts, agreement of predictions, sizes
of messages. The methods themselves are in `jaxfed.algorithms`.
"""
