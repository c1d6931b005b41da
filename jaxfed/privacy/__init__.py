"""Mechanisms that add noise, and attacks that measure what is left to see.

What a protocol hides is `jaxfed.secure`'s matter; who adds noise, and when, is `jaxfed.xclp`'s.
"""
