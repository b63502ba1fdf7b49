"""The tool that evaluates code: dialects, transactions, policies, sections, replay."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from weakincentives.adapters import (
    AllowedPaths,
    Completion,
    Policy,
    ReadBeforeWrite,
    ScriptedAdapter,
    ToolCall,
    ToolExecutor,
    ToolOutcome,
    UserMessage,
)
from weakincentives.adapters.messages import CheckedCall
from weakincentives.contrib.evaluation import (
    Engine,
    EvalFileRead,
    EvalFileWrite,
    EvalParams,
    EvalResult,
    PythonEngine,
    choose_engine,
)
from weakincentives.contrib.replay import assert_replays, replay
from weakincentives.contrib.tools import FilesystemSection, VfsToolsSection, VirtualFileSystem
from weakincentives.contrib.tools.context import Dialect
from weakincentives.contrib.tools.dialects import DIALECTS, DialectName
from weakincentives.contrib.tools.evaluation import (
    EVALUATION_TOOL_SPECS,
    evaluation_handlers,
    evaluation_tools,
)
from weakincentives.contrib.tools.sections import AstevalSection, EvaluationSection
from weakincentives.contrib.tools.suite import filesystem_tools
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import (
    Diff,
    Filesystem,
    FileWritten,
    HostFilesystem,
    InMemoryFilesystem,
)
from weakincentives.filesystem.testing import MockFilesystem
from weakincentives.prompt import MarkdownSection, Prompt, PromptError, ToolContext
from weakincentives.runtime import Deadline, DeadlineExceededError, ToolInvoked
from weakincentives.runtime.session import Session, select_latest
from weakincentives.runtime.timeline import SessionRecorder
from weakincentives.sandbox import LocalSandbox
from weakincentives.tools import asteval

CODE = """\
counts = {}
for line in read_text("log.txt").splitlines():
    level = line.split(":")[0]
    counts[level] = counts.get(level, 0) + 1
