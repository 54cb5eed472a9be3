"""The library's log as JSON, for programs that collect the logs of many machines."""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

FORMS = ("text", "json")


class JsonLines(logging.Formatter):
    """A line of JSON: time in UTC, level, logger, message, the traceback of an exception, and of ``about`` what is text or whole."""

    def __init__(self, about: Mapping[str, Any]) -> None:
        super().__init__()
        self.about = about

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record, which may have an ``about`` of its own."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": at, "level": record.levelname, "logger": record.name, "message": record.getMessage()}
        about = {**self.about, **getattr(record, "about", {})}
        line |= {key: x for key, x in about.items() if isinstance(x, str | int)}
        return json.dumps(line | ({"traceback": self.formatException(record.exc_info)} if record.exc_info else {}))


@contextmanager
def logging_as(form: str, about: Mapping[str, Any]) -> Iterator[None]:
    """While the block runs, the library logs in a form of ``FORMS``: ``json`` goes to standard error, each line with ``about``."""
    if form not in FORMS:
        raise ValueError(f"log must be one of {', '.join(FORMS)}; found {form!r}.")
    ours = logging.getLogger("equipoise")
    before = ours.handlers, ours.propagate
    if form == "json":
        handler = logging.StreamHandler()
        handler.setFormatter(JsonLines(about))
        ours.handlers, ours.propagate = [handler], False
    try:
        yield
    finally:
        ours.handlers, ours.propagate = before
