"""Benchmarks of projections, neighbors, graphs and propagation."""
