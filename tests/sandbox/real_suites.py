"""Test suites of real projects, outside and in a sandbox: what fails inside only is our fault."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from weakincentives.contrib.review import working_copy
from weakincentives.filesystem import POSIX_LIMITS, HostFilesystem
from weakincentives.sandbox import create_sandbox

_REPORT = "report.xml"
_SECONDS = 1800.0
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Suite:
    """A project on PyPI whose source distribution has its tests."""

    project: str
    version: str
    requirements: tuple[str, ...] = ()
    """What its tests need, besides pytest."""
    arguments: tuple[str, ...] = ("tests",)


SUITES = (
    # its type checker is found in the environment of wink inside, and not outside
    Suite(
        "attrs",
        "25.4.0",
        ("hypothesis", "cloudpickle"),
        ("tests", "--ignore", "tests/test_pyright.py"),
    ),
    Suite(
        "blinker",
        "1.9.0",
        ("pytest-asyncio",),
        ("tests", "-o", "asyncio_default_fixture_loop_scope=function"),
    ),
    Suite("click", "8.3.1"),
    Suite("flask", "3.1.2", ("asgiref", "python-dotenv")),
    Suite("humanize", "4.14.0", ("freezegun",)),
    Suite("jinja2", "3.1.6", ("trio",)),
    Suite("marshmallow", "4.1.0", ("simplejson",)),
    Suite("packaging", "25.0", ("pretend",)),
    Suite("platformdirs", "4.5.0", ("appdirs", "pytest-mock")),
    Suite("structlog", "25.5.0", ("freezegun", "pretend", "pytest-asyncio>=1", "time-machine")),
    # its tools need the formatters of its own versions
    Suite(
        "trio",
        "0.32.0",
        ("astor", "jedi", "trustme", "pyopenssl"),
        ("src", "--ignore", "src/trio/_tests/tools"),
    ),
    # its development servers that reload themselves do not always end, also outside
    Suite(
        "werkzeug",
        "3.1.3",
        ("cryptography", "ephemeral-port-reserve", "pytest-timeout", "watchdog"),
        ("tests", "-m", "not dev_server"),
    ),
)


def prepare(suite: Suite, directory: Path) -> tuple[Path, Path]:
    """Download a project and make an environment for it; return both."""
    name = f"{suite.project}=={suite.version}"
    _pip(
        sys.executable,
        *("download", "--no-deps", "--no-binary", suite.project, "--dest", directory, name),
    )
    (archive,) = directory.glob("*.tar.gz")
    with tarfile.open(archive) as members:
        members.extractall(directory / "source", filter="data")
    (project,) = (directory / "source").iterdir()
    environment = directory / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / "bin" / "python"
    _pip(python, "install", "pytest<9", *suite.requirements, "--editable", project)
    return project, environment


def _pip(python: str | Path, *arguments: str | Path) -> None:
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input"]
    subprocess.run([*pip, *arguments], check=True)


def results_outside(
    project: Path, environment: Path, arguments: Sequence[str]
) -> Mapping[str, int]:
    """Run the tests as a developer of the project would; return how often each ended how."""
    before = project.with_name(f"{project.name}-before")
    shutil.copytree(project, before, symlinks=True)
    try:
        path = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
        command = ["python", *_options(arguments)]
        subprocess.run(
            command,
            cwd=project,
            env={**os.environ, "PATH": path},
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
        return _read(project / _REPORT, project)
    finally:
        shutil.rmtree(project)
        before.rename(project)


def results_inside(
    project: Path, environment: Path, arguments: Sequence[str], place: Path, sandbox: str
) -> Mapping[str, int]:
    """Run the tests as a command of a model in `wink run`; return how often each ended how."""
    copy = working_copy(project, place=place)
    path = os.environ["PATH"]
    os.environ["PATH"] = f"{environment / 'bin'}{os.pathsep}{path}"
    try:
        with (
            HostFilesystem(copy.root, git_dir=copy.git_dir, limits=POSIX_LIMITS) as files,
            create_sandbox(sandbox, files, original=project) as made,
        ):
            made.exec(["python", *_options(arguments)], timeout=_SECONDS)
    finally:
        os.environ["PATH"] = path
    return _read(copy.root / _REPORT, "/workspace", copy.root)


def _options(arguments: Sequence[str]) -> list[str]:
    return ["-m", "pytest", "-q", "-o", "junit_family=xunit1", "--junit-xml", _REPORT, *arguments]


def _read(report: Path, *roots: str | Path) -> Mapping[str, int]:
    """Return how often each test ended how; times and places in the names do not count."""
    found: Counter[str] = Counter()
    for case in ET.parse(report).iter("testcase"):
        outcome = next((e.tag for e in case if e.tag in {"failure", "error", "skipped"}), "passed")
        name = f"{case.get('classname')}::{case.get('name')}"
        for root in map(str, roots):
            name = name.replace(root, "ROOT")
        name = _NUMBER.sub("#", name)
        found[f"{name} {outcome}"] += 1
    return found
