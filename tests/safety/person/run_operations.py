"""Operations of `wink run`: a run that is killed or interrupted, and goes on in its copy."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path

# here, and not in every child
import weakincentives.cli.markdown
import weakincentives.cli.run.command
import weakincentives.cli.timeline.undo  # noqa: F401
from tests.safety.person.evidence import snapshot_contents
from tests.safety.person.moments import Moments
from tests.safety.person.operations import Operation
from tests.safety.person.project import end_line, text, top_line
from tests.safety.person.saves import Save
from weakincentives.cli import main as cli
from weakincentives.contrib.review import CopyError, open_copy
from weakincentives.contrib.review.records import read_record
from weakincentives.filesystem import ReadableFilesystem
from weakincentives.runtime.timeline import Timeline

# what the person saves it leaves alone: nobody can keep a command from removing that
_COMMAND = f"""
is_base() {{
    [ "$(wc -c < "$1")" -eq {len(text("a.txt"))} ] &&
    [ "$(head -n 1 "$1")" = '{top_line("base")}' ]
}}
is_base a.txt && printf '%s' "$1" > a.txt
is_base d/e.txt && printf '%s' "$2" > d/e.txt
mkdir n
printf '%s' "$3" > n/o.txt
rm keep.txt
"""
_TEXTS = [text(path, "agent", "agent") for path in ("a.txt", "d/e.txt", "n/o.txt")]
COMMAND_STEP = 6
"""The number of the step of the command: start, prompt, two requests and a call are before it."""
_EDIT = {
    "name": "edit_file",
    "arguments": {
        "file_path": "d/e.txt",
        "old_string": end_line("base"),
        "new_string": end_line("agent"),
    },
}
_WRITE = {
    "name": "write_file",
    "arguments": {
        "file_path": "g/j.txt",
        "content": text("g/j.txt", "agent", "agent"),
        "mode": "overwrite",
    },
}
_SHELL = {
    "name": "shell_execute",
    "arguments": {"command": ["sh", "-c", _COMMAND, "sh", *_TEXTS]},
}


def call(place: Path, moments: Moments) -> str:
    """Run a script with two file calls."""
    with moments.count():
        return run_script(place, [_EDIT, _WRITE, "Done."], "none", "run", "change it")


def run(place: Path, moments: Moments) -> str:
    """Run a script with a file call and a command."""
    with moments.count():
        return run_script(place, [_WRITE, _SHELL, "Done."], "local", "run", "change it")


def continue_run(place: Path, moments: Moments) -> str:
    """Go on with the run."""
    with moments.count():
        return run_script(place, ["Done."], "none", "run", "--continue", "go on")


def undo(place: Path, moments: Moments) -> str:
    """Undo the step of the command."""
    run_script(place, [_WRITE, _SHELL, "Done."], "local", "run", "change it")
    with moments.count():
        return wink(place, "undo", str(COMMAND_STEP))


def run_script(place: Path, steps: list[object], sandbox: str, *arguments: str) -> str:
    """Run a script in the project."""
    script = place / "script.json"
    script.write_text(json.dumps(steps))
    options = ("--workspace", str(place / "root"), "--model", f"scripted:{script}")
    return wink(place, *arguments, *options, "--sandbox", sandbox)


def wink(place: Path, *arguments: str) -> str:
    """Run the command with places of its own; return what it prints."""
    for name in ("TMPDIR", "HOME", *(f"XDG_{each}_HOME" for each in _XDG)):
        (place / name).mkdir(exist_ok=True)
        os.environ[name] = str(place / name)
    os.environ["WINK_DIGEST"] = "off"
    tempfile.tempdir = str(place / "TMPDIR")
    output = StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        try:
            cli.main([*arguments])
        except SystemExit as end:
            output.write(f"exit code {end.code}")
    return output.getvalue()


_XDG = ("STATE", "CACHE", "CONFIG", "DATA")


def stored_contents(place: Path) -> Iterator[bytes]:
    """Return the content of every file at every step of the run, and in what steps displaced."""
    for _, files in _steps(place):
        for found in files.glob("**/*.txt"):
            yield files.read_bytes(found.path).content
    yield from snapshot_contents(place)


def regain(place: Path, save: Save) -> str:
    """Get a save back: from a step that has it, or by an undo of what displaced it."""
    path, root = save.path, copy_of_run(place)
    step = next((each for each, files in _steps(place) if save.is_in(files)), None)
    if step is None:
        displaced = (number for run in _runs(place) for number in read_record(run).displaced)
        return "\n".join(wink(place, "undo", str(each), "--only", path) for each in displaced)
    text = wink(place, "restore", str(step), "--to", str(place / "back"))
    if root is not None and (place / "back" / path).exists():
        shutil.copy(place / "back" / path, root / path)
    return text


def _runs(place: Path) -> list[Path]:
    return [each.parent for each in (place / "XDG_STATE_HOME/wink/runs").glob("*/run.json")]


def _steps(place: Path) -> Iterator[tuple[int, ReadableFilesystem]]:
    for run in _runs(place):
        with Timeline(run / "history") as timeline:
            for number in range(1, len(timeline.steps) + 1):
                yield number, timeline.files(number)


def copy_of_run(place: Path) -> Path | None:
    """Return the copy that the run works in; None until it is complete."""
    for run in _runs(place):
        with suppress(CopyError):
            return open_copy(run).root
    return None


def _operation(work: Callable[[Path, Moments], str], *targets: str, cost: int = 1) -> Operation:
    return Operation(
        work,
        continue_run,
        stored=stored_contents,
        regain=regain,
        targets=targets,
        folders=("d", "g"),
        root=copy_of_run,
        cost=cost,
    )


RUNS: Mapping[str, Operation] = {
    "wink run": _operation(call, "d/e.txt", "g/j.txt"),
    "wink run --continue": _operation(run, "a.txt", "b.txt", "d/e.txt", "g/h/i.txt", cost=2),
    "wink undo": _operation(undo, "a.txt", "d/e.txt", cost=2),
}
