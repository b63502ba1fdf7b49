"""Commands change modes, owners, times and xattrs of files that they may write, and no others."""

import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.steps import ROOT
from tests.sandbox.attribute_programs import LONG, open_sandbox, run
from tests.sandbox.process_trees import TimeIsUpWith
from tests.sizes import size
from weakincentives.sandbox import LandlockSandbox

NOBODY = 65534


@pytest.fixture(
    params=[
        pytest.param(os.getuid(), id="own user"),
        pytest.param(NOBODY, id="nobody", marks=pytest.mark.root),
    ]
)
def user(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def place(user: int) -> Iterator[Path]:
    """Return a directory that the user owns and can reach."""
    made = Path(tempfile.mkdtemp(prefix="wink-attributes-"))
    os.chown(made, user, user)
    yield made
    shutil.rmtree(made)


def make(place: Path, user: int, *names: str) -> list[Path]:
    """Return new directories of the user."""
    made = [place / name for name in names]
    for each in made:
        each.mkdir()
        os.chown(each, user, user)
    return made


def test_inside_every_call_does_what_it_does_without_a_sandbox(user: int, place: Path) -> None:
    bare, confined = make(place, user, "bare-run", "confined")
    both = run(user, "INSIDE", {"bare": bare, "landlock": confined})
    expected, found = both["bare"], both["landlock"]
    assert len(expected) > 600
    results = [result for result, _ in expected.values()]
    assert results.count(0) > 200
    known = [name for name, (result, _) in expected.items() if result != "ENOSYS"]
    assert {each: found[each] for each in known if found[each] != expected[each]} == {}


@pytest.fixture
def outside(user: int, place: Path) -> list[Path]:
    """Return two files outside of the workspace; commands may read the second."""
    (folder,) = make(place, user, "workspace-of-another")
    files = [folder / "secret", folder / "readable"]
    for each in files:
        each.write_text("")
        each.chmod(0o644)
        os.setxattr(each, "user.old", b"1")
        os.chown(each, user, user)
    return files


def look(files: list[Path]) -> list[tuple[int, ...]]:
    """Return what changes with every attribute of a file: the time of its last change."""
    found = [each.stat() for each in (*files, files[0].parent)]
    return [(each.st_mode, each.st_mtime_ns, each.st_ctime_ns) for each in found]


def attack(user: int, program: str, kind: str, outside: list[Path], **targets: object) -> Any:
    """Return what a program printed that tries to change two files outside of its workspace."""
    (workspace,) = make(outside[0].parents[1], user, "workspace")
    secret, readable = map(str, outside)
    found = run(user, program, {kind: workspace}, outside=secret, readable=readable, **targets)
    return found[kind]


def test_outside_nothing_changes(user: int, outside: list[Path]) -> None:
    before = look(outside)
    found = attack(user, "OUTSIDE", "landlock", outside)
    assert len(found) > 400
    assert {name for name, result in found.items() if result in {0, "ENOSYS"}} == set()
    assert look(outside) == before


@pytest.mark.parametrize("user", [os.getuid()])
def test_without_a_sandbox_these_attempts_succeed(user: int, outside: list[Path]) -> None:
    before = look(outside)
    found = attack(user, "OUTSIDE", "bare", outside)
    assert list(found.values()).count(0) > 350
    assert look(outside)[:2] != before[:2]


def test_no_race_reaches_outside(user: int, outside: list[Path]) -> None:
    before = look(outside)
    found = attack(user, "RACES", "landlock", outside, count=size(500, 50_000))
    assert {"0", "EPERM"} <= set(found)
    assert look(outside) == before


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LandlockSandbox]:
    with LandlockSandbox(tmp_path_factory.mktemp("workspace")) as made:
        yield made


def execute(sandbox: LandlockSandbox, program: str) -> str:
    done = sandbox.exec([sandbox.python, "-I", "-c", program], timeout=LONG)
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


