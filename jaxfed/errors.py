"""The one error that is the user's to mend."""


class UsageError(ValueError):
    """The caller gave something that cannot be used: a wrong value, a missing file, an unknown name.

    Its message is one line that names what was given and what is allowed, or how to get what is
    missing. The command-line entries print that line and exit with status 2, without a traceback.
    """
