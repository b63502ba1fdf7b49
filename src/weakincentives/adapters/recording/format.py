"""Recordings: a conversation with a model as JSON lines.

The first line says what it is; each other line is one request with its answer. Of a
request only what is new since the one before is kept, and of tools a hash.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from weakincentives.adapters.errors import (
    AuthenticationError,
    ContextTooLongError,
    InvalidRequestError,
    ProviderError,
    ScriptError,
    ThrottledError,
    TransientError,
)
from weakincentives.adapters.messages import Completion, CompletionRequest, Message
from weakincentives.posix import read_regular
from weakincentives.serde import SerdeError, decode, encode

VERSION = 1
MAX_RECORDING_BYTES = 64 * 1024 * 1024
"""How large the file of a recording or a script may be."""
_ERRORS = {
    kind.__name__: kind
    for kind in (
        ProviderError,
        ThrottledError,
        TransientError,
        InvalidRequestError,
        AuthenticationError,
        ContextTooLongError,
    )
}


@dataclass(frozen=True, slots=True)
class RecordedError:
    """What a provider said instead of an answer."""

    kind: str
    message: str
    provider: str = ""
    status: int | None = None
    retry_after: float | None = None

    def error(self) -> ProviderError:
        """Return what is raised; a kind that nobody knows is a plain `ProviderError`."""
        kind = _ERRORS.get(self.kind, ProviderError)
        return kind(
            self.message, provider=self.provider, status=self.status, retry_after=self.retry_after
        )


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One request, and what came back.

    Args:
        shared: How many messages are those of the request before.
        messages: The others.
        tools: The hash of each tool that was offered.
        output: The hash of what the answer had to be.
        completion: The answer, or None if there was an error.
        error: What there was instead.
    """

    shared: int
    messages: tuple[Mapping[str, Any], ...]
    tools: Mapping[str, str]
    output: str | None
    completion: Completion | None = None
    error: RecordedError | None = None


@dataclass(frozen=True, slots=True)
class Recording:
    """A conversation that was recorded, and with whom."""

    adapter: str
    model: str
    native_output: bool = False
    steps: tuple[RecordedStep, ...] = ()
    version: int = field(default=VERSION, kw_only=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Recording":
        """Return the recording at `path`.

        Raises:
            ScriptError: It is no recording, of a later version, or damaged.
            OSError: It cannot be read.
        """
        # the caller names the file, so a link to it will do
        data = read_regular(path, MAX_RECORDING_BYTES, follow_links=True)
        head, *lines = data.split(b"\n")
        made = _head(head, path)
        if not lines or lines.pop():
            raise ScriptError(f"The recording ends in the middle of a line: {str(path)!r}")
        steps: list[RecordedStep] = []
        for number, line in enumerate(lines, 2):
            try:
                steps.append(decode(line, RecordedStep))
            except SerdeError as error:
                raise ScriptError(
                    f"Line {number} of the recording is damaged: {error}: {str(path)!r}"
                ) from error
        return replace(made, steps=tuple(steps))

    def settled(self) -> Iterator[RecordedStep]:
        """Yield the steps without those that failed and were made again."""
        before: RecordedStep | None = None
        for step in self.steps:
            if before is not None and step.messages:
                yield before  # it was not made again
            elif before is not None:
                step = replace(step, shared=before.shared, messages=before.messages)
            before = None
            if step.error is not None and step.error.error().passes:
                before = step
            else:
                yield step
        if before is not None:
            yield before


class Conversation:
    """What was asked before, to find what is new."""

    def __init__(self) -> None:
        """Start with nothing."""
        self._before: Sequence[Message] = ()

    def step(self, request: CompletionRequest) -> RecordedStep:
        """Return a request as it is recorded."""
        shared = 0
        for old, new in zip(self._before, request.messages, strict=False):
            if old != new:
                break
            shared += 1
        self._before = request.messages
        return RecordedStep(
            shared,
            tuple(to_plain(each) for each in request.messages[shared:]),
            {tool.name: _hash(tool) for tool in request.tools},
            None if request.output is None else _hash(request.output),
        )


def to_plain(value: object) -> Any:
    """Return a value as it is once it has been through JSON."""
    return decode(encode(value), cast("type[Any]", Any))


def _hash(value: object) -> str:
    return hashlib.sha256(encode(to_plain(value))).hexdigest()


def _head(line: bytes, path: str | os.PathLike[str]) -> Recording:
    try:
        said = decode(line, dict[str, Any])
        version = said.get("version")
        if version != VERSION and "adapter" in said:
            raise ScriptError(
                f"The recording has version {version!r}, and version {VERSION} is known:"
                f" {str(path)!r}"
            )
        return decode(line, Recording)
    except SerdeError as error:
        raise ScriptError(f"Not a recording: {str(path)!r}") from error
