"""Cryptographic protocols of XCLP: parties that exchange bytes, and what they are made of."""
