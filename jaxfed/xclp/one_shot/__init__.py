"""One-shot methods: a labeling as a `FederatedAlgorithm` of one round; baselines of the paper's Section 4.1.

Nothing here trains a model. `jaxfed.algorithms` has the factories that configs name.
"""
