"""Building blocks of the protocols: ciphers, secret sharing, encryption, oblivious transfer, number formats.

They know neither parties nor messages.
"""
