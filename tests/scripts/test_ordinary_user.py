"""A command as an ordinary user: it reads the project wherever that is, and changes nothing."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.steps import ROOT

pytestmark = pytest.mark.root

SHOW = """
import json, os
from pathlib import Path
from scripts.steps import ROOT
home = Path.home()
Path(home, "file").write_text("")
Path(os.environ["TMPDIR"], "file").write_text("")
try:
    Path(ROOT, "file").write_text("")
except PermissionError:
    print(json.dumps([os.getresuid(), os.getgroups(), str(ROOT), str(home), os.umask(0)]))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of root's in a directory that is closed to others, with a secret beside it."""
    made = tmp_path / "closed" / "project"
    (made / "scripts").mkdir(parents=True)
    for each in (ROOT / "scripts").glob("*.py"):
        shutil.copy(each, made / "scripts")
    (made / "pyproject.toml").write_text("")
    (made.parent / "secret").write_text("")
    made.parent.chmod(0o700)
    return made


def run(project: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "scripts.ordinary_user", *command],
        cwd=project,
        env={**{name: value for name, value in os.environ.items() if name != "CI"}, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_closed_project_is_read_by_somebody_without_rights(project: Path):
    done = run(project, sys.executable, "-c", SHOW)
    assert done.stderr == ""
    (numbers, groups, root, home, umask) = json.loads(done.stdout)
    assert len({*numbers}) == 1
    assert (0 in numbers, 0 in groups, root, umask) == (False, False, str(project), 0o022)
    assert not Path(home).parent.exists()
    assert project.parent.stat().st_mode & 0o777 == 0o700


def test_what_is_closed_beside_it_stays_closed(project: Path):
    done = run(project, "ls", str(project.parent))
    assert done.stdout.split() == ["project"]


def test_no_process_of_the_user_is_left(project: Path):
    done = run(project, "sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!")
    status = Path("/proc", done.stdout.strip(), "status")
    assert not status.exists() or "State:\tZ" in status.read_text()


def test_the_code_of_the_command_is_ours(project: Path):
    assert run(project, "sh", "-c", "exit 3").returncode == 3


def test_a_project_that_nobody_else_may_read_is_left_out_but_not_in_ci(project: Path):
    (project / "pyproject.toml").chmod(0o600)
    expected = f"left out: {project} or {sys.prefix} is closed to others\n"
    for variables, code in (({}, 0), ({"CI": "1"}, 1)):
        done = run(project, "true", **variables)
        assert (done.stdout, done.returncode) == (expected, code)
