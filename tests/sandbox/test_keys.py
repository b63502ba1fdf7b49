"""Keys of providers: no command can read one, by any path that is known."""

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from weakincentives.sandbox.container import PodmanSandboxConfig

NOBODY = 65534

# runs inside: looks everywhere for something that looks like a key, and prints where it was
SEARCH = r"""
import ctypes, os, re, socket, stat, sys
pattern = re.compile(rb"wink-key-[0-9a-f]{32}")
home, parent, *others = sys.argv[1:]
found = {}

def look(where, data):
    for key in pattern.findall(data):
        found.setdefault(key.decode(), []).append(where)

def read(path, size=1 << 22):
    try:
        with open(path, "rb", buffering=0) as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                look(path, file.read(size) or b"")
    except OSError:
        pass

def read_memory(pid):
    try:
        with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
            for line in maps:
                first, last = (int(each, 16) for each in line.split()[0].split("-"))
                if " rw" in line and last - first < 1 << 28:
                    try:
                        memory.seek(first)
                        look(f"memory of {pid}", memory.read(last - first))
                    except (OSError, ValueError, OverflowError):
                        pass
    except OSError:
        pass

look("environment", repr(dict(os.environ)).encode())
for number in range(3, 64):
    try:
        look(f"descriptor {number}", os.pread(number, 4096, 0))
    except OSError:
        pass
    try:
        os.set_blocking(number, False)
        look(f"descriptor {number}", os.read(number, 4096))
    except OSError:
        pass
# only processes of this test: on the bare host everything else would be open too
for pid in {parent, *others, str(os.getppid())}:
    for name in ("environ", "cmdline", "auxv", "stack"):
        read_path = f"/proc/{pid}/{name}"
        try:
            with open(read_path, "rb") as file:
                look(read_path, file.read(1 << 20))
        except OSError:
            pass
    read_memory(pid)
    for directory in (f"/proc/{pid}/fd", f"/proc/{pid}/root", f"/proc/{pid}/cwd"):
        try:
            for name in os.listdir(directory):
                read(f"{directory}/{name}")
        except OSError:
            pass
    read(f"/proc/{pid}/cwd/.env")
    read(f"/proc/{pid}/root{home}/.config/wink/wink.toml")
libc = ctypes.CDLL(None)
if not found and libc.ptrace(16, int(parent), 0, 0) == 0:  # PTRACE_ATTACH
    os.waitpid(int(parent), 0)
    read_memory(parent)
    libc.ptrace(17, int(parent), 0, 0)
for path in (f"{home}/.config/wink/wink.toml", f"{home}/project/.env", f"{home}/key",
             "../.env", "../../.env", os.path.expanduser("~/.config/wink/wink.toml")):
    read(path)
for top in (home, ".", os.path.expanduser("~")):
    for directory, _, names in os.walk(top):
        for name in names:
            read(os.path.join(directory, name), 1 << 16)
for address in (f"{home}/socket", "\0wink-key-socket-" + parent):
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(10)
            client.connect(address)
            look(f"socket {address!r}", client.recv(4096))
    except OSError:
        pass
import json
print(json.dumps(found))
"""

