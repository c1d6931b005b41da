"""The audit of an experiment: observations, shadow models, verdicts."""
