"""`wink run` with the names that people use: not ASCII, long, and many levels deep."""

from pathlib import Path

import pytest

from tests.cli.workplace import Script, Wink
from weakincentives.cli.run.report import copy_warnings
from weakincentives.contrib.review import working_copy

UMLAUT = "Prüfung/naïve Größe 東京 😀.txt"
LONG = "l" * 88 + ".md"
DEEP = "/".join([*(f"level{number}" for number in range(19)), "file.txt"])
LONGEST = "n" * (255 - len(".evaluated"))
NAMES = (UMLAUT, LONG, DEEP, LONGEST)


def call(name: str, **arguments: object) -> dict[str, object]:
    return {"name": name, "arguments": arguments}


def wink_calls(name: str) -> list[dict[str, object]]:
    """Every kind of call on one name, in the default dialect."""
    return [
        call("write_file", file_path=f"{name}.new", content="first line\n"),
        call("read_file", file_path=f"{name}.new"),
        call("edit_file", file_path=f"{name}.new", old_string="first", new_string="second"),
        call("edit_file", file_path=name, old_string="before", new_string="after"),
        call("glob", pattern=f"{name}.*"),
        call("grep", pattern="second", path=f"{name}.new"),
        call("shell_execute", command=["mv", f"{name}.new", f"{name}.moved"]),
        call("shell_execute", command=["grep", "-c", "zweite|second", f"{name}.moved", "-E"]),
        call("write_file", file_path=f"{name}.gone", content="x"),
        call("rm", path=f"{name}.gone"),
        call(
            "evaluate_python",
            code=f"write_text({name + '.evaluated'!r}, read_text({name!r}))",
        ),
    ]


def claude_calls(name: str) -> list[dict[str, object]]:
    path = f"/workspace/{name}"
    return [
        call("Write", file_path=f"{path}.new", content="first line\n"),
        call("Read", file_path=f"{path}.new"),
        call("Edit", file_path=f"{path}.new", old_string="first", new_string="second"),
        call("Edit", file_path=path, old_string="before", new_string="after"),
        call("Glob", pattern=f"{name}.*"),
        call("Grep", pattern="second", path=f"{path}.new"),
        call("Bash", command=f"mv '{name}.new' '{name}.moved' # größer", description="move"),
    ]


def classic_calls(name: str) -> list[dict[str, object]]:
    return [
        call("write_file", path=f"{name}.moved", content="second line\n"),
        call("read_file", path=f"{name}.moved"),
        call("write_file", path=name, content="after\n", mode="overwrite"),
        call("write_file", path=f"{name}.gone", content="x"),
        call("delete_file", path=f"{name}.gone"),
        call("list_directory", path=str(Path(name).parent)),
    ]


def openai_calls(name: str) -> list[dict[str, object]]:
    patch = (
        "*** Begin Patch\n"
        f"*** Add File: {name}.moved\n+second line\n"
        f"*** Update File: {name}\n@@\n-before\n+after\n"
        "*** End Patch\n"
    )
    return [
        call("apply_patch", input=patch),
        call("exec_command", cmd=f"cat '{name}' # größer"),
    ]


def gemini_calls(name: str) -> list[dict[str, object]]:
    return [
        call("write_file", file_path=f"{name}.moved", content="second line\n"),
        call("replace", file_path=name, old_string="before", new_string="after"),
        call("read_file", file_path=name),
    ]


def mcp_calls(name: str) -> list[dict[str, object]]:
    return [
        call("write_file", path=f"{name}.first", content="second line\n"),
        call("move_file", source=f"{name}.first", destination=f"{name}.moved"),
        call("edit_file", path=name, edits=[{"oldText": "before", "newText": "after"}]),
        call("read_text_file", path=name),
    ]


def editor_calls(name: str) -> list[dict[str, object]]:
    def edit(command: str, path: str, **more: str) -> dict[str, object]:
        return call("str_replace_based_edit_tool", command=command, path=path, **more)

    return [
        edit("create", f"{name}.moved", file_text="second line\n"),
        edit("str_replace", name, old_str="before", new_str="after"),
        edit("view", name),
    ]


@pytest.mark.parametrize(
    ("dialect", "calls", "options"),
    [
        ("wink", wink_calls, ("--evaluate", "asteval", "--sandbox", "auto")),
        ("claude", claude_calls, ("--sandbox", "auto")),
        ("classic", classic_calls, ("--sandbox", "none")),
        ("openai", openai_calls, ("--sandbox", "auto")),
        ("gemini", gemini_calls, ("--sandbox", "none")),
        ("mcp", mcp_calls, ("--sandbox", "none")),
        ("anthropic-editor", editor_calls, ("--sandbox", "none")),
    ],
    ids=["wink", "claude", "classic", "openai", "gemini", "mcp", "anthropic-editor"],
)
def test_every_tool_takes_the_names_that_people_use(
    dialect: str,
    calls,
    options: tuple[str, ...],
    wink: Wink,
    script: Script,
    project: Path,
) -> None:
    for name in NAMES:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("before\n")
    model = script(*(calls(name) for name in NAMES), "Done.")
    arguments = ("--workspace", project, "--model", model, "--dialect", dialect, *options)
    done = wink("run", "use the names", *arguments, "--json", "--apply")
    failed = [each for each in done.events if each["event"] == "tool" and not each["success"]]
    assert (done.code, failed) == (0, []), done.err
    for name in NAMES:
        assert (project / name).read_text() == "after\n"
        assert (project / f"{name}.moved").read_text() == "second line\n"
        assert not (project / f"{name}.gone").exists()
    assert wink("log", done.last["timeline"]).code == 0
    assert wink("replay", done.last["timeline"]).code == 0


def test_the_warnings_at_the_start_say_what_leads_to_the_original(
    wink: Wink, script: Script, project: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "pyvenv.cfg").touch()
    (project / ".venv").symlink_to(tmp_path / "elsewhere")
    (project / "build").mkdir()
    (project / "build" / "CMakeCache.txt").write_text(f"CMAKE_HOME_DIRECTORY={project}\n")
    (project / "conda" / "conda-meta").mkdir(parents=True)
    arguments = ("--workspace", project, "--model", script("Done."), "--sandbox", "auto")
    done = wink("run", "look", *arguments)
    for warning in (
        "warning: .venv is a link to outside the workspace, which commands cannot use: activate",
        "warning: build was made for the original directory: let the model configure the build",
        "warning: conda was made for the original directory: move the environment out",
    ):
        assert warning in done.err
    assert len(wink("run", "look", *arguments, "--json").events[0]["warnings"]) == 3
    (project / ".venv").unlink()
    (project / ".venv").mkdir()
    (project / ".venv" / "pyvenv.cfg").touch()
    copy = working_copy(project, place=tmp_path / "place")
    warning = next(copy_warnings(copy, "podman"))
    assert ".venv is not used: commands run in a container" in warning
    assert "WEAKINCENTIVES_IMAGE=NAME" in warning
    assert not [each for each in copy_warnings(copy, "bubblewrap") if ".venv" in each]
    without = ("--workspace", project, "--model", script("Done."), "--sandbox", "none")
    assert "warning:" not in wink("run", "look", *without).err
