"""What protocols are built of: ciphers, sharing, encryption, transfers, and number formats.

No party and no message is known here.
"""
