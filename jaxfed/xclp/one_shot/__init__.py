"""One-shot methods: a labeling as a `FederatedAlgorithm` of one round; baselines of Section 4.1."""
