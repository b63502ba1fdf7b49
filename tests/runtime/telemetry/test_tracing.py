"""Tracing: spans go where the context says, and never change what is traced."""

import contextvars
import logging
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from threading import Thread
from uuid import UUID

import pytest

from weakincentives.errors import SnapshotRestoreError
from weakincentives.filesystem import (
    DirectoryCreated,
    EntryMoved,
    FilesystemEvent,
    FileWritten,
    InMemoryFilesystem,
    StateReplaced,
)
from weakincentives.runtime import (
    NO_TRACING,
    Span,
    TokenUsage,
    Tracing,
    current_tracing,
    filesystem_span,
    model_span,
    prompt_span,
    record_changes,
    record_response,
    record_result,
    restore_snapshot,
    start_span,
    take_snapshot,
    tool_span,
    use_tracing,
)
from weakincentives.runtime.checkpoints import checkpoint, rollback_to
from weakincentives.runtime.session import Session

SESSION = UUID(int=7)


@dataclass
class Recorded:
    """A span as it was told."""

    name: str
    attributes: dict[str, object]
    remote: bool
    contents: dict[str, object] = field(default_factory=dict[str, object])
    errors: list[BaseException | str] = field(default_factory=list[BaseException | str])
    is_over: bool = False
    is_recording: bool = True

    def set(self, name: str, value: object) -> None:
        self.attributes[name] = value

    def content(self, name: str, value: object) -> None:
        self.contents[name] = value

    def fail(self, error: BaseException | str) -> None:
        self.errors.append(error)


class Recorder:
    """Keeps every span."""

    def __init__(self, *, is_recording: bool = True) -> None:
        self.spans: list[Recorded] = []
        self._is_recording = is_recording

    @contextmanager
    def span(
        self, name: str, attributes: Mapping[str, object], *, remote: bool = False
    ) -> Generator[Recorded, None, None]:
        span = Recorded(name, dict(attributes), remote, is_recording=self._is_recording)
        self.spans.append(span)
        try:
            yield span
        except BaseException as error:
            span.fail(error)
            raise
        finally:
            span.is_over = True


class Broken:
    """Fails at one step of every span."""

    is_recording = True

    def __init__(self, step: str) -> None:
        self._step = step

    def _do(self, step: str) -> None:
        if step == self._step:
            raise RuntimeError(step)

    @contextmanager
    def span(
        self, name: str, attributes: Mapping[str, object], *, remote: bool = False
    ) -> Generator["Broken", None, None]:
        self._do("enter")
        try:
            yield self
        finally:
            self._do("exit")

    def set(self, name: str, value: object) -> None:
        self._do("set")

    def content(self, name: str, value: object) -> None:
        self._do("content")

    def fail(self, error: BaseException | str) -> None:
        self._do("fail")


class Swallowing:
    """Hides the exceptions of what it traces."""

    is_recording = True

    def span(
        self, name: str, attributes: Mapping[str, object], *, remote: bool = False
    ) -> "Swallowing":
        return self

    def __enter__(self) -> "Swallowing":
        return self

    def __exit__(self, *_: object) -> bool:
        return True

    def set(self, name: str, value: object) -> None: ...

    def content(self, name: str, value: object) -> None: ...

    def fail(self, error: BaseException | str) -> None: ...


@pytest.mark.parametrize(
    "begin",
    [
        lambda: prompt_span("p", text="said"),
        lambda: model_span("m", provider="p", messages=["said"]),
        lambda: tool_span("grep", arguments={"pattern": "said"}),
        lambda: filesystem_span("commit", InMemoryFilesystem()),
        lambda: start_span("a", {}, contents={"b": "said"}),
        lambda: current_tracing().span("a", {}),
    ],
)
def test_nothing_is_traced_until_somebody_asks(begin: Callable[[], AbstractContextManager[Span]]):
    with begin() as span:
        span.set("a", 1)
        span.content("b", "said")
        span.fail("tool_error")
        assert not span.is_recording
    assert begin() is begin()  # nothing is made for it
    assert current_tracing() is NO_TRACING


def test_spans_go_where_the_innermost_block_says():
    outer, inner = Recorder(), Recorder()
    with use_tracing(outer):
        with use_tracing(inner):
            assert current_tracing() is inner
            with start_span("a", {}):
                pass
        with start_span("b", {}):
            pass
        with use_tracing(NO_TRACING), start_span("c", {}):
            pass
    assert current_tracing() is NO_TRACING
    assert [each.name for each in inner.spans] == ["a"]
    assert [each.name for each in outer.spans] == ["b"]


