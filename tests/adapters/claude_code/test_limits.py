import threading
import traceback
from pathlib import Path

import pytest
from claude_agent_sdk import CLINotFoundError, ProcessError, ResultMessage

from tests.adapters.anthropic.server import KEY, drops_after, event, fails, pieces, text
from tests.adapters.chat_server import Answer, Handler, is_silent, never_ends
from tests.adapters.claude_code.server import Desk, asked, impatient, ours, says
from tests.adapters.workers import TOOLS
from weakincentives.adapters import (
    AdapterError,
    AuthenticationError,
    CancellationToken,
    ContextTooLongError,
    InvalidRequestError,
    RequestRetried,
    RetryPolicy,
    RunCancelledError,
    RunOptions,
    StepLimitError,
    ThrottledError,
    ToolCall,
    TransientError,
    partial_response,
)
from weakincentives.adapters.claude_code.adapter import ClaudeAgentAdapter
from weakincentives.adapters.claude_code.process import error_from_exit, error_from_result
from weakincentives.adapters.http.errors import Endpoint
from weakincentives.runtime import (
    Budget,
    BudgetExceededError,
    Deadline,
    DeadlineExceededError,
)

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    root = tmp_path / "workspace"
    root.mkdir()
    return Desk(root, TOOLS)


ENDPOINT = Endpoint("claude-agent", "claude-test", "http://host", "ANTHROPIC_API_KEY", KEY)


@pytest.mark.parametrize(
    ("status", "said", "error", "told"),
    [
        (401, f"bad {KEY}", AuthenticationError, "check ANTHROPIC_API_KEY"),
        (None, "Not logged in - Please run /login", AuthenticationError, "check ANTHROPIC_API_KEY"),
        (404, "model: x", InvalidRequestError, "'claude-test'"),
        (400, "what is this", InvalidRequestError, "change it"),
        (400, "Prompt is too long - limit 200000", ContextTooLongError, "shorten it"),
        (429, "slow down", ThrottledError, "limits the rate"),
        (429, "Rate limit reached, overloaded", ThrottledError, "limits the rate"),
        (429, "The engine is overloaded", ThrottledError, "is overloaded"),
        (529, "Overloaded", ThrottledError, "is overloaded"),
        (503, "Model is overloaded", ThrottledError, "is overloaded"),
        (503, "Service Unavailable", TransientError, "failed to answer"),
        (None, "overloaded_error", ThrottledError, "is overloaded"),
        (500, "sorry", TransientError, "try again"),
        (None, "Connection refused (ECONNREFUSED)", TransientError, "http://host"),
    ],
)
def test_a_refusal_says_what_to_do(
    status: int | None, said: str, error: type[AdapterError], told: str
) -> None:
    result = ResultMessage(
        "success", 1, 1, True, 1, "session", result=said, api_error_status=status
    )
    made = error_from_result(result, ENDPOINT, steps=1, calls=0)
    assert type(made) is error
    assert told in str(made)
    assert KEY not in str(made)


def test_a_program_that_cannot_be_started_is_told_from_one_that_ended() -> None:
    missing = error_from_exit(CLINotFoundError("no such file"), ENDPOINT, "")
    ended = error_from_exit(ProcessError("it failed", exit_code=1), ENDPOINT, "no room on the disk")
    assert isinstance(missing, InvalidRequestError)
    assert isinstance(ended, TransientError)
    assert "no room on the disk" in str(ended)
    bug = ZeroDivisionError()
    assert error_from_exit(bug, ENDPOINT, "") is bug


def test_a_server_that_is_not_there_is_named(desk: Desk) -> None:
    with (
        ClaudeAgentAdapter("m", api_key=KEY, base_url="http://127.0.0.1:9") as adapter,
        pytest.raises(TransientError, match=r"127\.0\.0\.1:9"),
    ):
        desk.work(adapter)


