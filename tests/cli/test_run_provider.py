"""`wink run` with a provider: a server on this machine that speaks its API."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.adapters.chat_server import Answer, Handler, Server, fails, is_silent, says, serving
from tests.cli.workplace import CALC, FIXED, Wink
from weakincentives.adapters import ToolCall

pytestmark = pytest.mark.usefixtures("default_sandbox")

Configure = Callable[[Path, Server], None]
PATCH = """\
*** Begin Patch
*** Update File: calc.py
@@
-    return sum(numbers) / (len(numbers) + 1)
+    return sum(numbers) / len(numbers)
*** End Patch
"""


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def configure(monkeypatch: pytest.MonkeyPatch) -> Configure:
    """Return what has a project ask a server; the user says which."""

    def write(project: Path, server: Server) -> None:
        (project / "wink.toml").write_text('model = "openai:gpt-test"\n')
        monkeypatch.setenv("WINK_BASE_URL", server.url)

    return write


@pytest.mark.parametrize("line", ["", 'sandbox = "local"\n', 'api_key_env = "HOME"\n'])
@pytest.mark.parametrize("options", [(), ("--sandbox", "local"), ("--model", "openai:other")])
def test_a_workspace_gets_neither_the_key_nor_a_command(
    wink: Wink,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    line: str,
):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-user")
    with serving(says("Done.")) as server:
        lines = f'model = "openai:gpt-test"\nbase_url = "{server.url}"\n{line}'
        (project / "wink.toml").write_text(lines)
        done = wink("run", "fix", "--workspace", project, *options)
        assert server.requests == []
    assert done.code == 2
    assert "cannot be set by a workspace's wink.toml" in done.err
    assert "--base-url, WINK_BASE_URL or ~/.config/wink/wink.toml" in done.err
    shown = wink("doctor", "--workspace", project)
    assert (shown.code, "cannot be set by a workspace's wink.toml" in shown.out) == (1, True)


def test_a_model_behind_a_server_of_ones_own_works_in_the_dialect_that_it_knows(
    wink: Wink, project: Path, configure: Configure, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MY_KEY", "sk-mine")
    call = ToolCall("apply_patch", {"input": PATCH}, "call_1")
    with serving(says("", call), says("Divided by the number of items.")) as server:
        configure(project, server)
        options = ("--workspace", project, "--api-key-env", "MY_KEY", "--apply")
        done = wink("run", "fix the mean", *options)
    assert done.code == 0, done.err
    assert (project / "calc.py").read_text() == FIXED
    asked = server.requests[0]
    assert asked.headers["authorization"] == "Bearer sk-mine"
    roles = [(each["role"], each["content"]) for each in asked.body["messages"]]
    assert roles[-1] == ("user", "fix the mean")
    assert roles[0][0] == "system"
    assert "40 tokens in (24 cached), 14 out" in done.err


def test_a_refused_key_is_one_line_and_is_not_shown(
    wink: Wink, project: Path, configure: Configure, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-wrong-one")
    with serving(fails(401, "Incorrect API key provided")) as server:
        configure(project, server)
        done = wink("run", "fix", "--workspace", project, "--model", "openai:gpt-test")
    assert done.code == 1
    [line] = [each for each in done.err.splitlines() if each.startswith("wink:")]
    assert "key" in line
    assert "sk-wrong-one" not in done.err + done.out


def test_a_provider_that_is_busy_is_asked_again(wink: Wink, project: Path, configure: Configure):
    busy = fails(429, "slow down", **{"retry-after": "0"})
    with serving(busy, says("Nothing to do.")) as server:
        configure(project, server)
        done = wink("run", "fix", "--workspace", project, "--json")
    events = [each["event"] for each in done.events]
    assert events == ["started", "retry", "step", "finished"]
    assert done.code == 0


def test_ctrl_c_ends_the_wait_for_a_provider_that_says_nothing(
    wink: Wink, project: Path, configure: Configure
):
    def interrupts(handler: Handler) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        is_silent(handler)

    call = ToolCall("apply_patch", {"input": PATCH}, "call_1")
    with serving(says("", call), interrupts) as server:
        configure(project, server)
        done = wink("run", "fix", "--workspace", project, "--json")
    assert (done.code, done.last["status"]) == (130, "cancelled")
    assert [each["path"] for each in done.last["changes"]] == ["calc.py"]


@pytest.mark.parametrize(
    ("reply", "fact"),
    [
        (says("The task", finish="length"), "was cut off at the output limit"),
        (says(""), "is empty"),
    ],
)
def test_an_answer_that_is_no_answer_applies_nothing(
    wink: Wink, project: Path, configure: Configure, reply: Answer, fact: str
):
    call = ToolCall("apply_patch", {"input": PATCH}, "call_1")
    with serving(says("", call), *[reply] * 4) as server:
        configure(project, server)
        done = wink("run", "fix", "--workspace", project, "--api-key-env", "HOME", "--apply")
        assert len(server.requests) == 5
    assert done.code == 1, done.err
    assert f"wink: The answer of the model {fact}" in done.err
    assert "The run did not finish; nothing was applied." in done.err
    assert (project / "calc.py").read_text() == CALC


def test_an_answer_that_was_cut_off_is_finished(wink: Wink, project: Path, configure: Configure):
    call = ToolCall("apply_patch", {"input": PATCH}, "call_1")
    with serving(
        says("", call), says("Divided by ", finish="length"), says("the number.")
    ) as server:
        configure(project, server)
        options = ("--workspace", project, "--api-key-env", "HOME", "--apply", "--json")
        done = wink("run", "fix", *options)
    assert (done.code, done.last["status"], done.last["answer"]) == (
        0,
        "done",
        "Divided by the number.",
    )
    assert (project / "calc.py").read_text() == FIXED
