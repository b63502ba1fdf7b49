"""The recording format: a conversation with a model as JSON lines.

The first line is a header; each other line is one request with its answer. A request stores only
the messages that are new since the one before, and a hash of each tool.
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
from weakincentives.adapters.messages import (
    Completion,
    CompletionRequest,
    Message,
    UserMessage,
)
from weakincentives.posix import read_regular
from weakincentives.serde import SerdeError, decode, encode

VERSION = 1
MAX_RECORDING_BYTES = 64 * 1024 * 1024
"""Maximum size of a recording or script file."""
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
    """A provider's error in place of an answer."""

    kind: str
    message: str
    provider: str = ""
    status: int | None = None
    retry_after: float | None = None

    def to_error(self) -> ProviderError:
        """Return the error to raise; an unknown kind becomes a plain `ProviderError`."""
        kind = _ERRORS.get(self.kind, ProviderError)
        return kind(
            self.message, provider=self.provider, status=self.status, retry_after=self.retry_after
        )


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One request and its answer.

    Args:
        shared: How many messages are the same as in the request before.
        messages: The other messages.
        tools: Hash of each tool in the request.
        output: Hash of the output format.
        completion: The answer, or None after an error.
        error: The error, or None.
    """

    shared: int
    messages: tuple[Mapping[str, Any], ...]
    tools: Mapping[str, str]
    output: str | None
    completion: Completion | None = None
    error: RecordedError | None = None


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded conversation, with the adapter and model."""

    adapter: str
    model: str
    native_output: bool = False
    steps: tuple[RecordedStep, ...] = ()
    version: int = field(default=VERSION, kw_only=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Recording":
        """Read a recording.

        Raises:
            ScriptError: It is not a recording, has another version, or is damaged.
            OSError: It cannot be read.
        """
        # links are fine: the operator names the file
        data = read_regular(path, MAX_RECORDING_BYTES, follow_links=True)
        head, *lines = data.split(b"\n")
        recording = _read_header(head, path)
        if not lines or lines.pop():
            raise ScriptError(
                f"The recording is truncated, its last line is incomplete: {str(path)!r}"
            )
        steps: list[RecordedStep] = []
        for number, line in enumerate(lines, 2):
            try:
                steps.append(decode(line, RecordedStep))
            except SerdeError as error:
                raise ScriptError(
                    f"Line {number} of the recording is damaged: {error}: {str(path)!r}"
                ) from error
        return replace(recording, steps=tuple(steps))

    def without_retries(self) -> Iterator[RecordedStep]:
        """Yield the steps without the failed attempts that were retried."""
        failed: RecordedStep | None = None
        for step in self.steps:
            if failed is not None and step.messages:
                yield failed  # it was not retried
            elif failed is not None:
                step = replace(step, shared=failed.shared, messages=failed.messages)
            failed = None
            if step.error is not None and step.error.to_error().retryable:
                failed = step
            else:
                yield step
        if failed is not None:
            yield failed


class RequestEncoder:
    """Encodes requests as steps, with only the messages that are new."""

    def __init__(self) -> None:
        """Start a conversation."""
        self._before: Sequence[Message] = ()

    def encode(self, request: CompletionRequest) -> RecordedStep:
        """Return a request as a step without an answer."""
        shared = 0
        for old, new in zip(self._before, request.messages, strict=False):
            if old != new:
                break
            shared += 1
        self._before = request.messages
        return RecordedStep(
            shared,
            tuple(_plain_message(each) for each in request.messages[shared:]),
            {tool.name: _hash(tool) for tool in request.tools},
            None if request.output is None else _hash(request.output),
        )


def to_plain(value: object) -> Any:
    """Return a value after a round trip through JSON."""
    return decode(encode(value), cast("type[Any]", Any))


def _plain_message(message: Message) -> Any:
    plain = to_plain(message)
    if isinstance(message, UserMessage) and not message.media:
        del plain["media"]  # recordings made before messages had media must still match
    return plain


def _hash(value: object) -> str:
    return hashlib.sha256(encode(to_plain(value))).hexdigest()


def _read_header(line: bytes, path: str | os.PathLike[str]) -> Recording:
    try:
        header = decode(line, dict[str, Any])
        version = header.get("version")
        if version != VERSION and "adapter" in header:
            raise ScriptError(
                f"The recording has version {version!r}, only version {VERSION} is supported:"
                f" {str(path)!r}"
            )
        return decode(line, Recording)
    except SerdeError as error:
        raise ScriptError(f"Not a recording: {str(path)!r}") from error
