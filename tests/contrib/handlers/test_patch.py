"""`apply_patch`: several files at once, all or none."""

import errno
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.contrib.handlers.calls import Workspace, make, make_context, tree_of
from tests.contrib.plain import Plain
from weakincentives.contrib.tools.editing import MatchLevel
from weakincentives.contrib.tools.handlers.patch import apply_patch
from weakincentives.contrib.tools.requests import ApplyPatchParams
from weakincentives.contrib.tools.results import FileChange
from weakincentives.filesystem import (
    MAX_WRITE_LENGTH,
    Filesystem,
    HostFilesystem,
    InMemoryFilesystem,
    Limits,
    diff,
)
from weakincentives.posix import fault_hook

PATCH = """\
*** Begin Patch
*** Update File: src/app.py
@@ def main():
-    print("hi")
+    print("hello")
*** Add File: docs/new.md
+# New
*** Delete File: old.py
*** Update File: run.sh
*** Move to: bin/run.sh
@@
-echo one
+echo two
*** End Patch
"""
FILES = {
    "src/app.py": 'def main():\n    print("hi")\n',
    "old.py": "old\n",
    "run.sh": "#!/bin/sh\necho one\n",
}
CHANGES = (
    FileChange("src/app.py", "modified", size_bytes=31),
    FileChange("docs/new.md", "added", size_bytes=6),
    FileChange("old.py", "removed"),
    FileChange("bin/run.sh", "renamed", "run.sh", 19),
)


def planted(fs: Filesystem) -> None:
    for path, content in FILES.items():
        fs.write(path, content)


def test_a_patch_changes_all_of_its_files(workspace: Workspace):
    planted(workspace.fs)
    outcome = workspace.call(ApplyPatchParams(PATCH))
    value = outcome.result.value
    assert value is not None
    assert outcome.text == (
        "Patched 4 files: 3 lines added, 3 removed\n"
        "M src/app.py\nA docs/new.md\nD old.py\nR run.sh -> bin/run.sh\n" + value.diff.rstrip("\n")
    )
    assert (value.changes, value.added, value.removed) == (CHANGES, 3, 3)
    assert (value.match_level, value.replacements, value.applied) == (MatchLevel.EXACT, 4, True)
    found = {path: content for path, (_, content) in tree_of(workspace.fs).items() if content}
    assert found == {
        "src/app.py": b'def main():\n    print("hello")\n',
        "docs/new.md": b"# New\n",
        "bin/run.sh": b"#!/bin/sh\necho two\n",
    }


def test_the_diff_of_a_patch_makes_the_same_change_elsewhere(workspace: Workspace):
    planted(workspace.fs)
    value = workspace.value(ApplyPatchParams(PATCH))
    other = InMemoryFilesystem()
    planted(other)
    Workspace(other).done(ApplyPatchParams(value.diff))
    assert not diff(other, workspace.fs).only(lambda change: change.kind != "mode-changed")


def test_permissions_survive_updates_and_moves(tmp_path: Path):
    with make("host", tmp_path) as fs:
        planted(fs)
        for path, mode in (("src/app.py", 0o600), ("run.sh", 0o755)):
            (tmp_path / "root" / path).chmod(mode)
        Workspace(fs).done(ApplyPatchParams(PATCH))
        assert fs.stat("src/app.py").permissions == 0o600
        assert fs.stat("bin/run.sh").permissions == 0o755


def test_a_dry_run_changes_nothing(workspace: Workspace):
    planted(workspace.fs)
    before = tree_of(workspace.fs)
    outcome = workspace.call(ApplyPatchParams(PATCH, dry_run=True))
    assert outcome.text.startswith(
        "Dry run, nothing was changed. 4 files would be patched: 3 lines added, 3 removed\nM src"
    )
    assert outcome.result.value is not None
    assert (outcome.result.value.changes, outcome.result.value.applied) == (CHANGES, False)
    assert tree_of(workspace.fs) == before


def test_a_part_that_has_no_place_leaves_nothing_behind(workspace: Workspace):
    planted(workspace.fs)
    text = workspace.refused(ApplyPatchParams(PATCH.replace("-echo one", "-echo three")))
    assert text.startswith("File cannot be patched: 'run.sh'\n")
    assert text.endswith("No file was changed")


