"""The two kinds of errors that end a command without a traceback."""


class UserError(Exception):
    """A user's mistake, exit 2: the text says what, where, and the way out."""


class FailedError(Exception):
    """An action that should have worked did not, exit 1: the text says what happened."""