def test_the_block_ends_when_an_exception_leaves_it():
    with pytest.raises(KeyError), use_tracing(Recorder()):
        raise KeyError
    assert current_tracing() is NO_TRACING


def test_a_new_thread_is_traced_when_it_runs_in_a_copy_of_the_context():
    recorder = Recorder()

    def work(name: str) -> None:
        with start_span(name, {}):
            pass

    with use_tracing(recorder):
        copy = contextvars.copy_context()
        threads = [Thread(target=work, args=("plain",)), Thread(target=copy.run, args=(work, "in"))]
    for thread in threads:
        thread.start()
        thread.join()
    assert [each.name for each in recorder.spans] == ["in"]


def test_an_exception_marks_the_span_and_goes_on():
    recorder = Recorder()
    error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt) as caught, use_tracing(recorder), start_span("a", {}):
        raise error
    assert caught.value is error
    assert recorder.spans[0].errors == [error]
    assert recorder.spans[0].is_over


@pytest.mark.parametrize("step", ["enter", "exit", "set", "content", "fail"])
def test_a_tracing_that_fails_is_logged_and_the_work_goes_on(
    step: str, caplog: pytest.LogCaptureFixture
):
    done: list[str] = []
    with use_tracing(Broken(step)), start_span("name of it", {}, contents={"a": 1}) as span:
        span.set("b", 1)
        span.fail("tool_error")
        done.append("work")
    assert done == ["work"]
    assert [(each.levelno, each.getMessage()) for each in caplog.records] == [
        (logging.WARNING, "Tracing of 'name of it' failed")
    ]


@pytest.mark.parametrize("tracing", [Broken("enter"), Broken("exit"), Swallowing()])
def test_the_error_of_the_work_is_the_one_that_is_raised(tracing: Tracing):
    with (
        pytest.raises(KeyError, match="of the work"),
        use_tracing(tracing),
        start_span("a", {}),
    ):
        raise KeyError("of the work")


def test_a_prompt_is_an_agent_that_is_invoked():
    recorder = Recorder()
    usage = TokenUsage(10, 4, 2)
    with (
        use_tracing(recorder),
        prompt_span("docs:review", session_id=SESSION, text="Be brief") as span,
    ):
        record_response(span, usage=usage)
    (seen,) = recorder.spans
    assert (seen.name, seen.remote) == ("invoke_agent docs:review", False)
    assert seen.attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "docs:review",
        "gen_ai.conversation.id": str(SESSION),
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 2,
    }
    assert seen.contents == {
        "gen_ai.system_instructions": [{"type": "text", "content": "Be brief"}]
    }


def test_a_model_call_tells_who_was_asked_and_what_came_back():
    recorder = Recorder()
    with use_tracing(recorder), model_span("m-1", provider="openai", messages=["hi"]) as span:
        record_response(
            span,
            usage=TokenUsage(1, 2),
            model="m-1-2026",
            response_id="r",
            finish_reasons=["stop"],
            messages=["ho"],
        )
    (seen,) = recorder.spans
    assert (seen.name, seen.remote) == ("chat m-1", True)
    assert seen.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m-1",
        "gen_ai.usage.input_tokens": 1,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.response.model": "m-1-2026",
        "gen_ai.response.id": "r",
        "gen_ai.response.finish_reasons": ("stop",),
    }
    assert seen.contents == {"gen_ai.input.messages": ["hi"], "gen_ai.output.messages": ["ho"]}


def test_a_tool_call_tells_its_name_and_keeps_what_was_said_apart():
    recorder = Recorder()
    with use_tracing(recorder), tool_span("grep", call_id="c1", arguments={"p": "x"}) as span:
        record_result(span, "two matches", success=True)
    (seen,) = recorder.spans
    assert (seen.name, seen.remote, seen.errors) == ("execute_tool grep", False, [])
    assert seen.attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "grep",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "c1",
    }
    assert seen.contents == {
        "gen_ai.tool.call.arguments": {"p": "x"},
        "gen_ai.tool.call.result": "two matches",
    }


@pytest.mark.parametrize(
    ("error", "told"), [(None, "tool_error"), (e := FileNotFoundError("x"), e)], ids=str
)
def test_a_failed_result_marks_the_span(error: Exception | None, told: Exception | str):
    recorder = Recorder()
    with use_tracing(recorder), tool_span("rm") as span:
        record_result(span, "no", success=False, error=error)
    assert recorder.spans[0].errors == [told]


