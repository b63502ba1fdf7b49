"""What a dataclass says about itself: its description, and one for each field."""

import re
from collections.abc import Mapping
from dataclasses import fields
from inspect import cleandoc
from typing import Any

_SECTION = re.compile(r"^(Args|Arguments|Attributes|Fields):$")
_HEADING = re.compile(r"^[A-Z]\w*:$")
_ENTRY = re.compile(r"^(\w+)(?: ?\([^)]*\))?:\s*(.*)$")


def description(kind: type[Any]) -> str:
    """Return the docstring of `kind` without its sections; empty where Python wrote it."""
    paragraphs: list[str] = []
    for block in _docstring(kind).split("\n\n"):
        if _HEADING.match(block.split("\n", 1)[0]):
            break
        paragraphs.append(" ".join(block.split()))
    return "\n\n".join(paragraphs)


def field_descriptions(kind: type[Any]) -> Mapping[str, str]:
    """Return what the metadata, or else the docstrings, say about the fields of `kind`.

    A docstring says it in an `Args:` or `Attributes:` section; a class without an
    entry for an inherited field takes it from the base that has one.
    """
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        found.update(_entries(_docstring(each)))
    for field in fields(kind):
        said = field.metadata.get("description")
        if said is not None:
            found[field.name] = str(said)
    return {field.name: found[field.name] for field in fields(kind) if field.name in found}


def _docstring(kind: type[Any]) -> str:
    text = vars(kind).get("__doc__") or ""
    # a dataclass without a docstring is given its signature
    return "" if text.startswith(f"{kind.__name__}(") else cleandoc(text)


def _entries(docstring: str) -> dict[str, str]:
    """Return the entries of the section about fields; an entry may span lines."""
    found: dict[str, list[str]] = {}
    inside, name = False, ""
    for line in docstring.split("\n"):
        if line and not line.startswith(" "):
            inside, name = _SECTION.match(line) is not None, ""
        elif inside and line:
            entry = None if line.startswith("     ") else _ENTRY.match(line.strip())
            if entry:
                name = entry.group(1)
                found[name] = [entry.group(2)]
            elif name:
                found[name].append(line.strip())
    return {each: " ".join(filter(None, lines)) for each, lines in found.items()}
