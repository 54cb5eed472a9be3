"""Errors that are no defect of the program, by whom they concern: a user's input, a run, a site. What is decided by one asks its kind."""

from typing import Any

SETTINGS, CODE = "settings", "code"  # kinds of errors: other hyper-parameters may help, none does
CLAIMED = "claimed"  # another process is at the folder
QUEUE = "queue"  # that of a cluster refuses runs, or does not answer: none of them failed
MEMORY = "memory"  # the machine has too little, perhaps because others use it
REFUSED, ABSENT = "refused", "absent"  # of sites: it does not do what it was asked for, it was not asked


class InputError(ValueError):
    """What a user gave cannot be used: the text says what was expected, what was found and what to do.

    Parameters
    ----------
    text : one sentence for the user.
    kind : what happened, for those who handle it; empty where nobody does.
    fields : what else they need.
    """

    def __init__(self, text: str = "", kind: str = "", **fields: Any) -> None:
        super().__init__(text)
        self.kind, self.fields = kind, fields


class DamagedError(InputError):
    """The content of a file is not what was written; of records ``number`` is the line."""


class RunError(RuntimeError):
    """What ends a run, or refuses one, although the program is right, such as a missed quorum: its text is one sentence for the user.

    Its ``kind`` is :data:`SETTINGS`, :data:`CODE` or another, for those who handle it; empty where nobody does.
    """

    def __init__(self, text: str = "", kind: str = "") -> None:
        super().__init__(text)
        self.kind = kind


class SiteError(RuntimeError):
    """A site does not do what it was asked for: its text may be sent to the server.

    Parameters
    ----------
    text : a sentence without data of the site.
    sent : what is sent instead, where the text has private numbers.
    kind : what happened, for those who handle it.
    """

    def __init__(self, text: str, sent: str = "", kind: str = "") -> None:
        super().__init__(text)
        self.sent, self.kind = sent, kind


def refusal(text: str, sent: str = "") -> SiteError:
    """The error of a site that sends nothing of what it was asked for, for a reason that it states; see :class:`SiteError`."""
    return SiteError(f"refuses: {text}", f"refuses: {sent}" * bool(sent), REFUSED)


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: Python's, a processor's or a device's, of which PyTorch has its own errors."""
    names = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return names or any(
        part in str(error) for part in ("allocate memory", "CUDA error: out of memory", "_ALLOC_FAILED")
    )
