"""Policies and the tools of every dialect: which files a call accesses."""

from pathlib import Path

import pytest

from weakincentives.adapters import AllowedPaths, Policy, ReadBeforeWrite, ToolCall, ToolExecutor
from weakincentives.contrib.tools import filesystem_tools
from weakincentives.contrib.tools.dialects import DIALECTS, DialectName
from weakincentives.contrib.tools.requests import (
    ApplyPatchParams,
    EditFileParams,
    GrepParams,
    ReadFileParams,
    RmParams,
    WriteFileParams,
)
from weakincentives.contrib.tools.suite import create_dialect
from weakincentives.filesystem import BaseFilesystem, HostFilesystem, InMemoryFilesystem
from weakincentives.prompt import ToolContext
from weakincentives.runtime.session import Session

PATCH = "*** Begin Patch\n*** Update File: {}\n-old\n+new\n*** End Patch\n"


class GuardedTools:
    def __init__(self, files: BaseFilesystem, dialect: DialectName, *policies: Policy) -> None:
        self.dialect = create_dialect(dialect)
        context = ToolContext(None, None, None, Session(), filesystem=files)
        self.executor = ToolExecutor(filesystem_tools(dialect), context=context, policies=policies)

    def call(self, request: object) -> str | None:
        """Return what went wrong; None if nothing did."""
        said = self.dialect.encode(request)
        assert said is not None
        outcome = self.executor.execute(ToolCall(*said))
        return None if outcome.result.success else outcome.text


def changes_in(dialect: DialectName, path: str) -> object:
    edit = EditFileParams(path, "old", "new")
    said = create_dialect(dialect).encode(edit)
    if said is not None:
        return edit
    overwrite = WriteFileParams(path, "new\n", "overwrite")
    said = create_dialect(dialect).encode(overwrite)
    return ApplyPatchParams(PATCH.format(path)) if said is None else overwrite


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_file_must_be_read_before_it_is_changed_in_every_dialect(dialect: DialectName):
    files = InMemoryFilesystem()
    files.write("a.txt", "old\n")
    tools = GuardedTools(files, dialect, ReadBeforeWrite())
    change = changes_in(dialect, "a.txt")
    assert "you have not read it" in (tools.call(change) or "")
    assert tools.call(ReadFileParams("a.txt")) is None
    files.write("a.txt", "old, but not the same\n", mode="overwrite")
    assert "has changed since" in (tools.call(change) or "")
    files.write("a.txt", "old\n", mode="overwrite")
    assert tools.call(change) is None
    assert files.read("a.txt").content == "new\n"


def test_a_path_that_begins_with_the_directory_of_the_workspace_is_the_same_path(tmp_path: Path):
    (tmp_path / "secret.env").write_text("KEY=1\n")
    with HostFilesystem(tmp_path) as files:
        tools = GuardedTools(files, "claude", AllowedPaths(deny=["*.env"], access="any"))
        for path in ("secret.env", "/secret.env", f"{tmp_path}/secret.env", "x/../secret.env"):
            assert "may not be accessed" in (tools.call(ReadFileParams(path)) or ""), path


def test_what_may_not_be_read_may_not_be_searched_either():
    files = InMemoryFilesystem()
    files.write("keys/secret.env", "KEY=1\n")
    files.write("src/app.py", "KEY\n")
    tools = GuardedTools(files, "wink", AllowedPaths(deny=["**/*.env"], access="any"))
    assert "may not be accessed" in (tools.call(GrepParams("KEY")) or "")
    assert "may not be accessed" in (tools.call(GrepParams("KEY", "keys")) or "")
    assert tools.call(GrepParams("KEY", "src")) is None


def test_a_directory_that_is_allowed_may_be_searched():
    files = InMemoryFilesystem()
    files.write("src/app.py", "KEY\n")
    files.write("other.py", "KEY\n")
    tools = GuardedTools(files, "wink", AllowedPaths(["src/**"], access="any"))
    assert tools.call(GrepParams("KEY", "src")) is None
    assert "allowed paths are src/**" in (tools.call(GrepParams("KEY")) or "")


def test_a_patch_is_judged_by_the_paths_in_it():
    files = InMemoryFilesystem()
    files.write("a.txt", "old\n")
    tools = GuardedTools(files, "openai", AllowedPaths(["src/**"]))
    assert "a.txt may not be accessed" in (
        tools.call(ApplyPatchParams(PATCH.format("a.txt"))) or ""
    )
    assert files.read("a.txt").content == "old\n"


def test_removing_needs_no_reading_but_permission():
    files = InMemoryFilesystem()
    files.write("a.txt", "old\n")
    files.write("src/a.txt", "old\n")
    tools = GuardedTools(files, "wink", ReadBeforeWrite(), AllowedPaths(["src/**"]))
    assert "may not be accessed" in (tools.call(RmParams("a.txt")) or "")
    assert tools.call(RmParams("src/a.txt")) is None
