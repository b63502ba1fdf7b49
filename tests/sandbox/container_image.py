"""A small image for tests: this system's Python and a few programs, imported once per session."""

import fcntl
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import NoReturn

import pytest

from weakincentives.sandbox.container import PodmanSandboxConfig

# one image for a session, its workers and the sessions of its tests, which inherit the variable
_IS_OWNER = "WINK_TEST_IMAGE" not in os.environ
TAG = os.environ.setdefault("WINK_TEST_IMAGE", f"localhost/weakincentives-test:{os.getpid()}")
_PROGRAMS = (
    *("sh", "bash", "cat", "chmod", "echo", "env", "false", "head", "id", "kill", "ln", "ls"),
    *("mkdir", "mkfifo", "nohup", "printf", "rm", "seq", "setsid", "sleep", "stat", "tail"),
    *("touch", "tr", "true", "wc"),
)
_DIRECTORIES = ("dev", "etc", "home", "proc", "run", "sys", "usr", "var")
_SKIPPED = {"test", "idlelib", "lib2to3", "ensurepip", "pydoc_data"}
_SKIPPED |= {"dist-packages", "site-packages", "config-3.11-x86_64-linux-gnu"}


def require_program(program: str) -> None:
    """Skip the test where a program is missing; fail where everything has to be there."""
    if shutil.which(program) is None:
        _give_up(f"{program} is not installed")


def require_engine() -> None:
    """Skip the test where this user can run no container; fail where everything has to be there."""
    require_program("podman")
    if problem := _problem_of_engine():
        _give_up(f"podman runs no container for this user: {problem}")


def build_test_image() -> PodmanSandboxConfig:
    """Return a configuration with the test image; make the image if it is not there."""
    require_engine()
    return PodmanSandboxConfig(image=TAG)


@cache
def _problem_of_engine() -> str:
    """Import the test image and run it; return what the engine says where that fails.

    It can be installed and of no use: an ordinary user needs further programs, and numbers of
    users in `/etc/subuid`.
    """
    with _lock_path().open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # other workers want the same image
        known = subprocess.run(["podman", "image", "exists", TAG], check=False)
        command = ["podman", "import", "--quiet", "-", TAG]
        if known.returncode and (problem := _problem_of(command, _archive())):
            return problem
    runtime = ("--runtime", "runc") if shutil.which("runc") else ()
    owner = ("--userns", "keep-id") if os.geteuid() else ()  # the workspace is theirs inside too
    # the defaults of podman may be above what a process of this host may have
    limits = ("--ulimit", "nofile=256:256", "--ulimit", "nproc=256:256")
    run = ("run", "--rm", "--network", "none", *limits, *owner, TAG, "true")
    return _problem_of(["podman", *runtime, *run])


def _problem_of(command: list[str], data: bytes = b"") -> str:
    done = subprocess.run(command, input=data, capture_output=True, check=False)
    said = done.stderr.decode(errors="replace").strip()
    return (said or f"exit code {done.returncode}") if done.returncode else ""


def _give_up(reason: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(f"{reason}, and CI is set")
    pytest.skip(f"{reason}: what depends on it is not tested")


def remove_test_image() -> None:
    """Remove the test image, if there is one and this session named it."""
    if not _IS_OWNER:
        return
    _lock_path().unlink(missing_ok=True)
    if shutil.which("podman") is not None:
        subprocess.run(["podman", "rmi", "--force", TAG], check=False, capture_output=True)


def _lock_path() -> Path:
    return Path(tempfile.gettempdir(), f"wink-image-{TAG.rpartition(':')[2]}.lock")


def _archive() -> bytes:
    python = Path("/usr/bin/python3").resolve()
    version = re.fullmatch(r"python(3\.\d+)", python.name)
    assert version, f"Unexpected name of the system's Python: {python}"
    library = Path(f"/usr/lib/{python.name}")
    programs = [path for name in _PROGRAMS if (path := shutil.which(name, path="/usr/bin:/bin"))]
    extensions = map(str, (library / "lib-dynload").glob("*.so"))
    data = BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name in (*_DIRECTORIES, "usr/bin", "usr/lib"):
            _add_directory(archive, name)
        _add_directory(archive, "tmp", 0o1777)
        for name in ("bin", "lib", "lib64", "sbin"):
            _add_link(archive, name, f"usr/{name}")
        for each in {str(python), *programs, *_libraries([str(python), *programs, *extensions])}:
            merged = each if each.startswith("/usr") else f"/usr{each}"
            archive.add(Path(each).resolve(), merged.lstrip("/"))
        _add_link(archive, "usr/bin/python3", python.name)
        _add_library(archive, library)
    return data.getvalue()


def _add_directory(archive: tarfile.TarFile, name: str, mode: int = 0o755) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = tarfile.DIRTYPE, mode
    archive.addfile(entry)


def _add_link(archive: tarfile.TarFile, name: str, target: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    archive.addfile(entry)


def _add_library(archive: tarfile.TarFile, library: Path) -> None:
    for directory, folders, files in os.walk(library):
        folders[:] = [name for name in folders if name not in _SKIPPED]
        for name in files:
            path = Path(directory, name)
            archive.add(path, str(path).lstrip("/"))


def _libraries(programs: list[str]) -> set[str]:
    done = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False)
    return set(re.findall(r"(/\S+) \(0x", done.stdout))
