"""`--patch`: what git cannot express is listed and the copy is kept; the rest applies."""

import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.workplace import FIXED, Script, Wink, edit, shell, write

Copies = Callable[[], list[Path]]


def run(wink: Wink, project: Path, model: str, patch: Path):
    options = ("--sandbox", "local", "--patch", patch)
    return wink("run", "x", "--workspace", project, "--model", model, *options)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("touch git~1", "  git~1: added, left out because git refuses this name"),
        ("mkdir empty", "  empty: directory added, permissions 0755"),
        ("chmod 600 docs/notes.md", "  docs/notes.md: permissions 0600"),
        ("touch tool; chmod 4755 tool", "  tool: mode-changed, not offered"),
        ("rm -r d; echo x > d", "  d: modified, left out because git cannot remove"),
        ("mkdir -p .git; touch .git/hook", "  .git/hook: added, not offered"),
    ],
)
def test_what_a_patch_leaves_out_is_said_and_the_copy_stays(
    wink: Wink, project: Path, script: Script, copies: Copies, tmp_path: Path, command, said
):
    (project / "d/inner").mkdir(parents=True)
    patch = tmp_path / "fix.patch"
    model = script(edit(), shell("sh", "-c", command), "Done.")
    done = run(wink, project, model, patch)
    assert done.code == 3
    assert "The patch leaves out:" in done.err
    assert any(line.startswith(said) for line in done.err.splitlines()), done.err
    [copy] = copies()
    assert f"wink review {copy.name} --apply" in done.err
    subprocess.run(["git", "apply", patch], cwd=project, check=True)
    assert (project / "calc.py").read_text() == FIXED


def test_a_patch_that_can_say_nothing_is_not_saved(
    wink: Wink, project: Path, script: Script, copies: Copies, tmp_path: Path
):
    done = run(wink, project, script(write("git~1"), "Done."), tmp_path / "fix.patch")
    assert done.code == 1
    assert "A patch cannot express any of the changes: git~1: added" in done.err
    assert not (tmp_path / "fix.patch").exists()
    assert len(copies()) == 1


def test_the_command_that_is_printed_applies_the_patch_below_the_top_of_a_repository(
    wink: Wink, project: Path, script: Script, tmp_path: Path
):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    done = run(wink, project, script(edit(), "Done."), tmp_path / "my fix.patch")
    assert done.code == 0
    [line] = [each for each in done.err.splitlines() if each.startswith("Patch saved; ")]
    subprocess.run(shlex.split(line.partition(": ")[2]), check=True, cwd="/")
    assert (project / "calc.py").read_text() == FIXED


def test_what_is_only_withheld_is_not_thrown_away(
    wink: Wink, project: Path, script: Script, copies: Copies
):
    model = script(shell("sh", "-c", "mkdir .git; touch .git/hook"), "Done.")
    done = wink("run", "x", "--workspace", project, "--model", model, "--sandbox", "local")
    assert done.code == 3
    assert "Not offered: 2 changes inside .git" in done.err
    [copy] = copies()
    assert wink("review", copy, "--discard").code == 0
    assert copies() == []
