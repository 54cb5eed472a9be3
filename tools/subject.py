"""Refuse a commit whose subject has more than 72 characters: ``subject.py FILE``, as a hook for commit messages."""

import sys
from pathlib import Path

LONGEST = 72


def fault(message: str) -> str:
    """What is wrong with the first line of a commit message; empty if nothing is."""
    subject = message.splitlines()[0] if message.strip() else ""
    if not subject.strip():
        return "The commit has no subject. Say in one line why the change is made."
    if len(subject) > LONGEST and not subject.startswith(("fixup! ", "squash! ", "Revert ", "Merge ")):
        return f"The subject has {len(subject)} characters, and at most {LONGEST} are shown. Move details below an empty line."
    return ""


if __name__ == "__main__":
    sys.exit(fault(Path(sys.argv[1]).read_text(encoding="utf-8")))
