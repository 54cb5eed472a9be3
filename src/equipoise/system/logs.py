"""The library's log: without signs that steer a terminal, and as JSON for programs that collect the logs of many machines."""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from equipoise.system.text import visible

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


@dataclass(frozen=True)
class Harmless:
    """Makes the library's records such that text from others in them, errors too, can begin no line of its own and steer no terminal."""

    make: Callable[..., logging.LogRecord]

    def __call__(self, *given: Any, **more: Any) -> logging.LogRecord:
        """A record, as ``make`` makes it."""
        record = self.make(*given, **more)
        if record.name.partition(".")[0] == "equipoise":
            record.msg, record.args = _indented(record.getMessage()), ()
            if record.exc_info:  # whoever formats the record takes this text
                record.exc_text = "  " + _indented(logging.Formatter().formatException(record.exc_info))
        return record


def _indented(text: str) -> str:
    return visible(text, lines=True).replace("\n", "\n  ")


@contextmanager
def logging_as(form: str, about: Mapping[str, Any]) -> Iterator[None]:
    """While the block runs, the library logs in a form of ``FORMS``: ``json`` goes to standard error, each line with ``about``."""
    if form not in FORMS:
        raise ValueError(f"log must be one of {', '.join(FORMS)}; found {form!r}.")
    if not isinstance(make := logging.getLogRecordFactory(), Harmless):
        logging.setLogRecordFactory(Harmless(make))  # and stays: other threads may be at other messages
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
