"""Sizes of Paillier's keys, for those who only check a setting and need none of its packages."""

KEY_BITS = (2048, 3072)  # of N: 112 and 128 bits of security (NIST SP 800-57)
