"""A program for workers that breaks the protocol, or tries what a worker must not do."""

import ctypes
import json
import mmap
import os
import resource
import signal
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

MODULES = ()


def start(options: Mapping[str, Any]) -> None:
    """Start nothing."""


def evaluate(_: None, request: Mapping[str, Any], host: Any) -> dict[str, Any]:
    """Do what the code names."""
    return _ACTIONS[request["code"]](host)


def _send(host: Any, data: bytes) -> dict[str, Any]:
    host._connection.sendall(data)
    signal.pause()
    return {}


def _frame(message: object) -> bytes:
    data = json.dumps(message).encode()
    return struct.pack(">I", len(data)) + data


def _flood(host: Any) -> dict[str, Any]:
    while True:
        host._connection.sendall(_frame({"kind": "print", "text": "x"}))


def _flood_with_text(host: Any) -> dict[str, Any]:
    while True:
        host._connection.sendall(_frame({"kind": "print", "text": "x" * 100_000}))


def _call_forever(host: Any) -> dict[str, Any]:
    while True:
        host._connection.sendall(_frame({"kind": "call", "function": "exists", "arguments": ["."]}))
        host._connection.recv(65536)


def _attempt(action: Callable[[], Any]) -> str:
    try:
        action()
    except (OSError, ValueError) as error:  # of limits
        return type(error).__name__
    return "allowed"


def _try_all(_: Any) -> dict[str, Any]:
    libc = ctypes.CDLL(None, use_errno=True)
    attempts: dict[str, Callable[[], Any]] = {
        "open": lambda: os.open("/etc/passwd", os.O_RDONLY),
        "create": lambda: os.open("/tmp/wink-test", os.O_CREAT | os.O_WRONLY),
        "list": lambda: list(Path("/").iterdir()),
        "stat": lambda: Path("/etc").stat(),
        "attributes": lambda: os.listxattr("/etc"),
        "mkdir": lambda: Path("/tmp/wink-test").mkdir(),
        "fork": os.fork,
        "exec": lambda: os.execv("/bin/true", ["true"]),
        "socket": socket.socket,
        "unix socket": lambda: socket.socket(socket.AF_UNIX),
        "pair of datagram sockets": lambda: socket.socketpair(type=socket.SOCK_DGRAM),
        "kill": lambda: os.kill(os.getppid(), 0),
        "signal to itself": lambda: signal.pthread_kill(threading.get_ident(), 0),
        "raise limit": lambda: resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40)),
    }
    found = {name: _attempt(action) for name, action in attempts.items()}
    found["ptrace"] = "allowed" if libc.ptrace(16, os.getppid(), 0, 0) == 0 else "refused"
    found["descriptors"] = str([each for each in range(256) if _is_open(each)])
    watched = libc.inotify_add_watch(libc.inotify_init(), b"/etc", 1) >= 0
    found["inotify"] = "allowed" if watched else "refused"
    found["environment"] = str(set(os.environ) - {"LC_CTYPE"})  # which Python sets itself
    found["is session leader"] = str(os.getsid(0) == os.getpid())
    return {"globals": {name: json.dumps(value) for name, value in found.items()}}


def _is_open(descriptor: int) -> bool:
    try:
        os.get_inheritable(descriptor)
    except OSError:
        return False
    return True


def _use_memory(_: Any) -> dict[str, Any]:
    kept = []
    while True:
        kept.append(mmap.mmap(-1, 64 * 1024 * 1024))


def _exit(_: Any) -> dict[str, Any]:
    os._exit(3)


_ACTIONS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "garbage": lambda host: _send(host, b"\xff" * 4096),
    "endless frame": lambda host: _send(host, struct.pack(">I", 2**32 - 1)),
    "empty frame": lambda host: _send(host, struct.pack(">I", 0)),
    "not json": lambda host: _send(host, struct.pack(">I", 4) + b"\xff\xfe{["),
    "deep json": lambda host: _send(host, struct.pack(">I", 100_000) + b"[" * 100_000),
    "unknown kind": lambda host: _send(host, _frame({"kind": "pickle"})),
    "wrong types": lambda host: _send(host, _frame({"kind": "done", "outcome": {"globals": [1]}})),
    "no outcome": lambda host: _send(host, _frame({"kind": "done"})),
    "surrogate": lambda host: _send(host, _frame({"kind": "print", "text": "\ud800"})),
    "ready again": lambda host: _send(host, _frame({"kind": "ready", "pid": 1})),
    "half a frame": lambda host: _send(host, struct.pack(">I", 100) + b"{"),
    "flood": _flood,
    "flood of text": _flood_with_text,
    "calls": _call_forever,
    "exit": _exit,
    "memory": _use_memory,
    "attempts": _try_all,
    "large outcome": lambda _: {
        "value": "x" * 100_000,
        "globals": {f"x{number}": '"' + "y" * 1_000 + '"' for number in range(500)},
    },
    "unknown function": lambda host: {"value": repr(_error_of(host, "eval", "1"))},
    "wrong arguments": lambda host: {"value": repr(_error_of(host, "read_text"))},
}


def _error_of(host: Any, function: str, *arguments: str) -> str:
    try:
        return host.call(function, *arguments)
    except ValueError as error:
        return str(error)
