"""Derived files: what can be made again is recognised, left out, and completed."""

from pathlib import Path

import pytest

from weakincentives.filesystem import HostFilesystem, InMemoryFilesystem
from weakincentives.filesystem.reproducible import (
    CompletedFilesystem,
    ReproducibleFiles,
    SourceFilesystem,
)

FILES = {
    ".gitignore": "*.log\n/out/\n!keep.log\nlocal.cfg\n",
    ".git/HEAD": "ref: refs/heads/main\n",
    "app.py": "x = 1\n",
    "debug.log": "long\n",
    "keep.log": "kept\n",
    "env/pyvenv.cfg": "home = /usr\n",
    "env/lib/site.py": "y = 2\n",
    "out/app.js": "built\n",
    "sub/.gitignore": "*.tmp\n",
    "sub/a.tmp": "temporary\n",
    "sub/node_modules/left/index.js": "code\n",
    "sub/out/app.js": "source\n",
    "local.cfg": "mine\n",
}
SOURCES = [".gitignore", "app.py", "keep.log", "sub/.gitignore", "sub/out/app.js"]


@pytest.fixture(params=["memory", "host"])
def project(request: pytest.FixtureRequest, tmp_path: Path):
    """Return a workspace with reproducible files."""
    fs = InMemoryFilesystem() if request.param == "memory" else HostFilesystem(tmp_path)
    for path, text in FILES.items():
        fs.write(path, text)
    return fs


def hidden(fs: SourceFilesystem | CompletedFilesystem) -> list[str]:
    return sorted(path for path in FILES if not fs.exists(path))


def test_a_view_leaves_out_what_can_be_had_again(project: InMemoryFilesystem):
    reproducible = ReproducibleFiles(project)
    view = SourceFilesystem(project, reproducible)
    assert sorted(set(FILES) - set(hidden(view))) == SOURCES
    assert {each.name for each in view.list(".")} == {".gitignore", "app.py", "keep.log", "sub"}
    assert view.read("sub/out/app.js").content == "source\n"
    view.list("sub")
    assert sorted(reproducible.paths) == [
        ".git",
        "debug.log",
        "env",
        "local.cfg",
        "out",
        "sub/a.tmp",
        "sub/node_modules",
    ]


def test_the_answer_for_a_path_stays_the_same(project: InMemoryFilesystem):
    reproducible = ReproducibleFiles(project)
    assert project.stat("app.py") not in reproducible
    project.write(".gitignore", "app.py\n", mode="overwrite")
    assert project.stat("app.py") not in reproducible
    assert project.stat("app.py") in ReproducibleFiles(project)


def test_a_state_without_derived_files_gets_those_of_another(project: InMemoryFilesystem):
    recorded = InMemoryFilesystem()
    for path in SOURCES:
        recorded.write(path, "then\n")
    recorded.write("local.cfg", "theirs\n")
    project.write("new.py", "not recorded\n")
    view = CompletedFilesystem(recorded, project)
    assert hidden(view) == []
    assert not view.exists("new.py")
    assert view.read("app.py").content == "then\n"
    assert view.read("local.cfg").content == "theirs\n"
    assert view.read("env/lib/site.py").content == "y = 2\n"
    assert {each.name for each in view.list("sub")} == {
        ".gitignore",
        "a.tmp",
        "node_modules",
        "out",
    }


@pytest.mark.parametrize("has_rules", [True, False])
def test_the_names_of_a_directory_are_judged_as_each_of_them_is(
    project: InMemoryFilesystem, has_rules: bool
):
    if not has_rules:
        project.delete(".gitignore")
        project.delete("sub/.gitignore")
    project.write("sub/.git", "gitdir: elsewhere\n")
    reproducible, alone = ReproducibleFiles(project), ReproducibleFiles(project)
    for each in (reproducible, alone):
        each.keep("sub/a.tmp")
        each.keep("env/lib/site.py")
    pending = ["."]
    while pending:
        path = pending.pop()
        entries = {each.name: each for each in project.list(path)}
        names = {name: each.is_directory for name, each in entries.items()}
        found = reproducible.find_names("" if path == "." else path, names)
        stats = {name: project.stat(each.path) for name, each in entries.items()}
        assert found == {name for name, each in stats.items() if each in alone}, path
        pending += [each.path for each in entries.values() if each.is_directory]
    assert sorted(reproducible.paths) == sorted(alone.paths)
