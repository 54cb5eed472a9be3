"""Errors that are no defect of the program."""


class ExpectedError(RuntimeError):
    """What ends a run although the program is right, such as a missed quorum, a damaged checkpoint: its text is one sentence for the user."""


class RunError(ExpectedError):
    """A run directory that cannot be used."""


class FolderError(ExpectedError):
    """A file of a folder that is not read: a link leads out of the folder, it is a pipe or a device, or is too large."""
