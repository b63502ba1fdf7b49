"""Structured output: the schema of a dataclass for the model, and its answer parsed as one.

Models wrap JSON in fences and in prose, so the parser looks there too. The JSON that it
finds must match the dataclass exactly.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from weakincentives.adapters.messages import OutputFormat
from weakincentives.prompt import RenderedPrompt
from weakincentives.serde import SerdeError, convert, decode, encode

_ITEMS = "items"
_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class ExpectedOutput:
    """The output type of a prompt: its schema for the model, and its parser."""

    format: OutputFormat
    kind: Any
    """A dataclass, or a list of one."""
    is_array: bool

    def instructions(self) -> str:
        """Return the schema as instructions, for providers that do not enforce it."""
        return (
            "Your final message must be JSON only, matching this schema:\n\n"
            f"```json\n{encode(self.format.schema).decode()}\n```"
        )

    def parse(self, text: str) -> Any:
        """Return the answer in a text.

        Raises:
            SerdeError: No JSON in the text matches; the message names the fields.
        """
        first: SerdeError | None = None
        for candidate in _candidates(text):
            try:
                value = decode(candidate, cast("type[Any]", Any))
            except SerdeError:
                continue
            try:
                return convert(self._unwrap(value), self.kind)
            except SerdeError as error:
                first = first or error
        raise first or SerdeError("The answer contains no JSON")

    def _unwrap(self, value: Any) -> Any:
        if self.is_array and isinstance(value, dict) and set(cast("Any", value)) == {_ITEMS}:
            return cast("dict[str, Any]", value)[_ITEMS]
        return cast("Any", value)


def expected_output(rendered: RenderedPrompt[Any]) -> ExpectedOutput | None:
    """Return the expected output of a prompt, or None if it is free text."""
    kind, schema = rendered.output_type, rendered.output_schema
    if kind is None or schema is None:
        return None
    name = _NOT_IN_NAMES.sub("_", kind.__name__)[:64]
    if rendered.is_array:
        array = OutputFormat(f"{name[:59]}_list", _wrap(schema))
        return ExpectedOutput(array, list[kind], is_array=True)
    return ExpectedOutput(OutputFormat(name, schema), kind, is_array=False)


def repair_request(error: SerdeError, *, truncated: bool = False) -> str:
    """Return a message that asks the model to correct its answer.

    Args:
        error: What is wrong with it.
        truncated: Whether it was cut off at the token limit.
    """
    found = (*error.problems, *(["It was too long and was cut off"] if truncated else []))
    problems = "\n".join(f"- {each}" for each in found)
    return (
        f"Your answer was not accepted:\n\n{problems}\n\n"
        "Send the complete, corrected answer: JSON that matches the schema, and nothing else."
    )


def _wrap(schema: Mapping[str, object]) -> Mapping[str, object]:
    """Return an object schema around an array, for providers that accept only objects."""
    inner = {name: value for name, value in schema.items() if name != "$defs"}
    wrapper: dict[str, object] = {
        "type": "object",
        "properties": {_ITEMS: inner},
        "required": [_ITEMS],
        "additionalProperties": False,
    }
    if "$defs" in schema:
        wrapper["$defs"] = schema["$defs"]
    return wrapper


def _candidates(text: str) -> Iterator[str]:
    """Yield the parts that may be the answer: all, fenced blocks from the last, brackets."""
    yield text.strip()
    yield from reversed(_fenced_blocks(text))
    for opening, closing in (("{", "}"), ("[", "]")):
        start, end = text.find(opening), text.rfind(closing)
        if 0 <= start < end:
            yield text[start : end + 1]


def _fenced_blocks(text: str) -> list[str]:
    """Return the contents of fenced code blocks."""
    found: list[str] = []
    fence, block = "", list[str]()
    for line in text.split("\n"):
        match = _FENCE.match(line)
        if not fence and match:
            fence, block = match.group(1), []
        elif fence and line.strip() == fence:
            found.append("\n".join(block))
            fence = ""
        elif fence:
            block.append(line)
    return found
