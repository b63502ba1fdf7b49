"""Virtual environments of a project that is copied: commands test the copy in every sandbox."""

import os
import tempfile
import venv
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import pytest

from weakincentives.contrib.review import Review, WorkingCopy, working_copy
from weakincentives.sandbox import LocalSandbox, create_sandbox
from weakincentives.sandbox.host import HostSandbox

NAMES = ["bubblewrap", "landlock", "local"]
SHOW = "import app; print(app.place)"
FINDER = """\
MAPPING: dict[str, str] = {{'app': '{original}/src/app'}}
import sys
from importlib.machinery import PathFinder

class EditableFinder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        import importlib.util as util
        place = MAPPING.get(name)
        return place and util.spec_from_file_location(name, place + '/__init__.py')

def install():
    sys.meta_path.append(EditableFinder)
"""


def editable_path(packages: Path, original: Path) -> None:
    """As setuptools, hatchling, flit, poetry and uv write it for a `src` directory."""
    (packages / "app.pth").write_text(f"{original}/src\n")


def editable_finder(packages: Path, original: Path) -> None:
    """As setuptools writes it for other layouts."""
    (packages / "__editable__.app-1.0.pth").write_text(
        "import __editable___app_finder; __editable___app_finder.install()\n"
    )
    (packages / "__editable___app_finder.py").write_text(FINDER.format(original=original))


def editable_links(packages: Path, original: Path) -> None:
    """As setuptools writes it in strict mode: a directory of links."""
    tree = original / "build" / "__editable__.app-1.0-py3-none-any"
    (tree / "app").mkdir(parents=True)
    (tree / "app" / "__init__.py").symlink_to(original / "src" / "app" / "__init__.py")
    (packages / "__editable__.app-1.0.pth").write_text(f"{tree}\n")


STYLES = [editable_path, editable_finder, editable_links]
Style = Callable[[Path, Path], None]


@pytest.fixture(params=["/var/tmp", "/tmp"])
def original(request: pytest.FixtureRequest) -> Generator[Path, None, None]:
    """Yield a project, where bubblewrap can show the copy at its path, and where it cannot."""
    with tempfile.TemporaryDirectory(dir=request.param) as directory:
        root = Path(directory).resolve() / "project"
        (root / "src" / "app").mkdir(parents=True)
        (root / "src" / "app" / "__init__.py").write_text("place = 'original'\n")
        yield root


@pytest.fixture
def make_copy(tmp_path: Path) -> Callable[..., WorkingCopy]:
    def make(original: Path, exclude: Sequence[str] = ()) -> WorkingCopy:
        copy = working_copy(original, place=tmp_path / "place", exclude=exclude)
        (copy.root / "src" / "app" / "__init__.py").write_text("place = 'copy'\n")
        return copy

    return make


def make_environment(path: Path, original: Path, style: Style = editable_path) -> None:
    venv.create(path, symlinks=True, with_pip=False)
    [packages] = path.glob("lib/python3*/site-packages")
    style(packages, original)
    for name, head in {
        "short": f"#!{path}/bin/python\n",
        "long": f"#!/bin/sh\n'''exec' \"{path}/bin/python\" \"$0\" \"$@\"\n' '''\n",
    }.items():
        script = path / "bin" / name
        script.write_text(
            f"{head}# -*- coding: utf-8 -*-\nimport sys\n{SHOW}\nprint(*sys.argv[1:])\n"
        )
        script.chmod(0o755)


def open_sandbox(name: str, copy: WorkingCopy) -> HostSandbox:
    env = {"PYTHONDONTWRITEBYTECODE": "1"}
    made = create_sandbox(name, copy.root, original=copy.original, env=env)
    assert isinstance(made, HostSandbox)
    return made


