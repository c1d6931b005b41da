"""Sizes of Paillier's keys, in a file without Paillier's packages, for checks of settings."""

KEY_BITS = (2048, 3072)  # of N: 112 and 128 bits of security (NIST SP 800-57)
