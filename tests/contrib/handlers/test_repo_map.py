"""`repo_map`: one tool in every dialect, read-only, bounded, and cheap after the first call."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest

from weakincentives.adapters import AllowedPaths, Policy, ToolCall, ToolExecutor
from weakincentives.contrib.digest import DigestCache, repo_map
from weakincentives.contrib.tools import (
    RepoMapResult,
    ToolSettings,
    filesystem_tools,
    repo_map_handlers,
)
from weakincentives.contrib.tools.dialects import DIALECTS, DialectName
from weakincentives.filesystem import Filesystem, InMemoryFilesystem, TimeLimitError, time_limit
from weakincentives.prompt import ToolContext, ToolResult
from weakincentives.runtime.session import Session

PROJECT = {
    "core.py": "def central(x):\n    return x\n\n\nclass Base:\n    def run(self):\n        pass\n",
    "a.py": "from core import Base, central\n\n\ndef use_a():\n    return central(Base())\n",
    "b.py": "from core import Base, central\n\n\ndef use_b():\n    return central(Base())\n",
    "lonely.py": "def alone():\n    pass\n",
    "notes.txt": "def not_code(): pass\n",
}


def fill(files: Filesystem) -> Filesystem:
    for path, content in PROJECT.items():
        files.write(path, content)
    return files


class Tools:
    """The tools of a dialect with `repo_map`, on a small project."""

    def __init__(
        self,
        files: Filesystem | None = None,
        dialect: DialectName = "wink",
        settings: ToolSettings | None = None,
        policies: tuple[Policy, ...] = (),
    ) -> None:
        self.files = fill(InMemoryFilesystem()) if files is None else files
        self.cache = DigestCache()
        self.tools = filesystem_tools(
            dialect,
            settings=settings or ToolSettings(),
            extra_handlers=repo_map_handlers(self.cache),
        )
        context = ToolContext(None, None, None, Session(), filesystem=self.files)
        self.executor = ToolExecutor(self.tools, context=context, policies=policies)

    def call(self, **arguments: Any) -> str:
        return self.executor.execute(ToolCall("repo_map", arguments)).text

    def result(self, **arguments: Any) -> ToolResult[Any]:
        return self.executor.execute(ToolCall("repo_map", arguments)).result


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_has_it_under_one_name(dialect: DialectName):
    tools = Tools(dialect=dialect)
    [tool] = [each for each in tools.tools if each.name == "repo_map"]
    assert tool.read_only
    assert set(properties(tool.schema)) == {"path", "max_tokens"}
    assert tools.call() == Tools().call()


def properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    return schema["properties"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_it_is_offered_only_with_its_handler(dialect: DialectName):
    assert "repo_map" not in {each.name for each in filesystem_tools(dialect)}


def test_the_most_central_file_comes_first(fs: Filesystem):
    lines = Tools(fill(fs)).call().split("\n")
    assert lines[0] == "Map of 4 source files with line numbers, the most central first"
    assert lines[1] == "core.py:"
    assert "    1 def central(x)" in lines
    assert "    5 class Base" in lines
    assert not any("not_code" in line for line in lines)


def test_a_path_comes_before_the_others():
    tools = Tools()
    lines = tools.call(path="lonely.py").split("\n")
    assert lines[0] == "Map of 4 source files with line numbers, beginning with lonely.py"
    assert lines[1] == "lonely.py:"
    assert tools.call(file_path="/workspace/lonely.py") == "\n".join(lines)


def test_the_value_has_the_map_without_the_frame():
    value = Tools().result().value
    assert isinstance(value, RepoMapResult)
    assert value.files[0] == "core.py"
    assert value.source_files == 4
    assert value.render().startswith("core.py:")


def test_a_missing_path_suggests_others_and_a_tiny_map_is_refused():
    tools = Tools()
    assert "lonely.py" in tools.call(path="lonley.py")
    assert "max_tokens must be at least 200" in tools.call(max_tokens=10)
    assert not tools.result(path="lonley.py").success
    assert "escapes" in tools.call(path="../x")


def test_a_workspace_without_code_says_so():
    files = InMemoryFilesystem()
    files.write("readme.txt", "hello")
    assert Tools(files).call() == "No source files to map in ."


@pytest.mark.parametrize("max_tokens", [400, 1_000])
def test_a_map_fits_into_the_limits_of_the_tools(max_tokens: int):
    files = InMemoryFilesystem()
    for number in range(200):
        files.write(
            f"m{number}.py", f"import m{(number + 1) % 200}\n\n\ndef größe_{number}(): ...\n"
        )
    settings = ToolSettings(max_tokens=max_tokens)
    tools = Tools(files, settings=settings)
    text = tools.call(max_tokens=50_000)
    assert settings.count_tokens(text) <= max_tokens
    assert "def größe_" in text
    value = tools.result(max_tokens=50_000).value
    assert isinstance(value, RepoMapResult)
    assert value.text in text  # complete, not cut


def test_after_a_change_only_the_changed_file_is_scanned():
    tools = Tools()
    tools.call()
    assert tools.cache.scans == 4
    tools.files.write("a.py", "def new_name(): ...\n")
    assert "new_name" in tools.call()
    assert tools.cache.scans == 5


def test_calls_in_parallel_get_the_same_map():
    tools = Tools()
    with ThreadPoolExecutor(8) as pool:
        texts = set(pool.map(lambda _: tools.call(), range(16)))
    assert texts == {Tools().call()}


def test_a_policy_that_hides_a_file_denies_the_map_of_everything():
    hidden = AllowedPaths(deny=["lonely.py"], access="any")
    assert "lonely.py" in Tools(policies=(hidden,)).call()
    assert not Tools(policies=(hidden,)).result().success
    assert not Tools(policies=(hidden,)).result(path="a.py").success
    assert Tools(policies=(AllowedPaths(["docs/**"]),)).result().success


def test_a_map_that_takes_too_long_is_an_error_and_never_half_a_map():
    files = InMemoryFilesystem()
    fill(files)
    files.write("deep/er/.gitignore", "*.log\n")
    complete = repo_map(files).text
    ends = set[bool]()
    for seconds in range(0, 120, 5):
        ticks = count()
        try:
            with time_limit(seconds, clock=lambda ticks=ticks: float(next(ticks))):
                assert repo_map(files).text == complete
            ends.add(True)
        except TimeLimitError:
            ends.add(False)
    assert ends == {True, False}


def test_nothing_is_written():
    tools = Tools()
    before = tools.files.glob("**")
    tools.call()
    assert tools.files.glob("**") == before
