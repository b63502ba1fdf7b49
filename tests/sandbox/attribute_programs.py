"""Programs that change attributes by every system call there is, and a way to run them as a user.

python -m tests.sandbox.attribute_programs USER PROGRAM '{"KIND": "WORKSPACE"}' TARGETS
"""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from scripts.steps import ROOT
from weakincentives.posix import Confinement
from weakincentives.sandbox import LandlockSandbox, LocalSandbox
from weakincentives.sandbox.attribute_calls import CALLS
from weakincentives.sandbox.base import ConfinedCommand
from weakincentives.sandbox.command import PreparedCommand
from weakincentives.sandbox.host import HostSandbox

LONG = 120.0
"""Seconds for what takes a few, unless the machine is busy."""

_COLUMN = {"x86_64": 0, "aarch64": 1}[platform.machine()]
_NUMBERS = {name: numbers[_COLUMN] for name, *numbers in CALLS}


class UnprivilegedSandbox(LocalSandbox):
    """Isolates nothing, but commands have no capabilities, as in every sandbox that does."""

    def _confine(self, command: PreparedCommand, cwd: str) -> ConfinedCommand:
        return ConfinedCommand(replace(command, confinement=Confinement(drops_privileges=True)))


def open_sandbox(kind: str, workspace: Path, *readable: str) -> HostSandbox:
    """Return a sandbox that isolates nothing, `bare`, or one of Landlock."""
    if kind == "bare":
        return UnprivilegedSandbox(workspace)
    return LandlockSandbox(workspace, readable=readable)


