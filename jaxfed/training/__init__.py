"""One client's steps up to a whole round of federated training, in parts that methods put together.

Anything that two methods could use is here: teachers, models in two parts, agreement of predictions, what
counts as sent. What makes a method one is in `jaxfed.algorithms`.
"""
