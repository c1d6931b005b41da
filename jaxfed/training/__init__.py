"""One client's steps up to a whole round of federated training, in parts that methods put together.

Anything that two methods could use is here; what makes a method one is in `jaxfed.algorithms`.
"""
