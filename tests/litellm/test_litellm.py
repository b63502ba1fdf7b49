import os
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.chat_server import (
    REQUEST,
    Answer,
    Handler,
    drops,
    event,
    fails,
    is_silent,
    never_ends,
    piece,
    reply,
    says,
    serving,
    streams,
)
from tests.adapters.same_task import ANSWER, STEPS, expected, tree_hash, work
from tests.adapters.workers import Answer as Verdict
from tests.adapters.workers import prompt
from weakincentives.adapters import (
    AdapterError,
    AuthenticationError,
    CompletionRequest,
    ContextTooLongError,
    InvalidRequestError,
    ThrottledError,
    ToolCall,
    ToolDefinition,
    TransientError,
    UserMessage,
    create_adapter,
)
from weakincentives.adapters.litellm import LiteLLMAdapter
from weakincentives.adapters.loop.timeout import TimedRequest
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.prompt import Media
from weakincentives.runtime import TokenUsage
from weakincentives.runtime.session import Session

# LiteLLM warns of itself, and takes a warning that is an error for a failed connection
pytestmark = pytest.mark.filterwarnings("default")

KEY = "sk-secret-key"
GATEWAY = "gateway-token-1"


def adapter(url: str, **given: Any) -> LiteLLMAdapter:
    return LiteLLMAdapter("openai/gpt-test", api_key=KEY, base_url=url, **given)


def failure(answer: Answer, **given: Any) -> BaseException:
    with serving(answer) as server, pytest.raises(AdapterError) as raised:
        adapter(server.url).complete(REQUEST, **given)
    assert len(server.requests) == 1
    return raised.value


@pytest.mark.parametrize("is_heard", [False, True])
def test_the_same_task_ends_in_the_same_tree(is_heard: bool) -> None:
    fs, heard = InMemoryFilesystem(), list[str]()
    on_text = heard.append if is_heard else None
    with serving(*(says("", *step) for step in STEPS), says(ANSWER)) as server:
        response = work(adapter(server.url), fs, on_text=on_text)
    assert (tree_hash(fs), [each.text for each in response.tool_results]) == expected()
    assert response.text == ANSWER
    assert "".join(heard) == (ANSWER if is_heard else "")
    assert all(bool(each.body.get("stream")) == is_heard for each in server.requests)


@pytest.mark.parametrize("is_heard", [False, True])
def test_calls_arguments_and_usage_are_passed_on_as_they_came(is_heard: bool) -> None:
    heard: list[str] = []
    on_text = heard.append if is_heard else None
    calls = (ToolCall("t", '{"broken": ', "c1"), ToolCall("u", '{"b": 1}', "c2"))
    tool = ToolDefinition("t", "A tool.", {"type": "object", "properties": {}})
    request = CompletionRequest((UserMessage("hello"),), (tool,), max_tokens=9, temperature=0.5)
    with serving(says("Well.", *calls)) as server:
        done = adapter(server.url, headers={"x-mine": "1"}).complete(request, on_text=on_text)
    assert (done.text, done.tool_calls, done.stop_reason) == ("Well.", calls, "tool_calls")
    assert done.usage == TokenUsage(20, 7, 12)
    assert "".join(heard) == ("Well." if is_heard else "")
    assert (server.last["max_tokens"], server.last["temperature"]) == (9, 0.5)
    assert server.last["tools"][0]["function"]["name"] == "t"
    headers = server.requests[0].headers
    assert (headers["x-mine"], headers["authorization"]) == ("1", f"Bearer {KEY}")


def test_an_answer_is_what_the_prompt_asks_for() -> None:
    with serving(says('{"name": "x", "count": 3}')) as server:
        response = adapter(server.url).evaluate(prompt(output_type=Verdict), session=Session())
    assert response.output == Verdict("x", 3)
    assert server.last["response_format"]["type"] == "json_schema"


@pytest.mark.parametrize(
    ("answer", "error", "told"),
    [
        (fails(401, f"bad {KEY}"), AuthenticationError, "check api_key"),
        (fails(404, "no such model"), InvalidRequestError, "'openai/gpt-test'"),
        (fails(400, "odd"), InvalidRequestError, "change it"),
        (
            fails(400, "This model's maximum context length is 8", code="context_length_exceeded"),
            ContextTooLongError,
            "shorten it",
        ),
        (fails(500, "sorry"), TransientError, "try again"),
        (fails(529, "overloaded"), ThrottledError, "is overloaded"),
        (drops(headers_first=False), TransientError, "try again"),
    ],
)
def test_a_refusal_says_what_to_do(answer: Answer, error: type[AdapterError], told: str) -> None:
    raised = failure(answer)
    assert type(raised) is error
    assert told in str(raised)
    assert KEY not in str(raised)


