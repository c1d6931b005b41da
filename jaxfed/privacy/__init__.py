"""Differential-privacy mechanisms and what they promise."""
