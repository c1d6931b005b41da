"""Benchmarks of whole methods: labelings, experiments from start to end, the first result."""