# runs outside: a process that has a key in every place, and runs the search in a sandbox
PARENT = r"""
import ctypes, json, os, socket, sys, threading
from weakincentives.sandbox import (
    BubblewrapSandbox, LandlockSandbox, LocalSandbox, PodmanSandbox, PodmanSandboxConfig,
)
kind, home, workspace, search, config, user = sys.argv[1:]
if user:
    os.setgroups([])
    os.setgid(int(user))
    os.setuid(int(user))
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as readable as a process that never was root
    if not os.access(sys.executable, os.X_OK):
        sys.executable = "/usr/bin/python3"
key = os.environ["ANTHROPIC_API_KEY"]
held = os.open(f"{home}/key", os.O_RDONLY)
os.set_inheritable(held, True)
reader, writer = os.pipe()
os.write(writer, key.encode())
os.set_inheritable(reader, True)
for address in (f"{home}/socket", f"\0wink-key-socket-{os.getpid()}"):
    server = socket.socket(socket.AF_UNIX)
    server.bind(address)
    server.listen()
    def serve(server=server):
        while True:
            server.accept()[0].sendall(key.encode())
    threading.Thread(target=serve, daemon=True).start()
made = {
    "local": lambda: LocalSandbox(workspace),
    "bubblewrap": lambda: BubblewrapSandbox(workspace),
    "landlock": lambda: LandlockSandbox(workspace),
    "podman": lambda: PodmanSandbox(workspace, config=PodmanSandboxConfig(**json.loads(config))),
}[kind]()
python = "python3" if kind == "podman" else sys.executable
with made as sandbox:
    sandbox.exec(["true"])
    server = () if kind == "podman" else (str(sandbox._launcher.pid),)
    command = [python, "-c", search, home, str(os.getpid()), *server]
    process = sandbox.start(command)
    process.wait(120)
    for done in (sandbox.exec(command, timeout=120), process.poll()):
        print(json.dumps([done.exit_code, done.out.text, done.err.text]))
    servers = {}
    if kind != "podman":
        pid = sandbox._launcher.pid
        servers["environ"] = open(f"/proc/{pid}/environ", "rb").read().decode()
        servers["descriptors"] = [os.readlink(f"/proc/{pid}/fd/{each}")
                                  for each in os.listdir(f"/proc/{pid}/fd")]
    print(json.dumps(servers))
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """Return a home directory outside of any workspace that everybody can enter."""
    made = Path(tempfile.mkdtemp(prefix="wink-keys-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def search_in(
    kind: str, home: Path, *, user: int | None = None, config: str = "{}"
) -> tuple[str, list[dict[str, list[str]]], dict[str, object]]:
    """Return the key, where commands found something like it, and the fork server's state."""
    key = f"wink-key-{secrets.token_hex(16)}"
    project, workspace = home / "project", home / "workspace"
    project.mkdir()
    workspace.mkdir()
    (home / ".config" / "wink").mkdir(parents=True)
    (home / ".config" / "wink" / "wink.toml").write_text(f'api_key = "{key}"\n')
    (project / ".env").write_text(f"ANTHROPIC_API_KEY={key}\n")
    (home / "key").write_text(key)
    if user is not None:
        for each in (home, *home.rglob("*")):
            os.chown(each, user, user)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            PARENT,
            kind,
            str(home),
            str(workspace),
            SEARCH,
            config,
            str(user or ""),
        ],
        env={"PATH": os.environ["PATH"], "HOME": str(home), "ANTHROPIC_API_KEY": key},
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *commands, servers = map(json.loads, done.stdout.splitlines())
    assert len(commands) == 2
    for code, _, err in commands:
        assert code == 0, err
    return key, [json.loads(out) for _, out, _ in commands], servers


def check_server(key: str, servers: dict[str, object]) -> None:
    assert servers["environ"] == ""
    assert "/key" not in str(servers["descriptors"])
    assert key not in str(servers)


@pytest.mark.parametrize("kind", ["bubblewrap", "landlock"])
@pytest.mark.parametrize("user", [None, pytest.param(NOBODY, marks=pytest.mark.root)])
def test_no_command_finds_a_key(kind: str, user: int | None, home: Path):
    key, found, servers = search_in(kind, home, user=user)
    assert found == [{}, {}]
    check_server(key, servers)


@pytest.mark.root  # the images of an ordinary user are in their home
def test_no_command_in_a_container_finds_a_key(home: Path, podman: PodmanSandboxConfig):
    config = json.dumps({"image": podman.image, "runtime": podman.runtime})
    _, found, _ = search_in("podman", home, config=config)
    assert found == [{}, {}]


def test_on_the_bare_host_it_is_at_least_not_handed_over(home: Path):
    """Files and processes of the same user are open there, as the documents say."""
    key, found, servers = search_in("local", home)
    for places in found:
        assert set(places) == {key}
        kinds = {each.split()[0] for each in places[key]}
        # what isolation has to prevent: the search finds it where nothing does
        assert {"memory", "socket"} < kinds
        assert {f"{home}/project/.env", f"{home}/.config/wink/wink.toml"} < kinds
        assert any(re.fullmatch(r"/proc/\d+/environ", each) for each in kinds)
        assert any(re.fullmatch(r"/proc/\d+/fd/\d+", each) for each in kinds)
        assert not {"environment", "descriptor"} & kinds
    check_server(key, servers)