def test_a_missing_file_is_refused_with_names_that_may_be_meant(workspace: Workspace):
    planted(workspace.fs)
    text = workspace.refused(ApplyPatchParams(PATCH.replace("File: old.py", "File: older.py")))
    assert text.startswith("File to delete does not exist: 'older.py'\n")
    assert text.endswith("No file was changed\nDid you mean 'old.py'?")


def added(path: str, content: str = "+x\n") -> ApplyPatchParams:
    return ApplyPatchParams(f"*** Begin Patch\n*** Add File: {path}\n{content}*** End Patch\n")


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (added("Größe.md"), "New names must be ASCII"),
        (added("../out"), "escapes root"),
        (added("old.py/below"), "'old.py' is a file, so"),
        (added("src"), "'src' is a directory, not a file"),
        (added("old.py"), "File to add already exists: 'old.py'"),
        (
            added("a", "+" + "x" * MAX_WRITE_LENGTH + "\n"),
            "has 48001 characters; one call may write at most 48000. Nothing was written",
        ),
        (added("a", "x\n"), "does not start with '+'"),
        (ApplyPatchParams("nonsense"), "No file was changed"),
        (ApplyPatchParams(""), "No file was changed"),
    ],
)
def test_a_patch_that_cannot_be_is_refused(
    workspace: Workspace, request_: ApplyPatchParams, said: str
):
    planted(workspace.fs)
    assert said in workspace.refused(request_)
    assert said in workspace.refused(replace(request_, dry_run=True))


def test_a_patch_that_adds_too_much_to_a_file_is_to_be_split(workspace: Workspace):
    workspace.fs.write("a", "one\n")
    long = "x" * MAX_WRITE_LENGTH
    patch = f"*** Begin Patch\n*** Update File: a\n@@\n one\n+{long}\n*** End Patch\n"
    text = workspace.refused(ApplyPatchParams(patch))
    assert text.endswith("Make this change in several calls, each with a part of the new text")
    assert workspace.fs.read("a").content == "one\n"


def test_what_the_filesystem_refuses_takes_everything_back(tmp_path: Path):
    with make("host", tmp_path, limits=Limits(max_files=5)) as fs:
        planted(fs)
        text = Workspace(fs).refused(ApplyPatchParams(PATCH))
    assert "quota exceeded" in text


def test_a_file_that_goes_makes_room_for_a_directory(workspace: Workspace):
    workspace.fs.write("a", "one\n")
    patch = "*** Begin Patch\n*** Add File: a/b\n+two\n*** Delete File: a\n*** End Patch\n"
    workspace.done(ApplyPatchParams(patch))
    assert workspace.fs.read("a/b").content == "two\n"


def test_a_unified_diff_is_applied(workspace: Workspace):
    planted(workspace.fs)
    patch = "--- a/old.py\n+++ b/old.py\n@@ -1 +1,2 @@\n-old\n+new\n+newer\n"
    text = workspace.done(ApplyPatchParams(patch))
    assert text == f"Patched 1 file: 2 lines added, 1 removed\nM old.py\n{patch.rstrip()}"
    assert workspace.fs.read("old.py").content == "new\nnewer\n"


def test_paths_may_begin_with_the_directory_of_the_workspace(tmp_path: Path):
    with make("host", tmp_path) as fs:
        planted(fs)
        patch = PATCH.replace("File: ", f"File: {fs.root}/").replace("to: ", f"to: {fs.root}/")
        assert Workspace(fs).value(ApplyPatchParams(patch)).changes == CHANGES


def test_what_had_to_be_overlooked_is_told(workspace: Workspace):
    workspace.fs.write("a", "one  \ntwo\n")
    patch = "*** Begin Patch\n*** Update File: a\n@@\n one\n-two\n+2\n*** End Patch\n"
    text = workspace.done(ApplyPatchParams(patch))
    assert "\nThe match is not exact: trailing whitespace differs\n" in text
    assert workspace.fs.read("a").content == "one  \n2\n"


def test_bytes_that_are_not_text_stay(workspace: Workspace):
    workspace.fs.write_bytes("a", b"\xef\xbb\xbf\xff\r\none\r\n\xfe")
    patch = "*** Begin Patch\n*** Update File: a\n@@\n-one\n+two\n*** End Patch\n"
    workspace.done(ApplyPatchParams(patch))
    assert workspace.fs.read_bytes("a").content == b"\xef\xbb\xbf\xff\r\ntwo\r\n\xfe"


