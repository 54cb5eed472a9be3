"""Errors that are no defect of the program."""

SETTINGS, CODE = "settings", "code"  # kinds of errors: other hyper-parameters may help, none does


class ExpectedError(RuntimeError):
    """What ends a run although the program is right, such as a missed quorum, a damaged checkpoint: its text is one sentence for the user.

    Its ``kind`` is :data:`SETTINGS` or :data:`CODE`, empty if neither is known.
    """

    kind = ""


class RunError(ExpectedError):
    """A run directory that cannot be used."""


class FolderError(ExpectedError):
    """A file of a folder that is not read: a link leads out of the folder, it is a pipe or a device, or is too large."""
