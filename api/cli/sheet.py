"""A table for terminals of any width: it cuts no cell, and splits no word that fits on a line."""

import re
import textwrap
from collections.abc import Collection, Iterator

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

GAP, INDENT = "  ", "    "
#: A last column of text is folded into the remaining width, if that is at least this.
_LEAST_WIDTH = 16


#: C0 controls except tab and newline, DEL and C1: a terminal would execute them.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def visible(text: str) -> str:
    """Return `text` with control characters escaped, as `\\x1b`: other users may see it."""
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def folded(text: str, width: int, *, indent: str = "", break_long_words: bool = True) -> list[str]:
    """Return the lines of `text`, wrapped between words; all but the first begin with `indent`."""
    return textwrap.wrap(
        text,
        max(width, len(indent) + 1),
        subsequent_indent=indent,
        break_long_words=break_long_words,
        break_on_hyphens=False,
        drop_whitespace=True,
    ) or [""]


class Sheet:
    """Rows of cells under headings, each with an optional note on lines of its own. rich prints it.

    A sheet wider than the screen is printed as a list, one field per line.

    Args:
        columns: the headings.
        title: a line above them.
        left: the columns of text, aligned to the left; figures are aligned to the right.
    """

    def __init__(self, *columns: str, title: str = "", left: Collection[str] = ()) -> None:
        self._columns, self._title, self._left = columns, title, left
        self._rows: list[tuple[tuple[str, ...], str]] = []

    def add_row(self, *cells: str, note: str = "") -> None:
        """Add a row with a cell per column."""
        self._rows.append((tuple(map(visible, cells)), visible(note)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._title:
            yield from (Text(line, style="bold") for line in folded(visible(self._title), options.max_width))
        widths = self._widths(options.max_width)
        lines = self._list(options.max_width) if widths is None else self._table(widths, options.max_width)
        yield from lines
        yield Text("")

    def _widths(self, most: int) -> list[int] | None:
        """Return the width of each column; None if they do not fit side by side."""
        cells = [self._columns, *(cells for cells, _ in self._rows)]
        widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
        rest = most - sum(widths[:-1]) - len(GAP) * (len(widths) - 1)
        if self._columns[-1] in self._left and rest >= _LEAST_WIDTH:
            widths[-1] = min(widths[-1], rest)
        return widths if widths[-1] <= rest else None

    def _table(self, widths: list[int], most: int) -> Iterator[Text]:
        yield Text(self._line(self._columns, widths), style="dim")
        for cells, note in self._rows:
            *others, last = cells
            first, *more = folded(last, widths[-1])
            yield Text(self._line((*others, first), widths))
            beside = " " * (sum(widths[:-1]) + len(GAP) * (len(widths) - 1))
            yield from (Text(beside + line) for line in more)
            yield from _note(note, most)

    def _line(self, cells: tuple[str, ...], widths: list[int]) -> str:
        padded = []
        for cell, width, column in zip(cells, widths, self._columns, strict=True):
            padding = " " * (width - cell_len(cell))
            padded.append(cell + padding if column in self._left else padding + cell)
        return GAP.join(padded).rstrip()

    def _list(self, most: int) -> Iterator[Text]:
        width = max(map(len, self._columns))
        for (first, *others), note in self._rows:
            yield Text(first)
            for column, cell in zip(self._columns[1:], others, strict=True):
                line = f"{GAP}{column:<{width}}{GAP}{cell}"
                yield from map(Text, folded(line, most, indent=" " * (width + 2 * len(GAP))))
            yield from _note(note, most)


def _note(note: str, most: int) -> Iterator[Text]:
    if note:
        yield from map(Text, folded(INDENT + note, most, indent=INDENT))