def test_throttling_and_dropped_connections_are_borne(desk: Desk) -> None:
    busy = fails(429, "slow down", "rate_limit_error", retry_after="0")
    dropped = drops_after(*pieces(text("half an answer"))[:4])
    heard: list[str] = []
    with asked(busy, dropped, says("whole")) as (adapter, server):
        options = RunOptions(retries=RetryPolicy(max_retries=2))
        response = desk.work(adapter, options=options, on_text=heard.append)
    assert response.text == "whole"
    assert heard[-1] == "whole"
    assert len(server.requests) == 3
    first, *_ = desk.told(RequestRetried)
    assert (first.retry, first.step, "429" in first.error) == (1, 1, True)


def test_a_stream_without_end_is_not_waited_for(desk: Desk) -> None:
    with (
        asked(never_ends(event({"type": "ping"}))) as (adapter, _),
        pytest.raises(TransientError, match=r"did not answer within 0\.3 s"),
    ):
        desk.work(adapter, options=impatient(request_timeout=0.3))


def test_cancelling_ends_it_and_what_is_done_stays(desk: Desk) -> None:
    token = CancellationToken()

    def silent(handler: Handler) -> None:
        threading.Thread(target=token.cancel, args=["enough"]).start()
        is_silent(handler)

    write = desk.call("Write", "a.txt", "c1", content="x")
    with (
        asked(says("", write), silent) as (adapter, _),
        pytest.raises(RunCancelledError, match="enough") as raised,
    ):
        desk.work(adapter, cancellation=token)
    assert desk.fs.read("a.txt").content == "x"
    partial = partial_response(raised.value)
    assert partial is not None
    assert [each.call.name for each in partial.tool_results] == ["Write"]


def test_a_run_that_fails_can_be_undone(desk: Desk) -> None:
    desk.fs.write("old.txt", "old")
    answers: tuple[Answer, ...] = (
        says("", desk.call("Write", "new.txt", "c1", content="new")),
        says("", ours(ToolCall("write_file", {"path": "more.txt", "content": "more"}, "c2"))),
        fails(401, "no", "authentication_error"),
        fails(401, "no", "authentication_error"),
    )
    with (
        asked(*answers, undo_on_failure=True) as (adapter, _),
        pytest.raises(AuthenticationError) as raised,
    ):
        desk.work(adapter)
    assert [each.name for each in desk.root.iterdir()] == ["old.txt"]
    partial = partial_response(raised.value)
    assert partial is not None
    assert len(partial.tool_results) == 2


def test_budgets_and_steps_are_bounds(desk: Desk) -> None:
    call = ours(ToolCall("write_file", {"path": "a.txt", "content": "x"}, "c1"))
    with asked(says("", call), is_silent) as (adapter, _), pytest.raises(BudgetExceededError):
        desk.work(adapter, budget=Budget(max_total_tokens=20))
    with (
        asked(says("", call), says("", call)) as (adapter, _),
        pytest.raises(StepLimitError, match="1 steps"),
    ):
        desk.work(adapter, options=impatient(max_steps=1))


def test_a_deadline_ends_it(desk: Desk) -> None:
    with asked(is_silent) as (adapter, _), pytest.raises(DeadlineExceededError):
        desk.work(adapter, deadline=Deadline.after(1.5))


def test_what_a_listener_raises_is_passed_on(desk: Desk) -> None:
    def listen(_: str) -> None:
        raise ZeroDivisionError("nobody listens")

    with (
        asked(says("hello"), is_silent) as (adapter, _),
        pytest.raises(ZeroDivisionError, match="nobody listens"),
    ):
        desk.work(adapter, on_text=listen)


@pytest.mark.parametrize(
    ("subtype", "said"),
    [
        ("success", f"Invalid API key: {KEY}"),
        ("success", f"bad gateway {KEY}"),
        ("error_max_structured_output_retries", f"not {KEY}"),
    ],
)
def test_a_result_that_echoes_the_key_is_told_without_it(subtype: str, said: str) -> None:
    result = ResultMessage(subtype, 1, 1, True, 1, "session", result=said)
    assert KEY not in str(error_from_result(result, ENDPOINT, steps=1, calls=0))


def test_the_end_of_the_process_is_told_without_what_it_wrote_about_the_key() -> None:
    error = error_from_exit(ProcessError(f"died {KEY}", stderr=KEY), ENDPOINT, f"complaint {KEY}")
    assert KEY not in "".join(traceback.format_exception(error))
    assert error.__cause__ is None
