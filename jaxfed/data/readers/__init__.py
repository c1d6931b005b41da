"""Readers of data sets, one file format or publisher a file."""