print(sorted(counts))
write_text("counts.txt", "\\n".join(f"{k} {v}" for k, v in sorted(counts.items())))
counts["error"]
"""
LOG = "error: disk\ninfo: start\nerror: net\n"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """Return one engine for all tests: nothing of a call is left for the next."""
    engine = choose_engine()
    yield engine
    engine.close()


def call(
    engine: Engine,
    files: Filesystem,
    request: EvalParams | str,
    *policies: Policy,
    dialect: DialectName = "wink",
    session: Session | None = None,
    **given: Any,
) -> ToolOutcome:
    """Send a request in a dialect, as a model does."""
    tools = filesystem_tools(dialect, extra_handlers=evaluation_handlers(engine))
    context = ToolContext(None, None, None, session or Session(), filesystem=files, **given)
    executor = ToolExecutor(tools, context=context, policies=policies)
    encoded = encode(dialect, EvalParams(request) if isinstance(request, str) else request)
    assert encoded is not None
    return executor.execute(ToolCall(*encoded))


def encode(dialect: DialectName, request: EvalParams) -> tuple[str, Any] | None:
    """Return the call of a dialect for a request."""
    return Dialect(EVALUATION_TOOL_SPECS[dialect]).encode(request)


# --- dialects ---


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_call_of_every_dialect_gives_the_same_result(engine: Engine, dialect: DialectName):
    files = InMemoryFilesystem()
    files.write("log.txt", LOG)
    outcome = call(engine, files, CODE, dialect=dialect)
    result = outcome.result.value
    assert isinstance(result, EvalResult)
    assert (result.value_repr, result.stdout) == ("2", "['error', 'info']\n")
    assert files.read("counts.txt").content == "error 2\ninfo 1"
    assert outcome.text.startswith("Value: 2\nPrinted:\n['error', 'info']\n")
    assert "counts.txt" in outcome.text


@pytest.mark.parametrize(
    ("dialect", "names"),
    [
        ("wink", "evaluate_python"),
        ("classic", "evaluate_python"),
        ("claude", "code_execution"),
        ("anthropic-editor", "code_execution"),
        ("openai", "python code_interpreter evaluate_python"),
        ("gemini", "code_execution"),
        ("mcp", "evaluate_python run_python_code execute_code"),
    ],
)
def test_the_tool_has_the_name_that_models_know(engine: Engine, dialect: DialectName, names: str):
    (tool,) = evaluation_tools(engine, dialect)
    first, *others = names.split()
    assert tool.name == first
    assert set(others) <= {*tool.other_names}
    assert tool.parse({"code": "1"}) == tool.parse({"python_code": "1"})


def test_only_the_own_dialects_can_express_declared_files():
    request = EvalParams("1", reads=(EvalFileRead("a", "a"),))
    for dialect in DIALECTS:
        assert (encode(dialect, request) is not None) == (dialect in ("wink", "classic"))


def test_the_description_says_what_the_engine_can_do(engine: Engine, tmp_path: Path):
    (tool,) = evaluation_tools(engine)
    for part in (engine.language.summary, *engine.language.missing, "2,000 characters"):
        assert part in tool.description
    assert not tool.bypasses_filesystem
    with LocalSandbox(tmp_path) as sandbox:
        (other,) = evaluation_tools(PythonEngine(sandbox))
    assert "all of Python" in other.description
    assert other.bypasses_filesystem
    with pytest.raises(PromptError, match="Dialect must be one of"):
        evaluation_tools(engine, "cobol")
    assert EVALUATION_TOOL_SPECS.keys() == DIALECTS.keys()


def test_without_a_handler_there_is_no_such_tool():
    assert "evaluate_python" not in {tool.name for tool in filesystem_tools()}


# --- transactions ---


@pytest.fixture(params=["memory", "host", "protocol only"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Filesystem]:
    if request.param == "host":
        with HostFilesystem(tmp_path) as host:
            yield host
    else:
        yield InMemoryFilesystem() if request.param == "memory" else MockFilesystem()


DECLARED = EvalParams(
    "total = sum(int(each) for each in text.split())\nwrite_text('double.txt', str(2 * total))",
    reads=(EvalFileRead("numbers.txt", "text"),),
    writes=(EvalFileWrite("total.txt", "{total}\n"),),
)


def test_all_files_of_a_call_are_written(engine: Engine, files: Filesystem):
    files.write("numbers.txt", "1 2 3")
    session = Session()
    told: list[object] = []
    session.bus.subscribe(FileWritten, told.append)
    session.bus.subscribe(ToolInvoked, told.append)
    outcome = call(engine, files, DECLARED, session=session)
    assert outcome.result.success, outcome.text
    assert (files.read("total.txt").content, files.read("double.txt").content) == ("6\n", "12")
    *written, invoked = told
    assert {each.path for each in written if isinstance(each, FileWritten)} == {
        "total.txt",
        "double.txt",
    }
    assert isinstance(invoked, ToolInvoked)
    assert (invoked.tool, invoked.success) == ("evaluate_python", True)
    assert set(invoked.paths) == {"total.txt", "double.txt"}


@pytest.mark.parametrize(
    "writes",
    [
        (EvalFileWrite("new.txt", "{total}"), EvalFileWrite("numbers.txt", "{total}")),
        (EvalFileWrite("new.txt", "{total}"), EvalFileWrite("numbers.txt/below", "{total}")),
        (EvalFileWrite("new.txt", "{total}"), EvalFileWrite("../outside", "{total}")),
        (EvalFileWrite("new.txt", "{total}"), EvalFileWrite("other.txt", "{unknown}")),
    ],
)
def test_a_write_that_fails_undoes_the_others(
    engine: Engine, files: Filesystem, writes: tuple[EvalFileWrite, ...]
):
    files.write("numbers.txt", "1 2 3")
    outcome = call(engine, files, EvalParams("write_text('first', '')\ntotal = 6", writes=writes))
    assert not outcome.result.success
    assert [each.path for each in files.list(".")] == ["numbers.txt"]
    assert files.read("numbers.txt").content == "1 2 3"


def test_a_failed_evaluation_shows_where_and_what_was_printed(engine: Engine, files: Filesystem):
    outcome = call(engine, files, "write_text('a', '1')\nprint('so far')\n1 / 0")
    assert not outcome.result.success
    for part in ("line 3", "ZeroDivisionError", "1 / 0", "so far", "Nothing was written"):
        assert part in outcome.text
    assert not files.exists("a")


class DenyAfterwards(Policy):
    def review(self, call: CheckedCall, changed: Any, diff: Diff | None) -> str | None:
        return f"not these: {', '.join(sorted(changed))}"


def test_a_policy_that_denies_the_changes_undoes_them(engine: Engine, files: Filesystem):
    files.write("numbers.txt", "1 2 3")
    outcome = call(engine, files, DECLARED, DenyAfterwards())
    assert outcome.text == "not these: double.txt, total.txt"
    assert [each.path for each in files.list(".")] == ["numbers.txt"]


def test_what_code_in_a_sandbox_writes_directly_is_undone_too(tmp_path: Path):
    with HostFilesystem(tmp_path) as files, LocalSandbox(files) as sandbox:
        files.write("kept.txt", "old")
        engine = PythonEngine(sandbox)
        direct = "open('kept.txt', 'w').write('new')\nopen('made.txt', 'w').write('x')\n"
        failed = call(engine, files, f"{direct}1 / 0")
        assert not failed.result.success
        assert (files.read("kept.txt").content, files.exists("made.txt")) == ("old", False)
        denied = call(engine, files, direct, DenyAfterwards())
        assert denied.text == "not these: kept.txt, made.txt"
        assert (files.read("kept.txt").content, files.exists("made.txt")) == ("old", False)
        assert call(engine, files, direct).result.success
        assert (files.read("kept.txt").content, files.exists("made.txt")) == ("new", True)
        other = call(engine, InMemoryFilesystem(), "1")
        assert "give both the same filesystem" in other.text


def test_a_read_only_workspace_can_be_read(engine: Engine, tmp_path: Path):
    (tmp_path / "a").write_text("text")
    with HostFilesystem(tmp_path, read_only=True) as files:
        assert call(engine, files, "read_text('a')").text.startswith("Value: 'text'")
        assert "read-only" in call(engine, files, "write_text('b', '')").text


def test_a_deadline_that_has_passed_ends_the_run(engine: Engine):
    with pytest.raises(DeadlineExceededError):
        call(engine, InMemoryFilesystem(), "1", deadline=Deadline.after(-1))


# --- policies ---


@pytest.mark.parametrize(
    ("request_", "policy", "reason"),
    [
        (
            EvalParams("1", reads=(EvalFileRead("secret.env", "text"),)),
            AllowedPaths(deny=["*.env"], access="any"),
            "secret.env may not be accessed",
        ),
        (
            EvalParams("read_text('x/../secret.env')"),
            AllowedPaths(deny=["*.env"], access="any"),
            "secret.env may not be accessed",
        ),
        (
            EvalParams("import os\nos.listdir('.')"),
            AllowedPaths(deny=["*.env"], access="any"),
            "contains a path that may not be accessed",
        ),
        (
            EvalParams("write_text('b.txt', 'x')"),
            AllowedPaths(["src/**"]),
            "b.txt may not be accessed",
        ),
        (
            EvalParams("1", writes=(EvalFileWrite("a.txt", "x", "overwrite"),)),
            ReadBeforeWrite(),
            "a.txt exists and you have not read it",
        ),
        (
            EvalParams("write_text('a.txt', 'x')"),
            ReadBeforeWrite(),
            "a.txt exists and you have not read it",
        ),
    ],
)
def test_policies_hold_for_declared_files_and_for_those_that_the_code_uses(
    engine: Engine, request_: EvalParams, policy: Policy, reason: str
):
    files = InMemoryFilesystem()
    files.write("secret.env", "KEY=hidden")
    files.write("a.txt", "old")
    outcome = call(engine, files, request_, policy)
    assert not outcome.result.success
    assert reason in outcome.text
    assert "hidden" not in outcome.text
    assert files.read("a.txt").content == "old"
    assert not files.exists("b.txt")


@pytest.mark.parametrize(
    "request_",
    [
        EvalParams("write_text('a.txt', read_text('a.txt').upper())"),
        EvalParams("write_text('new.txt', 'x')"),
        EvalParams(
            "up = text.upper()",
            reads=(EvalFileRead("a.txt", "text"),),
            writes=(EvalFileWrite("a.txt", "{up}", "overwrite"),),
        ),
    ],
)
def test_code_may_replace_what_it_has_read(engine: Engine, request_: EvalParams):
    files = InMemoryFilesystem()
    files.write("a.txt", "old")
    assert call(engine, files, request_, ReadBeforeWrite()).result.success


# --- sections ---


def ask(prompt: Prompt[None], session: Session, *codes: str) -> list[str]:
    """Let a model send code; return the texts that it gets."""
    calls = [
        Completion(tool_calls=(ToolCall("evaluate_python", {"code": each}),)) for each in codes
    ]
    response = ScriptedAdapter([*calls, "done"]).evaluate(
        prompt, session=session, messages=[UserMessage("Go.")]
    )
    return [each.text for each in response.tool_results]


def test_a_section_works_on_the_workspace_beside_it(engine: Engine):
    session = Session()
    workspace = VfsToolsSection(session=session)
    workspace.filesystem.write("log.txt", LOG)
    with Prompt[None](
        ns="test", key="beside", sections=[workspace, EvaluationSection(engine=engine)]
    ) as prompt:
        (text,) = ask(prompt, session, CODE)
        assert text.startswith("Value: 2")
        assert workspace.filesystem.read("counts.txt").content == "error 2\ninfo 1"
        assert "`evaluate_python`" in prompt.render().text


def test_a_section_alone_has_files_in_memory(engine: Engine):
    session = Session()
    section = EvaluationSection(session=session, engine=engine)
    task = MarkdownSection[None](title="Task", key="task", template="Count.")
    with Prompt[None](ns="test", key="alone", sections=[task, section]) as prompt:
        texts = ask(
            prompt, session, "write_text('a', '1')", "read_text('a')", "write_text('b', '')\n1 / 0"
        )
        assert texts[1].startswith("Value: '1'")
        assert [each.path for each in section.files.list(".")] == ["a"]
        state = select_latest(session, VirtualFileSystem)
        assert state is not None
        assert [str(each.path) for each in state.files] == ["a"]


def test_a_clone_has_its_own_files_and_a_workspace_section_may_have_the_tool(engine: Engine):
    section = EvaluationSection(session=Session(), engine=engine, title="Compute")
    section.files.write("a", "1")
    clone = section.clone(session=Session())
    assert not clone.files.exists("a")
    assert (clone.title, clone.engine) == ("Compute", engine)
    workspace = FilesystemSection(
        filesystem=InMemoryFilesystem(),
        extra_handlers=evaluation_handlers(engine),
        dialect="openai",
    )
    assert "python" in [tool.name for tool in workspace.tools]
    for each in (section, clone, workspace):
        each.close()
    assert engine.evaluate  # passed in, so not closed


def test_the_section_of_the_specification_computes_what_python_computes(engine: Engine):
    with pytest.raises(PromptError, match="engine"):
        EvaluationSection(engine=3)  # pyright: ignore[reportArgumentType] # that is the test
    assert asteval.AstevalSection is AstevalSection
    given = AstevalSection(session=Session(), engine=engine)
    assert (given.title, given.key, given.engine) == ("Python Evaluation", "asteval", engine)
    given.close()
    session = Session()
    section = asteval.AstevalSection(session=session)
    assert section.engine.name == "python"
    with Prompt[None](ns="test", key="asteval", sections=[section]) as prompt:
        texts = ask(
            prompt, session, "write_text('a', str(sum([1.5, 2.5])))", "read_text('a')", "1 / 0"
        )
    assert texts[1] == "Value: '4.0'"
    assert "ZeroDivisionError" in texts[2]


@pytest.mark.parametrize("kind", [EvaluationSection, AstevalSection])
def test_a_section_of_a_session_serves_no_other(engine: Engine, kind: type[EvaluationSection]):
    session = Session()
    section = kind(session=session, engine=engine)
    (tool,) = section.tools
    for caller, filesystem in ((session, None), (session, InMemoryFilesystem())):
        context = ToolContext(None, None, None, caller, filesystem=filesystem)
        executor = ToolExecutor((tool,), context=context)
        assert executor.execute(ToolCall(tool.name, {"code": "math.floor(2.5)"})).result.success
    other = ToolContext(None, None, None, Session(), filesystem=InMemoryFilesystem())
    with pytest.raises(ToolValidationError, match="belongs to another session"):
        assert tool.handler is not None
        tool.handler(tool.parse({"code": "1"}), context=other)
    clone = section.clone(session=other.session)
    executor = ToolExecutor(clone.tools, context=other)
    assert executor.execute(ToolCall(tool.name, {"code": "1"})).result.success
    section.close()


# --- replay ---


def test_a_recorded_evaluation_replays(engine: Engine, tmp_path: Path):
    session, files = Session(), InMemoryFilesystem()
    files.write("log.txt", LOG)
    section = FilesystemSection(
        filesystem=files, session=session, extra_handlers=evaluation_handlers(engine)
    )
    prompt = Prompt[None](ns="test", key="replay", sections=[section])
    path = tmp_path / "run.timeline"
    with SessionRecorder(session, path, files):
        ask(prompt, session, CODE, "write_text('b', '')\n1 / 0", "read_text('counts.txt')")
    section.close()
    assert_replays(path)
    report = replay(path)
    assert (len(report.replayed), report.skipped) == (3, ())


def test_arguments_are_recorded_as_the_model_sent_them(engine: Engine):
    session = Session()
    told: list[ToolInvoked] = []
    session.bus.subscribe(ToolInvoked, told.append)
    request = EvalParams("n + 1", globals={"n": "41"})
    assert call(engine, InMemoryFilesystem(), request, session=session).text.startswith("Value: 42")
    assert json.loads(json.dumps(dict(told[0].params)))["globals"] == {"n": "41"}
