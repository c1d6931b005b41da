"""Flax models."""