MANY = """
import os, signal, threading
def change(path, count):
    open(path, "w").close()
    for number in range(count):
        os.chmod(path, 0o600 + number % 8)
children = []
for number in range(8):
    child = os.fork()
    if child == 0:
        threads = [threading.Thread(target=change, args=(f"file-{number}-{each}", 50))
                   for each in range(4)]
        for each in threads: each.start()
        for each in threads: each.join()
        os._exit(0)
    children.append(child)
victims = []
for number in range(4):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, b"!")
        change(f"victim-{number}", 10**9)
    os.read(reader, 1)
    os.kill(child, signal.SIGKILL)
    victims.append(os.waitpid(child, 0)[1])
print([os.waitpid(each, 0)[1] for each in children], victims)
print({os.stat(f"file-{a}-{b}").st_mode & 0o777 for a in range(8) for b in range(4)})
"""


def test_many_threads_and_processes_at_once_and_some_are_killed(sandbox: LandlockSandbox) -> None:
    printed = execute(sandbox, MANY)
    assert printed == f"{[0] * 8} {[9] * 4}\n{{{0o601}}}\n"


ENDLESS = """
import os, signal, threading
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def change():
    while True:
        os.chmod("endless", 0o600)
open("endless", "w").close()
for _ in range(3):
    if os.fork() == 0:
        change()
    threading.Thread(target=change).start()
open("ready", "w").close()
print("ready", flush=True)
"""


def test_processes_that_never_stop_making_calls_can_be_stopped(tmp_path: Path) -> None:
    ready = TimeIsUpWith(tmp_path / "ready")
    with LandlockSandbox(tmp_path, grace=0.1, clock=ready) as sandbox:
        done = sandbox.exec([sandbox.python, "-I", "-c", ENDLESS], timeout=LONG)
    assert done.timed_out


SIGNALS = """
import os, signal
signal.signal(signal.SIGALRM, lambda number, frame: None)
signal.siginterrupt(signal.SIGALRM, False)
signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
open("file", "w").close()
for _ in range(500):
    os.setxattr("file", "user.once", b"1", os.XATTR_CREATE)
    os.removexattr("file", "user.once")
signal.setitimer(signal.ITIMER_REAL, 0)
print("done")
"""


def test_a_signal_does_not_repeat_a_call(sandbox: LandlockSandbox) -> None:
    assert execute(sandbox, SIGNALS) == "done\n"


def test_the_child_of_vfork_and_a_background_process_can_do_it_too(
    sandbox: LandlockSandbox,
) -> None:
    program = "import os, subprocess; subprocess.run(['chmod', '640', 'new'], close_fds=False)"
    sandbox.filesystem.write("new", "")
    process = sandbox.start([sandbox.python, "-I", "-c", program])
    assert process.wait(LONG)
    assert process.poll().exit_code == 0
    mode = Path(sandbox.filesystem.root, "new").stat().st_mode
    assert stat.S_IMODE(mode) == 0o640


PROGRAMS = """
set -e
umask 022
mkdir -p source/deep
for name in a b deep/c; do echo $name > source/$name; done
chmod 751 source/deep; chmod 444 source/a; chmod u+x,g-r source/b
touch -d '2001-02-03 04:05:06.123456789' source/a
touch -h -d '2002-02-03' source/link 2>/dev/null || ln -s a source/link
touch -h -d '2002-02-03' source/link
touch -r source/a source/deep/c
touch -d '2003-02-03' source source/deep source/b
cp -a source copied
tar cf all.tar source
mkdir unpacked && tar xpf all.tar -C unpacked
install -m 700 source/a installed
git init -q repository
cd repository
cp ../source/b b
git add b
git -c user.name=n -c user.email=e commit -q -m m
rm b
git checkout -q b
cd ..
chmod -R g+w unpacked
mkdir removed && chmod 500 removed && rm -r removed
"""


def test_programs_that_keep_attributes_work_as_without_a_sandbox(tmp_path: Path) -> None:
    found = []
    for kind in ("bare", "landlock"):
        workspace = tmp_path / kind
        workspace.mkdir()
        with open_sandbox(kind, workspace) as sandbox:
            done = sandbox.exec(["sh", "-c", PROGRAMS], timeout=LONG)
        assert (done.exit_code, done.stderr) == (0, ""), done.stderr
        paths = sorted(each for each in workspace.rglob("*") if ".git" not in each.parts)
        found.append([_describe(each, workspace) for each in paths])
    assert found[0] == found[1]
    assert len(found[0]) > 20


