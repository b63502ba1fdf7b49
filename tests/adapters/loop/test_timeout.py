"""Request timeouts: a request that never returns does not hold the run."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread, current_thread, main_thread
from threading import enumerate as enumerate_threads

import pytest

from tests.adapters.workers import patient, prompt
from weakincentives.adapters import (
    CancellationToken,
    Completion,
    CompletionRequest,
    ProviderAdapter,
    RecordingAdapter,
    RetryPolicy,
    RunCancelledError,
    RunOptions,
    ScriptedAdapter,
    ToolCall,
    TransientError,
)
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.runtime import Deadline, DeadlineExceededError, PromptExecuted
from weakincentives.runtime.session import Session

_PATIENCE = 60.0  # seconds; only a test that fails waits so long


class Silent(ProviderAdapter):
    """Says nothing until it is let go, and then what it was going to say."""

    def __init__(self, answers: list[str | None]) -> None:
        self.asked = Event()
        self.over = Event()
        self.let_go = Event()
        self._answers = iter(answers)

    def complete(self, request: CompletionRequest, *, on_text=None, timeout=None) -> Completion:
        answer = next(self._answers)
        self.asked.set()
        if answer is None:
            self.let_go.wait(_PATIENCE)
            self.over.set()
        return Completion(answer or "too late")


@pytest.fixture
def silent() -> Iterator[Silent]:
    made = Silent([None, *["in time"] * 9])
    yield made
    made.let_go.set()


def test_a_provider_that_never_answers_is_left_at_the_deadline(silent: Silent):
    session = Session()
    with pytest.raises(DeadlineExceededError):
        silent.evaluate(prompt(), session=session, deadline=Deadline.after(0.05))
    executed = session[PromptExecuted].latest()
    assert executed is not None
    assert not executed.success


def test_a_provider_that_does_not_answer_in_time_is_asked_again(silent: Silent):
    options = patient(lambda _: None, request_timeout=0.5)
    assert silent.evaluate(prompt(), session=Session(), options=options).text == "in time"


def test_a_provider_that_never_answers_is_given_up_without_a_deadline():
    silent = Silent([None] * 9)
    with pytest.raises(TransientError, match=r"no answer within 0\.01 s") as caught:
        silent.evaluate(
            prompt(), session=Session(), options=patient(lambda _: None, request_timeout=0.01)
        )
    silent.let_go.set()
    assert caught.value.__notes__ == ["Gave up after 6 attempts"]


def test_cancelling_ends_a_request_that_is_waited_for(silent: Silent):
    token = CancellationToken()

    def cancel() -> None:
        silent.asked.wait(_PATIENCE)
        token.cancel()

    thread = Thread(target=cancel)
    thread.start()
    with pytest.raises(RunCancelledError):
        silent.evaluate(prompt(), session=Session(), cancellation=token)
    thread.join()
    assert not silent.over.is_set()


def test_a_signal_handler_may_cancel(silent: Silent):
    token = CancellationToken()
    before = signal.signal(signal.SIGUSR1, lambda *_: token.cancel("SIGUSR1"))

    def send() -> None:
        silent.asked.wait(_PATIENCE)
        os.kill(os.getpid(), signal.SIGUSR1)

    thread = Thread(target=send)
    thread.start()
    try:
        with pytest.raises(RunCancelledError, match="SIGUSR1"):
            silent.evaluate(prompt(), session=Session(), cancellation=token)
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)


class Endless(ProviderAdapter):
    """Says something for ever."""

    def __init__(self) -> None:
        self.ended = Event()

    def complete(
        self,
        request: CompletionRequest,
        *,
        on_text: Callable[[str], None] | None = None,
        timeout: float | None = None,
    ) -> Completion:
        assert on_text is not None
        try:
            while True:
                on_text("and ")
        finally:
            self.ended.set()


def test_a_stream_without_end_is_told_that_nobody_listens():
    token, heard, endless = CancellationToken(), list[str](), Endless()

    def listen(text: str) -> None:
        heard.append(text)
        if len(heard) == 100:
            token.cancel()

    with pytest.raises(RunCancelledError):
        endless.evaluate(prompt(), session=Session(), cancellation=token, on_text=listen)
    assert endless.ended.wait(_PATIENCE)
    assert len(heard) == 100


def test_a_stream_without_end_has_no_more_time_than_any_request():
    endless = Endless()
    options = RunOptions(request_timeout=0.05, retries=RetryPolicy(max_retries=0))
    with pytest.raises(TransientError, match="no answer within"):
        endless.evaluate(prompt(), session=Session(), on_text=lambda _: None, options=options)
    assert endless.ended.wait(_PATIENCE)


def test_text_is_heard_in_the_thread_of_the_run():
    threads: list[Thread] = []
    adapter = ScriptedAdapter(["one two"])
    adapter.evaluate(
        prompt(), session=Session(), on_text=lambda _: threads.append(current_thread())
    )
    assert threads == [main_thread()] * 2


def test_an_answer_that_comes_too_late_is_not_recorded(tmp_path: Path, silent: Silent):
    path = tmp_path / "talk"
    adapter = RecordingAdapter(silent, path)
    options = patient(lambda _: None, request_timeout=0.5)
    adapter.evaluate(prompt(), session=Session(), options=options)
    kept = path.read_bytes()
    silent.let_go.set()
    for thread in enumerate_threads():
        if thread.name == "wink-request":
            thread.join(_PATIENCE)
    assert silent.over.is_set()
    assert path.read_bytes() == kept
    assert b"too late" not in kept


def test_tools_run_in_the_thread_of_the_run():
    fs = InMemoryFilesystem()
    adapter = ScriptedAdapter([ToolCall("write_file", {"path": "a", "content": "x"}), "done"])
    with fs.savepoint() as savepoint:
        adapter.evaluate(prompt(fs), session=Session())
        savepoint.rollback()
    assert not fs.exists("a")
