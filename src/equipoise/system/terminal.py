"""The terminal: what is printed cannot steer it."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from equipoise.system.text import visible


class Terminal(Console):
    """A console that writes out the escape sequences in text; its own colours and cursor movements stay."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """What is printed of an object, without signs that steer the terminal."""
        for part in super().render(renderable, options):
            yield part if part.control else Segment(visible(part.text, lines=True), part.style)
