"""RecordingAdapter: forward requests to another adapter and record them."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Lock

from weakincentives.adapters.base import ProviderAdapter
from weakincentives.adapters.errors import ProviderError
from weakincentives.adapters.messages import Completion, CompletionRequest
from weakincentives.adapters.options import Effort
from weakincentives.adapters.prices import TokenPrice
from weakincentives.adapters.recording.format import (
    RecordedError,
    RecordedStep,
    Recording,
    RequestEncoder,
    to_plain,
)
from weakincentives.posix import store_private
from weakincentives.serde import encode


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
        header = Recording(self.name, self.model, self.native_output)
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