def run(user: int, program: str, workspaces: Mapping[str, Path], **targets: object) -> Any:
    """Return what a program of this module prints in each sandbox of a user."""
    if user == os.getuid():
        return {kind: _run(kind, program, path, **targets) for kind, path in workspaces.items()}
    places = json.dumps({kind: str(path) for kind, path in workspaces.items()})
    done = subprocess.run(
        [sys.executable, "-m", __name__, str(user), program, places, json.dumps(targets)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _run(kind: str, program: str, workspace: Path, **targets: object) -> Any:
    arguments = json.dumps({"numbers": _NUMBERS, **targets})
    readable = [str(targets["readable"])] if "readable" in targets else []
    with open_sandbox(kind, workspace, *readable) as sandbox:
        command = [sandbox.python, "-I", "-c", globals()[program], arguments]
        done = sandbox.exec(command, timeout=LONG)
    assert (done.exit_code, done.stderr) == (0, ""), done.stderr
    return json.loads(done.stdout)


def main(user: str, program: str, workspaces: str, targets: str) -> None:
    """Become a user, run a program and print the result."""
    os.setgroups([])
    os.setgid(int(user))
    os.setuid(int(user))
    if not os.access(sys.executable, os.X_OK):
        sys.executable = "/usr/bin/python3"  # not in the home of root
    places = {kind: Path(path) for kind, path in json.loads(workspaces).items()}
    print(json.dumps(run(os.getuid(), program, places, **json.loads(targets))))


_SYSTEM_CALLS = r"""
import ctypes, errno, fcntl, json, mmap, os, struct, sys, threading
arguments = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
CURRENT, NO_FOLLOW, EMPTY = -100, 0x100, 0x1000
NOW, OMIT = (1 << 30) - 1, (1 << 30) - 2

def call(name, *values):
    number = arguments["numbers"][name]
    if number is None:
        return "absent"
    ctypes.set_errno(0)
    sent = [ctypes.c_long(each) if isinstance(each, int) else each for each in values]
    result = libc.syscall(ctypes.c_long(number), *sent)
    return errno.errorcode[ctypes.get_errno()] if result < 0 else result

def times(*values):
    return struct.pack("=%dq" % len(values), *values)

def attribute(value, flags=0):
    held.append(ctypes.create_string_buffer(value))
    return struct.pack("=QII", ctypes.addressof(held[-1]), len(value), flags)

held = []
TIMES, MICRO, SECONDS = times(5, 7, 6, 8), times(5, 700, 6, 800), times(5, 6)
ATTRIBUTE = (b"user.wink", b"value", 5, 0)

def by_path(path, directory=CURRENT):
    # every call that takes a path, on this path
    own = os.getuid(), os.getgid()
    cases = {
        "fchmodat": ("fchmodat", directory, path, 0o740),
        "fchmodat2": ("fchmodat2", directory, path, 0o704, 0),
        "fchmodat2 of the link": ("fchmodat2", directory, path, 0o704, NO_FOLLOW),
        "fchownat": ("fchownat", directory, path, *own, 0),
        "fchownat of the link": ("fchownat", directory, path, *own, NO_FOLLOW),
        "fchownat to nobody else": ("fchownat", directory, path, -1, -1, 0),
        "futimesat": ("futimesat", directory, path, MICRO),
        "utimensat": ("utimensat", directory, path, TIMES, 0),
        "utimensat of the link": ("utimensat", directory, path, TIMES, NO_FOLLOW),
        "utimensat now": ("utimensat", directory, path, None, 0),
        "setxattrat": ("setxattrat", directory, path, 0, b"user.at", attribute(b"x"), 16),
        "removexattrat": ("removexattrat", directory, path, 0, b"user.old"),
    }
    if directory == CURRENT:
        cases |= {
            "chmod": ("chmod", path, 0o700),
            "chown": ("chown", path, *own),
            "lchown": ("lchown", path, *own),
            "utime": ("utime", path, SECONDS),
            "utimes": ("utimes", path, MICRO),
            "setxattr": ("setxattr", path, *ATTRIBUTE),
            "lsetxattr": ("lsetxattr", path, *ATTRIBUTE),
            "removexattr": ("removexattr", path, b"user.old"),
            "lremovexattr": ("lremovexattr", path, b"user.old"),
        }
    return cases

def by_path_following(path):
    return {name: each for name, each in by_path(path).items()
            if not name.endswith("link") and not name.startswith("l")}

def by_descriptor(descriptor):
    own = os.getuid(), os.getgid()
    return {
        "fchmod": ("fchmod", descriptor, 0o700),
        "fchown": ("fchown", descriptor, *own),
        "futimens": ("utimensat", descriptor, None, TIMES, 0),
        "futimens now": ("utimensat", descriptor, None, None, 0),
        "futimes": ("futimesat", descriptor, None, MICRO),
        "fsetxattr": ("fsetxattr", descriptor, *ATTRIBUTE),
        "fremovexattr": ("fremovexattr", descriptor, b"user.old"),
    }

def by_empty_path(descriptor):
    own = os.getuid(), os.getgid()
    return {
        "fchmodat2 empty": ("fchmodat2", descriptor, b"", 0o700, EMPTY),
        "fchownat empty": ("fchownat", descriptor, b"", *own, EMPTY),
        "utimensat empty": ("utimensat", descriptor, b"", TIMES, EMPTY),
        "setxattrat empty": ("setxattrat", descriptor, b"", EMPTY, b"user.a", attribute(b"x"), 16),
        "removexattrat empty": ("removexattrat", descriptor, b"", EMPTY, b"user.old"),
        "fchmodat2 of nothing": ("fchmodat2", descriptor, b"", 0o700, 0),
    }
"""

INSIDE = (
    _SYSTEM_CALLS
    + r"""
os.umask(0o027)
FILES = ("file", "folder", "folder/below", "sticky", "link", "closed", "closed/below", "second")

def prepare():
    for each in ("folder", "sticky", "closed"):
        os.makedirs(each, exist_ok=True)
        os.chmod(each, 0o755)
    for each in ("file", "folder/below", "closed/below"):
        open(each, "w").close()
        os.chmod(each, 0o644)
        os.setxattr(each, "user.old", b"1")
    for each in ("folder", "sticky", "closed", "file", "folder/below", "closed/below"):
        for name in set(os.listxattr(each)) - {"user.old"}:
            os.removexattr(each, name)
    os.chmod("sticky", 0o1777)
    for source, link in (("file", "link"), ("a", "b"), ("b", "a"), ("nowhere", "dangling"),
                         ("folder", "entry")):
        if not os.path.islink(link):
            os.symlink(source, link)
    if not os.path.exists("second"):
        os.link("file", "second")
    for each in (removed, unnamed):
        os.fchmod(each, 0o644)
        os.utime(each, ns=(1_000_000_001, 2_000_000_002))
        for name in os.listxattr(each):
            os.removexattr(each, name)
    for each in FILES:
        os.utime(each, ns=(1_000_000_001, 2_000_000_002), follow_symlinks=False)

def look(path):
    if path.isdigit():
        path = int(path)
    found = os.stat(path) if isinstance(path, int) else os.lstat(path)
    when = ["now" if each > 10**18 else each for each in (found.st_atime_ns, found.st_mtime_ns)]
    link = {} if isinstance(path, int) else {"follow_symlinks": False}
    values = {each: os.getxattr(path, each, **link).hex() for each in os.listxattr(path, **link)}
    return [oct(found.st_mode), found.st_uid, found.st_gid, *when, values]

def state():
    return {each: look(each) for each in (*FILES, *map(str, (removed, unnamed)))}

removed = os.open("removed", os.O_RDWR | os.O_CREAT)
os.remove("removed")
unnamed = os.open(".", os.O_RDWR | os.O_TMPFILE)
prepare()
here = os.open(".", os.O_PATH)
folder = os.open("folder", os.O_RDONLY)
reading = os.open("file", os.O_RDONLY)
writing = os.open("file", os.O_WRONLY)
path_only = os.open("file", os.O_PATH)
of_link = os.open("link", os.O_PATH | os.O_NOFOLLOW)
gone = os.open("folder", os.O_RDONLY)
os.close(gone)

pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
assert libc.munmap(ctypes.c_void_p(start + mmap.PAGESIZE), ctypes.c_size_t(mmap.PAGESIZE)) == 0
ctypes.memmove(start + mmap.PAGESIZE - 5, b"file\0", 5)
at_the_end = start + mmap.PAGESIZE - 5
ctypes.memmove(start, b"x" * 100, 100)

cases = {}
absolute = os.getcwdb() + b"/" * 40 + b"file"
for path in (b"file", b"folder", b"link", b"entry/below", b"folder/../file", b"dangling", b"a",
             b"missing", b"", b"file/", b"folder/", b"file/below", b"x" * 300, b"y/" * 2100,
             absolute, b"/proc/self/fd/%d" % path_only, b"/dev/fd/%d" % reading,
             b"/proc/self/cwd/file", b"/proc/thread-self/fd/%d/below" % folder, b"closed/below"):
    if path.startswith((b"/proc/self/fd", b"/dev")):  # the link itself is outside
        found = by_path_following(path)
    else:
        found = by_path(path)
    cases |= {f"{name} {path[-40:]}": each for name, each in found.items()}
for name, directory in (("here", here), ("folder", folder), ("a file", reading), ("gone", gone),
                        ("no number", -5)):
    for path in (b"file", b"below", absolute):
        cases |= {f"{n} {path[-9:]} from {name}": c for n, c in by_path(path, directory).items()}
for name, each in (("reading", reading), ("writing", writing), ("folder", folder), ("gone", gone),
                   ("path", path_only), ("link", of_link), ("removed", removed),
                   ("unnamed", unnamed), ("current", CURRENT)):
    cases |= {f"{kind} {name}": case for kind, case in by_descriptor(each).items()}
    cases |= {f"{kind} {name}": case for kind, case in by_empty_path(each).items()}
for name in ("path", "link", "current"):  # kernels disagree about these
    del cases[f"setxattrat empty {name}"], cases[f"removexattrat empty {name}"]
del cases["fsetxattr current"]
cases |= {
    "mode with other bits": ("fchmodat", CURRENT, b"file", 0o1200777),
    "sticky": ("fchmodat", CURRENT, b"folder", 0o1755),
    "not sticky": ("fchmodat", CURRENT, b"sticky", 0o755),
    "flag": ("fchmodat2", CURRENT, b"file", 0o600, 0x2000),
    "no path": ("fchmodat", CURRENT, 0, 0o600),
    "no memory": ("fchmodat", CURRENT, 1, 0o600),
    "last byte": ("fchmodat", CURRENT, -1, 0o600),
    "times at the last byte": ("utimensat", CURRENT, b"file", -1, 0),
    "value at the last byte": ("fsetxattr", reading, b"user.new", -1, 5, 0),
    "negative size": ("fsetxattr", reading, b"user.new", b"1", -1, 0),
    "negative flags": ("fchmodat2", CURRENT, b"file", 0o600, -1),
    "end of memory": ("fchmodat", CURRENT, at_the_end, 0o600),
    "beyond memory": ("fchmodat", CURRENT, start + mmap.PAGESIZE - 2, 0o600),
    "foreign owner": ("fchownat", CURRENT, b"file", 1, 1, 0),
    "flag of owner": ("fchownat", CURRENT, b"file", -1, -1, 0x2000),
    "omit access": ("utimensat", CURRENT, b"file", times(0, OMIT, 9, 10), 0),
    "omit change": ("utimensat", CURRENT, b"file", times(9, 10, 0, OMIT), 0),
    "omit both": ("utimensat", CURRENT, b"file", times(0, OMIT, 0, OMIT), 0),
    "access now": ("utimensat", CURRENT, b"file", times(0, NOW, 9, 10), 0),
    "both now": ("utimensat", CURRENT, b"file", times(0, NOW, 0, NOW), 0),
    "nanoseconds": ("utimensat", CURRENT, b"file", times(1, 999999999, 2, 123456789), 0),
    "before 1970": ("utimensat", CURRENT, b"file", times(-1, 1, -2, 2), 0),
    "invalid nanoseconds": ("utimensat", CURRENT, b"file", times(1, 1000000000, 2, 0), 0),
    "invalid microseconds": ("futimesat", CURRENT, b"file", times(1, 1000000, 2, 0)),
    "times nowhere": ("utimensat", CURRENT, b"file", 1, 0),
    "flag of times": ("utimensat", CURRENT, b"file", TIMES, 0x2000),
    "flag of futimens": ("utimensat", reading, None, TIMES, NO_FOLLOW),
    "create": ("fsetxattr", reading, b"user.new", b"1", 1, 1),
    "create again": ("fsetxattr", reading, b"user.old", b"1", 1, 1),
    "replace": ("fsetxattr", reading, b"user.old", b"22", 2, 2),
    "replace nothing": ("fsetxattr", reading, b"user.new", b"1", 1, 2),
    "other flag": ("fsetxattr", reading, b"user.new", b"1", 1, 4),
    "empty value": ("fsetxattr", reading, b"user.new", None, 0, 0),
    "bytes": ("fsetxattr", reading, b"user.new", bytes(range(256)), 256, 0),
    "large value": ("fsetxattr", reading, b"user.new", b"x" * 70000, 70000, 0),
    "no value": ("fsetxattr", reading, b"user.new", 1, 5, 0),
    "no name": ("fsetxattr", reading, b"", b"1", 1, 0),
    "long name": ("fsetxattr", reading, b"user." + b"x" * 250, b"1", 1, 0),
    "too long a name": ("fsetxattr", reading, b"user." + b"x" * 251, b"1", 1, 0),
    "name nowhere": ("fsetxattr", reading, 1, b"1", 1, 0),
    "trusted": ("fsetxattr", reading, b"trusted.x", b"1", 1, 0),
    "security": ("fsetxattr", reading, b"security.capability", b"1", 1, 0),
    "unknown kind": ("fsetxattr", reading, b"nothing.x", b"1", 1, 0),
    "remove nothing": ("fremovexattr", reading, b"user.new"),
    "small structure": ("setxattrat", CURRENT, b"file", 0, b"user.a", attribute(b"x"), 8),
}
results = {}
before = state()
for name, (kind, *values) in cases.items():
    if "closed" in name:
        os.chmod("closed", 0)
    result = call(kind, *values)
    os.chmod("closed", 0o755)
    after = state()
    results[name] = [result, after]
    if after != before:
        prepare()
        assert state() == before, (name, before, state())
print(json.dumps(results))
"""
)

OUTSIDE = (
    _SYSTEM_CALLS
    + r"""
outside, open_file = (arguments[each].encode() for each in ("outside", "readable"))
name = os.path.basename(outside)
directory = os.open(os.path.dirname(outside), os.O_PATH)
path_only = os.open(outside, os.O_PATH)
reading = os.open(open_file, os.O_RDONLY)
os.symlink(outside, "link")
os.symlink(os.path.dirname(outside), "folder")
os.symlink(b"/proc/self/fd/%d" % path_only, "magic")
up = b"../" * os.getcwd().count("/")
try:
    os.link(outside, "hard")
except OSError:
    pass  # the attempts below find nothing

cases = {}
for path in (outside, up + outside[1:], b"link", b"folder/" + name, b"magic", b"hard",
             b"/proc/self/fd/%d" % path_only, b"/dev/fd/%d" % path_only,
             b"/proc/self/root" + outside, b"/proc/%d/fd/%d" % (os.getpid(), path_only)):
    is_own = path in (b"link", b"magic")  # these links themselves are inside
    found = by_path_following(path) if is_own else by_path(path)
    cases |= {f"{kind} {path}": case for kind, case in found.items()}
cases |= {f"{kind} from its directory": case for kind, case in by_path(name, directory).items()}
cases |= {f"{kind} by a path only": case for kind, case in by_empty_path(path_only).items()}
cases |= {f"{kind} by reading": case for kind, case in by_descriptor(reading).items()}
cases |= {f"{kind} by reading": case for kind, case in by_empty_path(reading).items()}
results = {}

def attempt_all(kind):
    for each, case in cases.items():
        results[f"{each}, {kind}"] = call(*case)

attempt_all("main thread")
thread = threading.Thread(target=attempt_all, args=("another thread",))
thread.start()
thread.join()
os.chdir(os.path.dirname(outside))
results |= {f"{kind} from there": call(*case) for kind, case in by_path(name).items()}

def control(number):
    data = bytearray(fcntl.ioctl(reading, 0x80086601, bytes(8)))
    data[0] ^= 0x40  # no dump
    try:
        return fcntl.ioctl(reading, number, bytes(data)) and 0
    except OSError as error:
        return errno.errorcode[error.errno]

results["chattr"] = control(0x40086602)
print(json.dumps(results))
"""
)

RACES = (
    _SYSTEM_CALLS
    + r"""
import signal
outside, open_file = (arguments[each].encode() for each in ("outside", "readable"))
count = arguments["count"]
name = os.path.basename(outside)
os.mkdir("real")
open(os.path.join(b"real", name), "w").close()
os.symlink(os.path.dirname(outside), "link")
EXCHANGE = 2

def swap_names():
    while True:
        libc.renameat2(CURRENT, b"real", CURRENT, b"link", EXCHANGE)

child = os.fork()
if child == 0:
    swap_names()
done = set()
def try_often(kind, *values):
    # as often as said, and on until both happened: the other may not have run yet
    seen = set()
    number = 0
    while number < count or not {"0", "EPERM"} <= seen:
        seen.add(str(call(kind, *values)))
        number += 1
    done.update(seen)

try_often("fchmodat", CURRENT, b"real/" + name, 0o666)
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)

def race(change, kind, *values):
    stopped = threading.Event()
    def repeat():
        while not stopped.is_set():
            change()
    thread = threading.Thread(target=repeat)
    thread.start()
    try_often(kind, *values)
    stopped.set()
    thread.join()

inner = os.open("inner", os.O_RDWR | os.O_CREAT)
other = os.open(open_file, os.O_RDONLY)
swapped = os.dup(inner)

def swap_descriptors():
    os.dup2(other, swapped)
    os.dup2(inner, swapped)

race(swap_descriptors, "fchmod", swapped, 0o666)
size = len(outside) + 1
buffer = ctypes.create_string_buffer(outside, size)

def swap_memory():
    ctypes.memmove(buffer, b"inner\0", 6)
    ctypes.memmove(buffer, outside, size)

race(swap_memory, "fchmodat", CURRENT, buffer, 0o666)
print(json.dumps(sorted(done)))
"""
)

if __name__ == "__main__":
    main(*sys.argv[1:])
