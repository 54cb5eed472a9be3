"""How errors speak."""

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence

LONGEST = 200  # characters of a word that is compared, as the time grows with the square of their number


def near(word: str, choices: Iterable[str], cutoff: float = 0.5) -> str:
    """``" Did you mean 'fedheal'?"``, or nothing where none of the choices is near: as alike as ``cutoff``, in [0, 1]."""
    names = list(choices)
    close = [name for name in names if name.casefold() == word.casefold()]
    close = close or difflib.get_close_matches(word[:LONGEST], names, n=1, cutoff=cutoff)
    return f" Did you mean '{close[0]}'?" if close else ""


def some(names: Sequence[str], most: int = 10) -> str:
    """The first of some names; semicolons divide those of which one has a comma."""
    between = "; " if any(", " in name for name in names[:most]) else ", "
    return between.join(names[:most]) + f" and {len(names) - most:,} more" * (len(names) > most)


def unknown(what: str, name: object, choices: Iterable[str]) -> str:
    """One sentence about a name that does not exist, with the nearest one and all of them."""
    names = list(choices)
    return f"Unknown {what} '{name}'.{near(str(name), names)} All: {', '.join(names)}."


def require_known(what: str, choices: Collection[str], *names: object) -> None:
    """Require that all ``names`` are among the choices.

    Raises
    ------
    ValueError : see :func:`unknown`, of the first that is not.
    """
    for name in names:
        if name not in choices:
            raise ValueError(unknown(what, name, choices))


def shorten(text: str) -> str:
    """What was found, in at most 80 characters."""
    return text if len(text) <= 80 else text[:77] + "..."


def require_use(given: Mapping[str, object], *, together: str = "", without: str = "") -> None:
    """Refuse options that have no effect.

    Parameters
    ----------
    given : what the user gave, by the names of the options; nothing of what is false.
    together : the option that takes their effect.
    without : the option that they need.

    Raises
    ------
    ValueError : naming the first of them.
    """
    if idle := next((name for name, value in given.items() if value), None):
        reason = f"together with {together}. Leave" if together else f"without {without}. Add that, or leave"
        raise ValueError(f"{idle} has no effect {reason} it out.")
