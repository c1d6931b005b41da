"""The error of a party that refuses a message."""


class ProtocolError(ValueError):
    """An invalid message: no party that follows the protocol sends it at this point; the text is one line.

    A party that refuses a message has not revealed anything because of it. A message that is not authentic
    changes nothing: the expected message can still be received. A message that is authentic but invalid, from
    a party that does not follow the protocol, ends its run.
    """
