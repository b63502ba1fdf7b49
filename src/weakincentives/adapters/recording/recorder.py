"""Recording: an adapter that passes everything on to another, and writes it down."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Lock

from weakincentives.adapters.base import ProviderAdapter
from weakincentives.adapters.errors import ProviderError
from weakincentives.adapters.messages import Completion, CompletionRequest
from weakincentives.adapters.recording.format import (
    Conversation,
    RecordedError,
    RecordedStep,
    Recording,
    to_plain,
)
from weakincentives.posix import store_file, sync_directory, write_all
from weakincentives.serde import encode


class RecordingAdapter(ProviderAdapter):
    """Passes everything on to another adapter, and records it.

    The recording is whole after every step, whatever happens: it is written beside its
    place and moved there. It holds all that is said, and only its owner can read it.
    One run at a time.
    """

    def __init__(
        self, inner: ProviderAdapter, path: str | os.PathLike[str], *, overwrite: bool = False
    ) -> None:
        """Record what `inner` is asked and answers.

        Args:
            inner: Who talks to the model.
            path: Where the recording goes.
            overwrite: Whether a file that is there may be replaced.

        Raises:
            FileExistsError: There is a file already.
        """
        self._inner = inner
        self._path = Path(path)
        if not overwrite and self._path.exists():
            raise FileExistsError(f"There is a file already, overwrite=True replaces it: {path!r}")
        self.name: str = inner.name
        self.model: str = inner.model
        self.native_output: bool = inner.native_output
        self._conversation = Conversation()
        self._data = b""
        self._lock = Lock()
        self._asked = 0
        head = Recording(self.name, self.model, self.native_output)
        self._write({key: value for key, value in to_plain(head).items() if key != "steps"})

    def complete(
        self,
        request: CompletionRequest,
        *,
        on_text: Callable[[str], None] | None = None,
        timeout: float | None = None,
    ) -> Completion:
        """Ask the other adapter, and record what it answers."""
        with self._lock:
            self._asked += 1
            number = self._asked
            step = self._conversation.step(request)
        try:
            completion = self._inner.complete(request, on_text=on_text, timeout=timeout)
        except ProviderError as error:
            kind = type(error).__name__
            said = RecordedError(kind, str(error), error.provider, error.status, error.retry_after)
            self._record(number, replace(step, error=said))
            raise
        self._record(number, replace(step, completion=completion))
        return completion

    def close(self) -> None:
        """Close the other adapter; the recording is whole already."""
        self._inner.close()

    def _record(self, number: int, step: RecordedStep) -> None:
        with self._lock:
            if number == self._asked:  # else it was given up, and nobody has heard the answer
                self._write(step)

    def _write(self, line: object) -> None:
        data = self._data + encode(line) + b"\n"
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            store_file(
                directory,
                self._path.name,
                lambda target: write_all(target, data),
                permissions=0o600,
                durable=True,
            )
            self._data = data
            sync_directory(directory)
        finally:
            os.close(directory)