def test_who_wants_fewer_requests_is_asked_when() -> None:
    raised = failure(fails(429, "slow down", retry_after="7"))
    assert isinstance(raised, ThrottledError)
    assert raised.retry_after == 7.0


@pytest.mark.parametrize(
    "answer",
    [
        drops(piece({"content": "half"})),
        streams(piece({"content": "half"}), done=False),
    ],
)
def test_half_an_answer_is_none(answer: Answer) -> None:
    heard: list[str] = []
    assert isinstance(failure(answer, on_text=heard.append), TransientError)
    assert heard == ["half"]


@pytest.mark.parametrize(
    "answer",
    [is_silent, never_ends(event(piece({"content": "x"}))), never_ends(b": ping\n\n")],
)
def test_an_answer_without_end_is_not_waited_for(answer: Answer) -> None:
    raised = failure(answer, timeout=0.2, on_text=lambda _: None)
    assert isinstance(raised, TransientError)
    assert "did not answer within 0.2 s" in str(raised)


def test_a_timeout_that_litellm_reports_as_something_else_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait = TimedRequest.result
    monkeypatch.setattr(TimedRequest, "result", lambda timed, _, limits: wait(timed, 60, limits))
    answer = never_ends(event(piece({"content": "x"})))
    raised = failure(answer, timeout=0.2, on_text=lambda _: None)
    assert "did not answer within 0.2 s" in str(raised)


def test_what_a_listener_raises_is_passed_on() -> None:
    def listen(_: str) -> None:
        raise ZeroDivisionError("nobody listens")

    with serving(says("hello")) as server, pytest.raises(ZeroDivisionError):
        adapter(server.url).complete(REQUEST, on_text=listen)


def test_a_server_that_is_not_there_is_not_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
    with pytest.raises(TransientError):
        adapter(url).complete(REQUEST)


def test_what_is_missing_is_said() -> None:
    with pytest.raises(AuthenticationError, match="check api_key"):
        create_adapter("litellm:openai/gpt-5").complete(REQUEST)
    with pytest.raises(InvalidRequestError, match="name the provider too"):
        create_adapter("litellm:no-such-model").complete(REQUEST)


def test_importing_it_reads_no_file_and_looks_nothing_up(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("FROM_A_FILE=1\n")
    program = (
        "import os, socket\n"
        "def refuse(*given): raise AssertionError(given)\n"
        "socket.getaddrinfo = socket.socket.connect = refuse\n"
        "import weakincentives.adapters.litellm\n"
        "assert 'FROM_A_FILE' not in os.environ\n"
    )
    inherited = {name: value for name, value in os.environ.items() if "LITELLM" not in name}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=inherited,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [200, 400])
def test_a_body_without_end_comes_to_one(status: int, stream: bool):
    def answer(handler: Handler) -> None:
        handler.begin(status, {"content-type": "text/event-stream", "connection": "close"})
        while not handler.server_state.stopped.is_set():
            handler.wfile.write(b"data: " + b"x" * 65536)

    error = failure(answer, on_text=print if stream else None, timeout=60)
    assert isinstance(error, TransientError if status == 200 else InvalidRequestError)


def test_a_packed_answer_that_was_not_asked_for_is_refused():
    error = failure(reply("x" * 100, content_encoding="gzip"), timeout=60)
    assert "not requested" in str(error)


def test_nothing_is_sent_on_to_another_server():
    with serving(says("hi")) as other:
        error = failure(reply("", 307, location=f"{other.url}/x?key=1"), timeout=60)
        assert other.requests == []
    assert isinstance(error, InvalidRequestError)
    assert f"redirects to '{other.url}/x'" in str(error)


@pytest.mark.parametrize("echo", [KEY, f"Bearer {KEY}", GATEWAY, "of-the-environment-1"])
def test_secrets_are_in_no_error_and_in_nothing_that_it_follows_from(
    echo: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SOME_API_KEY", "of-the-environment-1")
    with serving(fails(400, f"bad {echo}")) as server, pytest.raises(AdapterError) as raised:
        adapter(server.url, headers={"X-Gateway": GATEWAY}).complete(REQUEST, timeout=60)
    told = "".join(traceback.format_exception(raised.value))
    assert "***" in told
    assert echo not in told
    assert (raised.value.__cause__, raised.value.__context__) == (None, None)


def test_an_effort_and_a_picture_of_the_user_are_sent():
    message = UserMessage("What is this?", (Media("image/png", b"PNG"),))
    with serving(says("ok")) as server:
        # the effort of the run replaces the one that is always sent
        asked = adapter(server.url, arguments={"reasoning_effort": "high"})
        asked.complete(CompletionRequest((message,), effort="low"))
    assert server.last["reasoning_effort"] == "low"
    assert server.last["messages"][0]["content"][1] == {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64,UE5H"},
    }
