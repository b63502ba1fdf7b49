"""Structured output: a dataclass as what the model must answer, and its answer as that.

Models wrap JSON in fences and in prose, and so the answer is looked for there too. What
is found must be exactly what the dataclass says.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from weakincentives.adapters.messages import OutputFormat
from weakincentives.prompt import RenderedPrompt
from weakincentives.serde import SerdeError, convert, decode, encode

_LIST = "items"
_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})")
_NAME = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class ExpectedOutput:
    """What the answer must be, for the model and for us."""

    format: OutputFormat
    kind: Any
    """A dataclass, or a list of one."""
    is_array: bool

    def instructions(self) -> str:
        """Return what a model is told about its answer, where the provider does not see to it."""
        return (
            "Your last message must be JSON and nothing else, and match this schema:\n\n"
            f"```json\n{encode(self.format.schema).decode()}\n```"
        )

    def parse(self, text: str) -> Any:
        """Return the answer.

        Raises:
            SerdeError: There is none in the text; the message names the fields.
        """
        first: SerdeError | None = None
        for candidate in _candidates(text):
            try:
                value = decode(candidate, cast("type[Any]", Any))
            except SerdeError:
                continue
            try:
                return convert(self._unwrapped(value), self.kind)
            except SerdeError as error:
                first = first or error
        raise first or SerdeError("There is no JSON in the answer")

    def _unwrapped(self, value: Any) -> Any:
        if self.is_array and isinstance(value, dict) and set(cast("Any", value)) == {_LIST}:
            return cast("dict[str, Any]", value)[_LIST]
        return cast("Any", value)


def expected_output(rendered: RenderedPrompt[Any]) -> ExpectedOutput | None:
    """Return what the answer to a prompt must be, or None if any text will do."""
    kind, schema = rendered.output_type, rendered.output_schema
    if kind is None or schema is None:
        return None
    name = _NAME.sub("_", kind.__name__)[:64]
    if rendered.is_array:
        listed = OutputFormat(f"{name[:59]}_list", _wrapped(schema))
        return ExpectedOutput(listed, list[kind], is_array=True)
    return ExpectedOutput(OutputFormat(name, schema), kind, is_array=False)


def repair_request(error: SerdeError, *, cut_off: bool = False) -> str:
    """Return what a model is told about an answer that was not accepted.

    Args:
        error: What is wrong with it.
        cut_off: Whether it was longer than allowed.
    """
    found = (*error.problems, *(["It was too long and was cut off"] if cut_off else []))
    problems = "\n".join(f"- {each}" for each in found)
    return (
        f"Your answer was not accepted:\n\n{problems}\n\n"
        "Send the whole answer again, corrected: JSON that matches the schema, and nothing else."
    )


def _wrapped(schema: Mapping[str, object]) -> Mapping[str, object]:
    """Return the schema of an object around a list, for providers that take only objects."""
    inner = {name: value for name, value in schema.items() if name != "$defs"}
    made: dict[str, object] = {
        "type": "object",
        "properties": {_LIST: inner},
        "required": [_LIST],
        "additionalProperties": False,
    }
    if "$defs" in schema:
        made["$defs"] = schema["$defs"]
    return made


def _candidates(text: str) -> Iterator[str]:
    """Yield where an answer may stand: everything, what is fenced, what is in brackets."""
    yield text.strip()
    yield from reversed(_fenced(text))
    for opening, closing in (("{", "}"), ("[", "]")):
        start, end = text.find(opening), text.rfind(closing)
        if 0 <= start < end:
            yield text[start : end + 1]


def _fenced(text: str) -> list[str]:
    """Return what stands between fences, each on a line of its own."""
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
