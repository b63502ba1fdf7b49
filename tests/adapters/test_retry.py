"""Retries: retryable errors are retried, others are not."""

import pytest

from tests.adapters.workers import patient, prompt
from weakincentives.adapters import (
    AuthenticationError,
    ContextTooLongError,
    InvalidRequestError,
    ProviderError,
    RequestRetried,
    RetryPolicy,
    ScriptedAdapter,
    ThrottledError,
    ToolCall,
    TransientError,
    partial_response,
)
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.runtime import ManualClock
from weakincentives.runtime.session import Session


def test_passing_failures_are_tried_again_after_longer_and_longer_waits():
    waits: list[float] = []
    failures = [TransientError("down")] * 4
    adapter = ScriptedAdapter([*failures, "done"])
    response = adapter.evaluate(prompt(), session=Session(), options=patient(waits.append))
    assert response.text == "done"
    assert waits == [0.5, 1.0, 2.0, 4.0]


def test_a_provider_that_says_how_long_is_waited_for():
    waits: list[float] = []
    adapter = ScriptedAdapter([ThrottledError("slow down", retry_after=7.0), "done"])
    adapter.evaluate(prompt(), session=Session(), options=patient(waits.append))
    assert waits == [7.0]


def test_a_dropped_connection_is_a_passing_failure():
    waits: list[float] = []
    adapter = ScriptedAdapter([ConnectionResetError("reset"), TimeoutError("slow"), "done"])
    adapter.evaluate(prompt(), session=Session(), options=patient(waits.append))
    assert waits == [0.5, 1.0]


def test_it_is_given_up_after_so_many_times():
    fs = InMemoryFilesystem()
    call = ToolCall("write_file", {"path": "a", "content": "x"})
    adapter = ScriptedAdapter([call, *[TransientError(f"down {n}") for n in range(9)]])
    with pytest.raises(TransientError, match="down 5") as caught:
        adapter.evaluate(prompt(fs), session=Session(), options=patient(lambda _: None))
    assert len(adapter.requests) == 1 + 6
    assert fs.exists("a")
    partial = partial_response(caught.value)
    assert partial is not None
    assert len(partial.tool_results) == 1


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequestError("no such model"),
        AuthenticationError("no key"),
        ContextTooLongError("too long"),
        ProviderError("strange"),
        ThrottledError("come back tomorrow", retry_after=86400.0),
    ],
)
def test_what_will_not_pass_is_not_tried_again(error: ProviderError):
    adapter = ScriptedAdapter([error, "never"])
    with pytest.raises(type(error)) as caught:
        adapter.evaluate(prompt(), session=Session(), options=patient(lambda _: None))
    assert caught.value is error
    assert len(adapter.requests) == 1


def test_who_is_not_waited_for_says_when_to_come_back():
    adapter = ScriptedAdapter([ThrottledError("come back later", retry_after=3600.0)])
    with pytest.raises(ThrottledError) as caught:
        adapter.evaluate(prompt(), session=Session(), options=patient(lambda _: None))
    assert caught.value.__notes__ == ["The provider asks to wait 3600 s before a retry"]


def test_each_request_has_its_own_retries():
    waits: list[float] = []
    call = ToolCall("read_file", {"path": "a"})
    failures = [TransientError("down")] * 3
    adapter = ScriptedAdapter([*failures, call, *failures, "done"])
    adapter.evaluate(prompt(InMemoryFilesystem()), session=Session(), options=patient(waits.append))
    assert waits == [0.5, 1.0, 2.0] * 2


def test_a_retry_is_told_with_the_text_that_is_void():
    told: list[RequestRetried] = []
    session = Session()
    session.bus.subscribe(RequestRetried, told.append)

    class Drops(ScriptedAdapter):
        def complete(self, request, *, on_text=None, timeout=None):
            completion = super().complete(request, on_text=on_text, timeout=timeout)
            if self.remaining:
                raise TransientError("dropped")
            return completion

    heard: list[str] = []
    adapter = Drops(["half an ans", "whole"], name="openai", model="m")
    adapter.evaluate(
        prompt(), session=session, on_text=heard.append, options=patient(lambda _: None)
    )
    (event,) = told
    assert (event.step, event.retry, event.delay) == (1, 1, 0.5)
    assert (event.adapter, event.model) == ("openai", "m")
    assert event.error == "TransientError: dropped"
    assert "".join(heard)[event.streamed_characters :] == "whole"


def test_waits_have_a_limit_and_are_shortened_by_chance():
    policy = RetryPolicy(max_retries=200, max_delay=10, random=lambda: 0.0)
    down = TransientError("down")
    assert policy.delay(0, down) == 0.25
    assert policy.delay(199, down) == 5.0
    assert policy.delay(200, down) is None


def test_a_policy_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="first_delay must not be negative: -1"):
        RetryPolicy(first_delay=-1)


def test_a_run_takes_no_real_time_with_an_injected_wait():
    clock = ManualClock()
    adapter = ScriptedAdapter([ThrottledError("slow", retry_after=250.0), "done"])
    adapter.evaluate(prompt(), session=Session(), options=patient(clock.advance))
    assert clock.monotonic() == 250.0
