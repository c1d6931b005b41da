"""Benchmarks of secure distances and secure row sums."""