def _describe(path: Path, root: Path) -> tuple[str, str, int | None]:
    status = path.lstat()
    is_old = status.st_mtime < 10**9 * 1.05  # the programs set the times of these
    return (
        str(path.relative_to(root)),
        stat.filemode(status.st_mode),
        status.st_mtime_ns if is_old else None,
    )


def test_a_root_that_is_moved_stays_writable_and_what_replaces_it_is_not(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    with LandlockSandbox(workspace) as sandbox:
        process = sandbox.start(["sh", "-c", "cat > /dev/null; true"])
        process.stop()
        workspace.rename(tmp_path / "moved")
        workspace.mkdir()
        file, replaced = tmp_path / "moved" / "file", workspace / "file"
        for each in (file, replaced):
            each.write_text("")
            each.chmod(0o644)
        script = f"chmod 600 {file}; chmod 600 {replaced}"
        sandbox.exec(["sh", "-c", script])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(replaced.stat().st_mode) == 0o644


NESTED = """
import sys, tempfile
from weakincentives.sandbox import LandlockSandbox, SandboxUnavailableError
try:
    with LandlockSandbox(tempfile.mkdtemp()) as sandbox:
        sandbox.exec(["true"])
except SandboxUnavailableError as error:
    print(error)
"""


def test_where_calls_cannot_be_notified_no_command_runs(tmp_path: Path) -> None:
    with LandlockSandbox(tmp_path, readable=[ROOT]) as sandbox:
        done = sandbox.exec(
            [sys.executable, "-c", NESTED],
            env={"PYTHONPATH": os.pathsep.join(sys.path)},
            timeout=LONG,
        )
    assert done.stderr == ""
    assert "cannot be confined: Device or resource busy; " in done.stdout
    assert "use bubblewrap or podman" in done.stdout


OTHERS = """
import ctypes, errno, fcntl, json, os, resource, sys
pid, shared = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
def call(function, *values):
    ctypes.set_errno(0)
    result = function(*values)
    return errno.errorcode[ctypes.get_errno()] if result < 0 else 0
own, limit = resource.getrlimit(resource.RLIMIT_CPU), ctypes.create_string_buffer(16)
resource.setrlimit(resource.RLIMIT_CPU, own)
os.nice(1)
os.setpriority(os.PRIO_PROCESS, 0, os.nice(0) + 1)
reading = os.open(shared, os.O_RDONLY)
listener = {"x86_64": 317, "aarch64": 277}[os.uname().machine]
os.sched_setaffinity(os.getpid(), os.sched_getaffinity(0))
print(json.dumps({
    "limits": call(libc.prlimit, pid, 0, None, limit),
    "priority": call(libc.setpriority, 0, pid, 19),
    "priority of a user": call(libc.setpriority, 2, 0, 19),
    "scheduler": call(libc.sched_setscheduler, pid, 5, ctypes.create_string_buffer(8)),
    "shared memory": call(libc.shmctl, 0, 2, ctypes.create_string_buffer(200)),
    "semaphores": call(libc.semget, 0, 1, 0o600),
    "messages": call(libc.msgget, 0, 0o600),
    "lease": call(libc.fcntl, reading, 1024, 0),
    "listener": call(libc.syscall, listener, 1, 8, ctypes.create_string_buffer(16)),
    "unknown": call(libc.syscall, 470, 0, 0),
}))
"""


def test_what_only_namespaces_would_isolate_is_refused(sandbox: LandlockSandbox) -> None:
    arguments = json.dumps([os.getpid(), sys.executable])
    done = sandbox.exec([sandbox.python, "-I", "-c", OTHERS, arguments], timeout=LONG)
    assert done.stderr == ""
    assert json.loads(done.stdout) == {
        **dict.fromkeys(["limits", "priority", "priority of a user", "scheduler"], "EPERM"),
        **dict.fromkeys(["shared memory", "semaphores", "messages", "unknown"], "ENOSYS"),
        "lease": "EINVAL",
        "listener": "EBUSY",
    }