def test_what_is_not_known_is_left_out():
    recorder = Recorder()
    with use_tracing(recorder):
        with prompt_span("p") as span:
            record_response(span)
        with tool_span("t"), filesystem_span("commit"):
            pass
    prompt, tool, filesystem = recorder.spans
    assert set(prompt.attributes) == {"gen_ai.operation.name", "gen_ai.agent.name"}
    assert "gen_ai.tool.call.id" not in tool.attributes
    assert filesystem.attributes == {"wink.filesystem.operation": "commit"}
    assert prompt.contents == tool.contents == {}


@pytest.mark.parametrize(
    ("events", "count"),
    [
        ([], 0),
        ([DirectoryCreated("a"), FileWritten("a/b", 1), FileWritten("a/b", 1)], 2),
        ([EntryMoved("a", "b")], 2),
        ([FileWritten("a", 1), StateReplaced("restore", "x")], None),
        (None, None),
    ],
    ids=["nothing", "one file twice", "moved", "everything", "not known"],
)
def test_filesystem_work_tells_how_many_paths_changed(
    events: list[FilesystemEvent] | None, count: int | None
):
    recorder = Recorder()
    with use_tracing(recorder), filesystem_span("commit", InMemoryFilesystem()) as span:
        record_changes(span, events)
    (seen,) = recorder.spans
    assert seen.name == "wink.filesystem.commit"
    assert seen.attributes["wink.filesystem.kind"] == "InMemoryFilesystem"
    assert seen.attributes.get("wink.filesystem.paths_changed") == count


def test_snapshots_are_told_by_their_reference():
    recorder = Recorder()
    fs = InMemoryFilesystem()
    with use_tracing(recorder):
        kept = take_snapshot(fs, "before")
        fs.write("a", "")
        restore_snapshot(fs, kept)
    assert kept.tag == "before"
    assert not fs.exists("a")
    assert [each.name for each in recorder.spans] == [
        "wink.filesystem.snapshot",
        "wink.filesystem.restore",
    ]
    references = [each.attributes["wink.filesystem.snapshot_ref"] for each in recorder.spans]
    assert references == [kept.commit_ref] * 2


def test_a_restore_that_fails_marks_its_span():
    recorder = Recorder()
    fs = InMemoryFilesystem()
    foreign = replace(fs.snapshot(), commit_ref="mem-99")
    with pytest.raises(SnapshotRestoreError) as caught, use_tracing(recorder):
        restore_snapshot(fs, foreign)
    assert recorder.spans[0].errors == [caught.value]


def test_checkpoints_are_traced():
    recorder = Recorder()
    session, fs = Session(), InMemoryFilesystem()
    with use_tracing(recorder):
        kept = checkpoint(session, fs)
        rollback_to(session, kept, fs)
    assert [each.name for each in recorder.spans] == [
        "wink.filesystem.snapshot",
        "wink.filesystem.restore",
    ]


def test_a_span_that_nobody_will_see_is_told_nothing_more():
    recorder = Recorder(is_recording=False)

    def events() -> Generator[FilesystemEvent, None, None]:
        raise AssertionError("looked at")
        yield

    with use_tracing(recorder), tool_span("t") as tool:
        record_result(tool, "text", success=False)
        with filesystem_span("commit") as commit:
            record_changes(commit, events())
        with model_span("m", provider="p") as model:
            record_response(model, model="m")
    assert all(not each.contents and not each.errors for each in recorder.spans)
    assert "gen_ai.response.model" not in recorder.spans[2].attributes


def test_nothing_of_opentelemetry_is_imported_unless_asked_for():
    code = """
import importlib, pkgutil, sys, weakincentives
from contextlib import suppress
from weakincentives.runtime import tool_span

# as where no extra is installed: some packages look for it by themselves
extras = "agents anthropic claude_agent_sdk langchain_core mcp openai pydantic_ai"
sys.modules.update(dict.fromkeys(extras.split()))
left_out = {"weakincentives.__main__", "weakincentives.runtime.telemetry.otel"}
for module in pkgutil.walk_packages(weakincentives.__path__, "weakincentives."):
    if module.name not in left_out and ".testing" not in module.name:
        with suppress(ImportError):
            importlib.import_module(module.name)
with tool_span("t"):
    pass
print(len(sys.modules) > 100, [name for name in sys.modules if "opentelemetry" in name])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True []\n"
