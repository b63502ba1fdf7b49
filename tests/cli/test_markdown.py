"""Markdown of a model on a terminal: whole, or as it arrives."""

import io
import random

import pytest
from rich.console import Console, RenderableType

from weakincentives.cli import markdown
from weakincentives.cli.activity import THEME
from weakincentives.cli.markdown import MarkdownStream, SafeMarkdown

TEXT = """\
# Title

One **bold** paragraph
over two lines, with List<int> and [a link](https://example.com/x).

1. first

   still first
2. second

- a
- b

```python
x = 1

y = 2
```

| a | b |
|---|---|
| 1 | 2 |

[1]: https://example.com/reference

> quoted

The end."""


def console(width: int = 60) -> Console:
    return Console(
        file=io.StringIO(), width=width, force_terminal=True, color_system="standard", theme=THEME
    )


def printed(*blocks: RenderableType, width: int = 60, plain: bool = True) -> str:
    target = console(width)
    for block in blocks:
        target.print(block, end="")
        target.print()
    stream = target.file
    assert isinstance(stream, io.StringIO)
    text = stream.getvalue()
    return "\n".join(_strip(line) for line in text.split("\n")) if plain else text


def _strip(line: str) -> str:
    text = Console(width=200, file=io.StringIO()).render_str("")
    text = text.from_ansi(line)
    return text.plain.rstrip()


def test_markdown_is_rendered_and_nothing_is_left_out():
    found = printed(SafeMarkdown(TEXT))
    for part in ("Title", "List<int>", "a link\n(https://example.com/x)", "still first"):
        assert part in found
    assert "https://example.com/reference" in found
    assert "**" not in found
    assert "```" not in found
    assert found.startswith("Title\n")


@pytest.mark.parametrize("width", [40, 60, 120])
def test_no_line_is_wider_than_the_terminal(width: int):
    text = f"{TEXT}\n\n数学{'数' * 100}\n\n```\n{'x' * 300}\n```\n"
    target = console(width)
    for line in target.render_lines(SafeMarkdown(text), pad=False):
        assert sum(each.cell_length for each in line) <= width


@pytest.mark.parametrize(
    "hostile",
    ["\x1b[2J", "\x1b]52;c;aGk=\x07", "\x1b]8;;http://evil\x1b\\x", "\x9b2J", "&#27;[2J", "\r"],
)
@pytest.mark.parametrize("form", ["{}", "`{}`", "```\n{}\n```", "[x]({})", "# {}", "| {} |\n|-|"])
def test_control_characters_do_not_reach_the_terminal(hostile: str, form: str):
    found = printed(SafeMarkdown(form.format(hostile)), plain=False)
    for escape in ("\x1b[2J", "\x1b]", "\x9b", "\r", "\x07"):
        assert escape not in found


def test_an_entity_cannot_turn_the_text_around():
    assert "\u202e" not in printed(SafeMarkdown("a &#x202e; b"))


@pytest.mark.parametrize("seed", range(20))
def test_pieces_of_any_size_print_each_line_once_and_in_order(seed: int):
    chance = random.Random(seed)
    blocks: list[RenderableType] = []
    stream = MarkdownStream(blocks.append)
    rest = TEXT
    while rest:
        size = chance.randint(1, 40)
        stream.feed(rest[:size])
        rest = rest[size:]
    before = len(blocks)
    stream.finish(TEXT)
    assert before > 3  # what is complete does not wait for the end
    words = printed(*blocks).split()
    whole = printed(SafeMarkdown(TEXT)).split()
    assert words == whole


def test_only_the_unfinished_block_is_live_and_it_is_cropped():
    blocks: list[RenderableType] = []
    stream = MarkdownStream(blocks.append)
    target = console()
    assert stream.render(target, target.options, 5) is None
    stream.feed("done\n\n```\n" + "".join(f"line {each}\n" for each in range(50)))
    assert len(blocks) == 1
    live = stream.render(target, target.options, 5)
    assert live is not None
    found = printed(live)
    assert "line 49" in found
    assert "line 44" not in found
    assert "done" not in found


@pytest.mark.parametrize("text", ["- item\n\n" * 3_000, "```\n" + "x = 1\n\n" * 3_000])
def test_a_long_block_is_not_parsed_at_every_piece(text: str, monkeypatch: pytest.MonkeyPatch):
    parsed: list[int] = []
    parse = markdown.PARSER.parse  # counts the work
    monkeypatch.setattr(
        markdown.PARSER, "parse", lambda text: parsed.append(len(text)) or parse(text)
    )
    blocks: list[RenderableType] = []
    stream = MarkdownStream(blocks.append)
    for start in range(0, len(text), 20):
        stream.feed(text[start : start + 20])
    target = console()
    assert stream.render(target, target.options, 5) is not None
    stream.finish(text)
    assert sum(parsed) < 30 * len(text)
    assert printed(*blocks).count("x = 1" if "x" in text else "item") == 3_000


def test_a_text_of_nothing_but_markup_is_shown_as_it_is():
    assert printed(SafeMarkdown("![" * 100_000)).replace("\n", "") == "![" * 100_000
    assert printed(SafeMarkdown("![alt](https://example.com/a)")).strip() == (
        "!alt (https://example.com/a)"
    )


def test_text_that_is_sent_again_starts_from_nothing():
    blocks: list[RenderableType] = []
    stream = MarkdownStream(blocks.append)
    stream.feed("one\n\ntwo\n\n")
    assert stream.has_printed
    stream.restart()
    assert not stream.has_printed
    stream.feed("one")
    stream.finish("one")
    assert len(blocks) == 2


def test_text_that_was_not_streamed_is_printed_at_the_end():
    blocks: list[RenderableType] = []
    stream = MarkdownStream(blocks.append)
    stream.finish("all\n\nof it")
    stream.finish("")
    assert len(blocks) == 1