def test_binary_files_are_moved_and_deleted_but_not_changed(workspace: Workspace):
    workspace.fs.write_bytes("a.bin", b"\0one\n")
    workspace.fs.write_bytes("b.bin", b"\0")
    move = "*** Begin Patch\n*** Update File: a.bin\n*** Move to: c.bin\n*** Delete File: b.bin\n"
    change = "*** Begin Patch\n*** Update File: a.bin\n@@\n-\0one\n+two\n*** End Patch\n"
    assert "is binary" in workspace.refused(ApplyPatchParams(change))
    text = workspace.done(ApplyPatchParams(f"{move}*** End Patch\n"))
    assert text.startswith("Patched 2 files: 0 lines added, 0 removed\nR a.bin -> c.bin\nD b.bin\n")
    assert {each: content for each, (_, content) in tree_of(workspace.fs).items()} == {
        "c.bin": b"\0one\n"
    }


def test_a_file_over_the_write_limit_is_patched(workspace: Workspace):
    for part in range(3):
        workspace.fs.write("long", f"part {part}\n" + "x\n" * 20_000, mode="append")
    patch = "*** Begin Patch\n*** Update File: long\n@@\n-part 1\n+PART 1\n*** End Patch\n"
    workspace.done(ApplyPatchParams(patch))
    assert workspace.fs.grep("PART 1")[0].line_number == 20_002


class Fault:
    """Raises at one of the points that are passed."""

    def __init__(self, step: int, error: BaseException) -> None:
        self._step = step
        self._error = error
        self.passed: list[str] = []

    def __call__(self, point: str) -> None:
        self.passed.append(point)
        if len(self.passed) == self._step + 1:
            raise self._error


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()],
    ids=["full", "interrupted"],
)
def test_a_fault_at_any_step_leaves_all_or_nothing(tmp_path: Path, error: BaseException):
    with make("memory", tmp_path) as model:
        planted(model)
        before = tree_of(model)
        Workspace(model).done(ApplyPatchParams(PATCH))
        after = tree_of(model)
    step, finished = 0, False
    while not finished:
        base = tmp_path / str(step)
        base.mkdir()
        with make("host", base) as fs:
            planted(fs)
            fault = Fault(step, error)
            with suppress(OSError, KeyboardInterrupt), fault_hook(fault):
                apply_patch(ApplyPatchParams(PATCH), make_context(fs))  # without the executor
            finished = len(fault.passed) <= step
            assert contents(fs) in (contents_of(before), contents_of(after)), fault.passed[-1:]
        step += 1
    assert step > 10


def contents(fs: Filesystem) -> dict[str, object]:
    return contents_of(tree_of(fs))


def contents_of(tree: dict[str, Any]) -> dict[str, object]:
    return {path: content for path, (_, content) in tree.items()}


@pytest.mark.parametrize("step", range(8))
def test_a_fault_at_any_write_is_taken_back_on_any_filesystem(step: int):
    fs = Plain()
    planted(fs.backend)
    before = contents(fs.backend)
    left = [step]
    for name in ("write", "write_bytes", "delete"):
        method = getattr(fs.backend, name)

        def failing(*args: Any, real: Any = method, **more: Any) -> Any:
            left[0] -= 1
            if left[0] == -1:
                raise OSError("broken")
            return real(*args, **more)

        setattr(fs.backend, name, failing)
    try:
        apply_patch(ApplyPatchParams(PATCH), make_context(fs))
    except OSError:
        assert contents(fs.backend) == before
    else:
        assert left[0] >= 0
        assert contents(fs.backend)["bin/run.sh"] == b"#!/bin/sh\necho two\n"


def test_links_are_not_patched_through(tmp_path: Path):
    planted(HostFilesystem(tmp_path))
    (tmp_path / "link.py").symlink_to("old.py")
    workspace = Workspace(HostFilesystem(tmp_path))
    patch = "--- a/link.py\n+++ b/link.py\n@@ -1 +1 @@\n-old\n+new\n"
    assert "symbolic link to 'old.py'" in workspace.refused(ApplyPatchParams(patch))
