"""The progress line of a run."""

from weakincentives.adapters import ModelResponded, RequestRetried
from weakincentives.cli.run.view import Progress, describe_target
from weakincentives.filesystem import EntryMoved, FileWritten
from weakincentives.runtime import TokenUsage, ToolInvoked


def answered(*calls: str, tokens: int = 0) -> ModelResponded:
    usage = TokenUsage(tokens, tokens // 40, tokens // 3 * 2)
    return ModelResponded(
        prompt_name="p", adapter="a", model="m", step=1, tool_calls=calls, usage=usage
    )


def test_the_line_has_time_step_activity_files_and_tokens():
    now = [0.0]
    progress = Progress(max_tokens=5000, seconds=600, now=lambda: now[0])
    progress.on_response(answered("grep", "grep", "ls", tokens=1200))
    progress.on_change(FileWritten("a", 1))
    progress.on_change(EntryMoved("b", "c"))
    progress.on_change(FileWritten("a", 2))
    now[0] = 61.0
    assert progress.line() == (
        "8:59 left · step 1 · running grep, ls, 61 s · 1.2k tokens in (800 cached), 30 out,"
        " limit 5.0k · 3 files changed"
    )
    assert progress.line(60) == "8:59 left · step 1 · running grep, ls, 61 s"
    assert progress.line(20) == "8:59 left · step 1"
    assert progress.line(8) == "8:59 le…"


def test_without_a_deadline_the_line_says_how_long_it_takes():
    now = [0.0]
    progress = Progress(now=lambda: now[0])
    now[0] = 5.0
    assert progress.line() == "0:05 · step 1 · waiting for the model, 5 s · 0 tokens in, 0 out"


def test_text_that_arrives_is_counted_until_it_is_void():
    progress = Progress()
    progress.on_text("hello")
    progress.on_text(" world")
    assert "receiving, 11 characters" in progress.line()
    again = RequestRetried(
        prompt_name="p", adapter="a", model="m", step=1, retry=1, error="x", delay=1.0
    )
    progress.on_retry(again)
    assert "waiting to retry" in progress.line()
    progress.on_text("hi")
    assert "2 characters" in progress.line()


def test_a_call_is_told_by_what_it_ran_or_looked_for_and_its_files():
    def told(*paths: str, width: int = 80, **params: object) -> str:
        return describe_target(ToolInvoked(tool="t", params=params, paths=paths), width)

    assert told("a.py") == "a.py"
    assert told(".") == "."
    assert told(".", pattern="def x") == "def x"
    assert told("a.py", command=["make", "it"]) == "make it · a.py"
    code = "import re\nfound = re.findall('a', text)\nfound"
    assert told("b", code=code) == "found = re.findall('a', text) (3 lines) · b"
    assert told("b", code="import re") == "import re · b"
    assert told(code="x" * 61) == "x" * 57 + "..."
    assert told(*"abcde") == "a, b, c and 2 more"
    assert told("a" * 50, width=20) == "a" * 19 + "…"
    assert told("\x1b[2J") == r"\x1b[2J"
