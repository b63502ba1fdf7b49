"""Markdown on a terminal, whole or as it arrives.

The text of a model is untrusted: control characters are escaped after rendering as well, because
Markdown can spell them as entities, and links are text. Nothing is left out: HTML and the targets
of links are shown as they are written.
"""

import re
from collections.abc import Callable, Iterator
from typing import ClassVar

from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.segment import Segment, Segments
from rich.syntax import Syntax
from rich.text import Text

from weakincentives.cli.terminal import escape_controls
from weakincentives.markdown import PARSER

_BOUNDARY = re.compile(r"\n[ \t]*\n|^[ \t]*(?:```|~~~|#)", re.MULTILINE)
_MAX_MARKUP = 50_000  # characters of a block; longer ones are shown as they are written
_MAX_PREVIEW = 4_000  # characters of the unfinished block, which is rendered again and again
_CODE_THEME = "ansi_dark"  # the colours of the terminal


class _LeftHeading(Heading):
    """A heading that is not centred."""

    LEVEL_ALIGN: ClassVar = {f"h{level}": "left" for level in range(1, 7)}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = self.text.copy()
        text.justify = "left"
        yield text


class _IndentedCode(CodeBlock):
    """Code with an indent instead of a background."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        yield Syntax(
            code,
            self.lexer_name,
            theme=_CODE_THEME,
            background_color="default",
            word_wrap=True,
            padding=(0, 0, 0, 2),
        )


class SafeMarkdown(Markdown):
    """Markdown from an untrusted source."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _LeftHeading,
        "fence": _IndentedCode,
        "code_block": _IndentedCode,
    }

    def __init__(self, text: str) -> None:
        """Render `text`."""
        super().__init__("", hyperlinks=False)
        self.markup: str = escape_controls(text)
        self._is_plain = len(text) > _MAX_MARKUP
        self.parsed: list[Token] = [] if self._is_plain else PARSER.parse(self.markup)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the segments, without control characters and empty lines around them."""
        if self._is_plain:
            yield Text(self.markup.strip("\n"))
            return
        lines = console.render_lines(_Inner(super().__rich_console__), options, pad=False)
        for line in _strip_lines(lines):
            for segment in line:
                yield Segment(escape_controls(segment.text), segment.style)
            yield Segment.line()


class _Inner:
    """A renderable from a method."""

    def __init__(self, render: Callable[[Console, ConsoleOptions], RenderResult]) -> None:
        self._render = render

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self._render(console, options)


class MarkdownStream:
    """Markdown that arrives in pieces.

    Blocks such as paragraphs are printed for good when they are complete. Only the last one can
    still change.
    """

    def __init__(self, print_block: Callable[[RenderableType], None]) -> None:
        """Print complete blocks with `print_block`."""
        self._print_block = print_block
        self._printed = ""
        self._open = ""
        self._checked = 0  # where to look for the end of a block
        self._next_length = 0  # of the open text: parsing it at each boundary would be quadratic

    @property
    def has_printed(self) -> bool:
        """Whether a block of the current text was printed."""
        return bool(self._printed)

    def feed(self, piece: str) -> None:
        """Add the next piece."""
        self._open += piece
        end = self._open.rfind("\n")
        # parsing after every line of a long block would be slow
        if end < 0 or len(self._open) < self._next_length:
            return
        if not _BOUNDARY.search(self._open, self._checked, end + 1):
            return
        self._checked = end
        start = _start_of_last_block(self._open[:end])
        if start:
            self._print(self._open[:start])
            self._open, self._checked = self._open[start:], 0
        self._next_length = len(self._open) * 5 // 4 if len(self._open) > _MAX_PREVIEW else 0

    def finish(self, text: str) -> None:
        """Print what is missing of the complete text, and start again with the next one."""
        rest = text[len(self._printed) :] if text.startswith(self._printed) else text
        if rest.strip():
            self._print(rest)
        self.restart()

    def restart(self) -> None:
        """Forget the current text: it is sent again."""
        self._printed = self._open = ""
        self._checked = self._next_length = 0

    def render(self, console: Console, options: ConsoleOptions, height: int) -> Segments | None:
        """Return the last lines of the unfinished block, at most `height`."""
        if not self._open.strip():
            return None
        is_long = len(self._open) > _MAX_PREVIEW
        tail = self._open[-_MAX_PREVIEW:]
        shown = Text(escape_controls(tail)) if is_long else SafeMarkdown(tail)
        lines = console.render_lines(shown, options, pad=False)
        return Segments(_join_lines(lines[-height:]))

    def _print(self, text: str) -> None:
        self._printed += text
        if text.strip():
            self._print_block(SafeMarkdown(text))


def _start_of_last_block(text: str) -> int:
    """Return where the last block of a text begins."""
    starts = [each.map[0] for each in PARSER.parse(text) if each.level == 0 and each.map]
    if not starts:
        return 0
    position = 0
    for _ in range(max(starts)):
        position = text.index("\n", position) + 1
    return position


def _strip_lines(lines: list[list[Segment]]) -> list[list[Segment]]:
    """Return the lines from the first to the last that is not empty."""
    full = [at for at, line in enumerate(lines) if any(each.text.strip() for each in line)]
    return lines[full[0] : full[-1] + 1] if full else []


def _join_lines(lines: list[list[Segment]]) -> Iterator[Segment]:
    for line in lines:
        yield from line
        yield Segment.line()
