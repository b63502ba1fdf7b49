"""Markdown of models and users as data, so that what shows it makes no markup of their text.

HTML, pictures and references are left as they are written: nothing is loaded, nothing is hidden.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token

PARSER = (
    MarkdownIt("commonmark", {"html": False})
    .enable(["strikethrough", "table"])
    .disable(["html_block", "html_inline", "reference", "image"])
)
"""CommonMark with tables, without HTML, pictures and references."""
Node: TypeAlias = str | list[Any]
"""A text, or the name of an element and what is in it.

The target of a link comes first: an `a` leads to the web, a `span` nowhere."""
_MAX_LENGTH = 50_000  # characters; longer texts are not parsed
_SCHEMES = frozenset({"http", "https", "mailto"})


def markdown_nodes(text: str, code: Callable[[str, str], Any] | None = None) -> list[Node] | None:
    """Return a text as nodes; None if it is too long to be worth it.

    Args:
        text: The Markdown.
        code: Returns what is in a block of code, from its language and its text.
    """
    if len(text) > _MAX_LENGTH:
        return None
    root: list[Node] = []
    _add(root, PARSER.parse(text), code)
    return root


def _add(root: list[Node], tokens: Sequence[Token], code: Callable[[str, str], Any] | None) -> None:
    """Add tokens to a node; those between an opening and a closing one are inside of theirs."""
    open_nodes = [root]
    for token in tokens:
        if token.hidden:  # the paragraph of an item in a tight list
            continue
        if token.nesting < 0:
            open_nodes.pop()
            continue
        if token.type == "inline":
            _add(open_nodes[-1], token.children or (), code)
            continue
        node = _node(token, code)
        if node != "":
            open_nodes[-1].append(node)
        if token.nesting > 0:
            assert isinstance(node, list)
            open_nodes.append(node)


def _node(token: Token, code: Callable[[str, str], Any] | None) -> Node:
    match token.type:
        case "text":
            return token.content
        case "softbreak":
            return "\n"
        case "code_inline":
            return ["code", token.content]
        case "fence" | "code_block":
            language = token.info.split(maxsplit=1)[0] if token.info.strip() else ""
            return ["pre", token.content if code is None else code(language, token.content)]
        case "link_open":
            target = str(token.attrs.get("href", ""))
            return ["a" if _is_web(target) else "span", target]
        case "ordered_list_open":
            return [token.tag, token.attrs.get("start", 1)]
        case _:
            return [token.tag]


def _is_web(target: str) -> bool:
    try:
        return urlsplit(target).scheme in _SCHEMES
    except ValueError:
        return False
