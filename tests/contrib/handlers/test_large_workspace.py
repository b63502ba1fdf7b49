"""A workspace of ten thousand files: every result is within the budget and reports truncation."""

from collections.abc import Iterator

import pytest

from weakincentives.adapters import ToolCall, ToolExecutor, ToolOutcome
from weakincentives.contrib.tools.context import ToolSettings
from weakincentives.contrib.tools.suite import filesystem_tools
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.prompt import ToolContext
from weakincentives.runtime.session import Session


@pytest.fixture(scope="module")
def files() -> Iterator[InMemoryFilesystem]:
    fs = InMemoryFilesystem()
    for number in range(9_000):
        fs.write(f"src/d{number // 100:02}/module_{number:04}.py", f"value = {number}\n" * 3)
    for number in range(1_000):
        fs.write(f"many/a_name_of_ordinary_length_{number:04}.txt", "text\n")
    fs.write("long.txt", "a line of some words\n" * 2_200)
    yield fs
    fs.close()


def call(fs: InMemoryFilesystem, tool: str, **arguments: object) -> ToolOutcome:
    settings = ToolSettings(max_characters=20_000, max_tokens=5_000)
    context = ToolContext(None, None, None, Session(), filesystem=fs)
    executor = ToolExecutor(filesystem_tools(settings=settings), context=context)
    outcome = executor.execute(ToolCall(tool, arguments, "call"))
    assert 0 < len(outcome.text) <= 15_000
    return outcome


@pytest.mark.parametrize(
    ("tool", "arguments", "begins", "holds"),
    [
        ("ls", {"path": "many"}, "many: 1,000 files\na_name", "[truncated: "),
        ("glob", {"pattern": "**/*.py"}, "9,000 files match", "; the rest is in src/ ("),
        (
            "grep",
            {"pattern": "value"},
            "250 matches in 84 files for 'value', and more",
            "[truncated",
        ),
        (
            "grep",
            {"pattern": "value", "output_mode": "files_with_matches"},
            "more than ",
            "[truncated",
        ),
        (
            "grep",
            {"pattern": "value", "output_mode": "count"},
            "27,000 lines in 9,000 files match 'value'\nsrc/d00/module_0000.py:3\n",
            "[truncated",
        ),
        (
            "read_file",
            {"file_path": "long.txt"},
            "long.txt: lines 1 to ",
            "more lines; to continue: read_file with file_path='long.txt', offset=",
        ),
        ("grep", {"pattern": "value = 4242$"}, "3 matches in 1 file", "src/d42/module_4242.py\n1:"),
    ],
)
def test_an_answer_is_within_the_budget_and_says_what_is_left(
    files: InMemoryFilesystem, tool: str, arguments: dict[str, object], begins: str, holds: str
):
    outcome = call(files, tool, **arguments)
    assert outcome.result.success
    assert outcome.text.startswith(begins)
    assert holds in outcome.text


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        (
            "read_file",
            {"file_path": "src/module_4242.py"},
            "No such file: 'src/module_4242.py'; did you mean 'src/d42/module_4242.py'?",
        ),
        ("ls", {"path": "source"}, "No such directory: 'source'; did you mean 'src'?"),
        ("read_file", {"path": "src"}, "'src' is a directory; to list it: ls with path='src'"),
        ("grep", {"pattern": "("}, "Invalid regex: missing ): (: '('"),
    ],
)
def test_a_refusal_reaches_the_model_as_it_was_said(
    files: InMemoryFilesystem, tool: str, arguments: dict[str, object], said: str
):
    outcome = call(files, tool, **arguments)
    assert not outcome.result.success
    assert outcome.text == said
