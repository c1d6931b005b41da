"""Data and settings of the papers' experiments: cells of their tables, and what several configs share.

Config files import this room; nothing else in the package does.
"""
