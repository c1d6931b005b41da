"""What a party says when it refuses something."""


class ProtocolError(ValueError):
    """A message that no party following the protocol sends here and now; the text is one line.

    Whoever refuses a message has given nothing out because of it. One that is not authentic changes
    nothing at all: the message that is due can still be taken. One that is authentic and still cannot
    be, from a party that does not follow the protocol, ends the run that it belongs to.
    """