COMMANDS = (
    ["python", "-c", SHOW],
    [".venv/bin/python", "-c", SHOW],
    ["short", "a b"],
    ["long", "a b"],
    [".venv/bin/short"],
    ["bash", "-c", "cd src && . ../.venv/bin/activate && short"],
    ["sh", "-c", ". .venv/bin/activate && short && echo $VIRTUAL_ENV"],
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("style", STYLES)
def test_an_environment_in_the_workspace_imports_the_copy(
    name: str, style: Style, original: Path, make_copy: Callable[..., WorkingCopy]
) -> None:
    make_environment(original / ".venv", original, style)
    copy = make_copy(original)
    with open_sandbox(name, copy) as sandbox:
        for command in COMMANDS if style is editable_path else COMMANDS[:1]:
            done = sandbox.exec(command)
            assert (done.stdout.split("\n")[0], done.stderr) == ("copy", ""), command
            assert len(command) != 2 or done.stdout == "copy\na b\n"
    with Review(copy) as review:
        assert [each.path for each in review.diff.entries] == ["src/app/__init__.py"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("style", STYLES[:2])
def test_an_active_environment_outside_imports_the_copy(
    name: str,
    style: Style,
    original: Path,
    make_copy: Callable[..., WorkingCopy],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outside = original.parent / "environment"
    make_environment(outside, original, style)
    monkeypatch.setenv("PATH", os.pathsep.join([f"{outside}/bin", os.environ["PATH"]]))
    with open_sandbox(name, make_copy(original)) as sandbox:
        for command in (COMMANDS[0], COMMANDS[2]):
            done = sandbox.exec(command)
            assert (done.stdout.split("\n")[0], done.stderr) == ("copy", ""), command


@pytest.mark.parametrize("name", NAMES)
def test_an_active_environment_that_is_not_copied_imports_the_copy(
    name: str,
    original: Path,
    make_copy: Callable[..., WorkingCopy],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_environment(original / ".venv", original)
    monkeypatch.setenv("PATH", os.pathsep.join([f"{original}/.venv/bin", os.environ["PATH"]]))
    with open_sandbox(name, make_copy(original, exclude=[".venv"])) as sandbox:
        done = sandbox.exec(["python", "-c", SHOW])
    assert (done.stdout, done.stderr) == ("copy\n", "")


def test_a_project_reached_by_a_link_imports_the_copy(
    original: Path, make_copy: Callable[..., WorkingCopy]
) -> None:
    link = original.parent / "link"
    link.symlink_to(original)
    make_environment(link / ".venv", link)
    with open_sandbox("landlock", make_copy(link)) as sandbox:
        for command in COMMANDS[:4]:
            done = sandbox.exec(command)
            assert (done.stdout.split("\n")[0], done.stderr) == ("copy", ""), command


def test_programs_of_the_original_in_path_are_those_of_the_copy(
    original: Path, make_copy: Callable[..., WorkingCopy], monkeypatch: pytest.MonkeyPatch
) -> None:
    (original / "bin").mkdir()
    (original / "bin" / "where").write_text("#!/bin/sh\necho original\n")
    (original / "bin" / "where").chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([f"{original}/bin", os.environ["PATH"]]))
    copy = make_copy(original)
    (copy.root / "bin" / "where").write_text("#!/bin/sh\necho copy\n")
    for name in NAMES:
        with open_sandbox(name, copy) as sandbox:
            assert sandbox.exec(["where"]).stdout == "copy\n", name


def test_the_hook_leaves_the_module_that_it_hides_and_the_path_of_the_caller(
    original: Path, make_copy: Callable[..., WorkingCopy]
) -> None:
    copy = make_copy(original)
    (copy.root / "more").mkdir()
    (copy.root / "more" / "sitecustomize.py").write_text("import sys; sys.seen = True\n")
    env = {"PYTHONPATH": f"{copy.root}/more"}
    with LocalSandbox(copy.root, original=original, env=env) as sandbox:
        code = "import sys; print(sys.seen, sys.modules['sitecustomize'].__file__, sys.path[1])"
        done = sandbox.exec(["python3", "-c", code])
    assert done.stdout == f"True {copy.root}/more/sitecustomize.py {copy.root}/more\n", done.stderr


def test_commands_cannot_change_the_hook(
    original: Path, make_copy: Callable[..., WorkingCopy]
) -> None:
    copy = make_copy(original)
    for name in ("bubblewrap", "landlock"):
        with open_sandbox(name, copy) as sandbox:
            line = 'test -z "$PYTHONPATH" || echo planted > "$PYTHONPATH/sitecustomize.py"'
            sandbox.exec(["sh", "-c", line])
            assert sandbox.exec(["python3", "-c", "print(1)"]).stderr == ""


def test_what_is_not_of_an_environment_is_copied_as_it_is(
    original: Path, make_copy: Callable[..., WorkingCopy]
) -> None:
    text = f"#!{original}/.venv/bin/python\n"
    (original / "bin").mkdir()
    (original / "bin" / "tool").write_text(text)
    (original / "app.pth").write_text(f"{original}/src\n")
    (original / "link").symlink_to(original / "src")
    make_environment(original / ".venv", original)
    (original / ".venv" / "bin" / "data").write_bytes(b"#!\xff\0" + text.encode())
    (original / ".venv" / "bin" / "other").write_text("#!/usr/bin/python3\nprint(1)\n")
    copy = make_copy(original)
    assert (copy.root / "bin" / "tool").read_text() == text
    assert (copy.root / "app.pth").read_text() == f"{original}/src\n"
    assert (copy.root / "link").readlink() == original / "src"
    for name in ("data", "other"):
        place = Path(".venv", "bin", name)
        assert (copy.root / place).read_bytes() == (original / place).read_bytes()
