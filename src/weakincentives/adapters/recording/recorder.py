"""RecordingAdapter forwards requests to another adapter and records them, as JSON lines.

The first line is a header; each other line is one request with its answer. A request stores only
the messages that are new since the one before, and a hash of each tool.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, cast

from weakincentives.adapters.base import ProviderAdapter
from weakincentives.adapters.errors import (
    AuthenticationError,
    ContextTooLongError,
    InvalidRequestError,
    ProviderError,
    ScriptError,
    ThrottledError,
    TransientError,
)
from weakincentives.adapters.messages import Completion, CompletionRequest, Message, UserMessage
from weakincentives.adapters.options import Effort
from weakincentives.adapters.prices import TokenPrice
from weakincentives.posix import read_regular, store_private
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
class RecordedConversation:
    """A recorded conversation, with the adapter and model."""

    adapter: str
    model: str
    native_output: bool = False
    steps: tuple[RecordedStep, ...] = ()
    version: int = field(default=VERSION, kw_only=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "RecordedConversation":
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


class RecordingAdapter(ProviderAdapter):
    """Forwards requests to another adapter, and records them with their answers.

    The file is replaced atomically after every step, so it is always complete. It contains the
    whole conversation, and only its owner can read it. One run at a time.
    """

    def __init__(
        self, inner: ProviderAdapter, path: str | os.PathLike[str], *, overwrite: bool = False
    ) -> None:
        """Record the requests to `inner`.

        Args:
            inner: The adapter that sends the requests.
            path: File of the recording.
            overwrite: Whether to replace an existing file.

        Raises:
            FileExistsError: The file exists.
        """
        self._inner = inner
        self._path = Path(path)
        if not overwrite and self._path.exists():
            raise FileExistsError(f"File exists, pass overwrite=True to replace it: {path!r}")
        self.name: str = inner.name
        self.model: str = inner.model
        self.native_output: bool = inner.native_output
        self.supports_temperature: bool = inner.supports_temperature
        self.efforts: tuple[Effort, ...] = inner.efforts
        self.price: TokenPrice | None = inner.price
        self._encoder = RequestEncoder()
        self._data = b""
        self._lock = Lock()
        self._requests = 0
        header = RecordedConversation(self.name, self.model, self.native_output)
        self._write({key: value for key, value in to_plain(header).items() if key != "steps"})

    def complete(
        self,
        request: CompletionRequest,
        *,
        on_text: Callable[[str], None] | None = None,
        timeout: float | None = None,
    ) -> Completion:
        """Forward a request, and record its answer or error."""
        with self._lock:
            self._requests += 1
            number = self._requests
            step = self._encoder.encode(request)
        try:
            completion = self._inner.complete(request, on_text=on_text, timeout=timeout)
        except ProviderError as error:
            recorded = RecordedError(
                type(error).__name__, str(error), error.provider, error.status, error.retry_after
            )
            self._record(number, replace(step, error=recorded))
            raise
        self._record(number, replace(step, completion=completion))
        return completion

    def close(self) -> None:
        """Close the other adapter; the recording is complete already."""
        self._inner.close()

    def _record(self, number: int, step: RecordedStep) -> None:
        with self._lock:
            if number == self._requests:  # else it was abandoned, and its answer was dropped
                self._write(step)

    def _write(self, line: object) -> None:
        data = self._data + encode(line) + b"\n"
        store_private(self._path, data)
        self._data = data


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


def _read_header(line: bytes, path: str | os.PathLike[str]) -> RecordedConversation:
    try:
        header = decode(line, dict[str, Any])
        version = header.get("version")
        if version != VERSION and "adapter" in header:
            raise ScriptError(
                f"The recording has version {version!r}, only version {VERSION} is supported:"
                f" {str(path)!r}"
            )
        return decode(line, RecordedConversation)
    except SerdeError as error:
        raise ScriptError(f"Not a recording: {str(path)!r}") from error
