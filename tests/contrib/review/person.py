"""A person who works in a directory, in a separate process, and remembers every save."""

import json
import os
import random
import shutil
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.posix.forks import in_a_child

NAMES = ["a", "b", "c", "d/e", "d/f", "g/h", "g/i/j", "new", "n/o"]
FOLDERS = ["d", "g", "g/i", "n", "moved"]
TOKEN = 24


class Person:
    """Saves, renames, creates and deletes at random, a step at a time or on and on."""

    def __init__(self, root: Path, seed: int) -> None:
        """Begin to work in `root` as soon as somebody asks for it."""
        self._ours, theirs = socket.socketpair()
        self._child = in_a_child(lambda: _Work(root, seed, theirs).run())
        theirs.close()

    def step(self) -> None:
        """Wait for one step: half of a save, for instance."""
        self._ours.sendall(b"1")
        assert self._ours.recv(1) == b"1"

    def go_on(self) -> None:
        """Let them work at the same time from now on."""
        self._ours.sendall(b"+")

    def stop(self) -> dict[str, str]:
        """Let them end what they do; return what they have saved last, by path."""
        self._ours.sendall(b"-")
        data = b""
        while more := self._ours.recv(65_536):
            data += more
        self._ours.close()
        os.waitpid(self._child, 0)
        saved: dict[str, str] = json.loads(data)
        return saved


class _Work:
    """What happens in the process of the person."""

    def __init__(self, root: Path, seed: int, orders: socket.socket) -> None:
        self._root = root
        self._choice = random.Random(seed)
        self._seed = seed
        self._orders = orders
        self._count = 0
        self._saved: dict[str, str] = {}

    def run(self) -> None:
        steps = self._steps()
        is_free = False
        while True:
            order = self._order(wait=not is_free)
            is_free = is_free or order == b"+"
            if order in {b"-", b""}:
                break
            next(steps)
            if order == b"1":
                self._orders.sendall(b"1")
        while next(steps) != "done":  # a save that was begun
            pass
        self._orders.sendall(json.dumps(self._saved).encode())

    def _order(self, *, wait: bool) -> bytes | None:
        self._orders.setblocking(wait)
        try:
            return self._orders.recv(1)
        except BlockingIOError:
            return None
        finally:
            self._orders.setblocking(True)

    def _steps(self) -> Iterator[str]:
        actions = [self._replace, self._write, self._patch, self._append, self._recreate]
        others = [self._delete, self._rename, self._rename_folder, self._delete_folder]
        while True:
            chosen = self._choice.choices([*actions, *others], [6, 6, 6, 3, 4, 3, 3, 1, 0.3])[0]
            with suppress(OSError):  # what cannot be done is not done
                yield from chosen()
            yield "done"

    def _path(self) -> str:
        return self._choice.choice(NAMES)

    def _token(self) -> str:
        self._count += 1
        return f"<{self._seed}.{self._count}>".ljust(TOKEN, ".")

    def _replace(self) -> Iterator[str]:
        """Save as most editors do: another file, renamed over the old one."""
        path, token = self._path(), self._token()
        draft = (self._root / path).with_name(".draft")
        draft.write_text(token)
        yield "written"
        draft.replace(self._root / path)
        self._saved[path] = token

    def _write(self) -> Iterator[str]:
        """Save in place: truncate, then write."""
        path, token = self._path(), self._token()
        yield from self._fill(path, "wb", token)

    def _patch(self) -> Iterator[str]:
        """Change the beginning of a file."""
        path, token = self._path(), self._token()
        yield from self._fill(path, "r+b", token)

    def _append(self) -> Iterator[str]:
        path, token = self._path(), self._token()
        if (self._root / path).exists():
            yield from self._fill(path, "ab", token)

    def _recreate(self) -> Iterator[str]:
        path, token = self._path(), self._token()
        (self._root / path).unlink(missing_ok=True)
        self._saved.pop(path, None)
        yield "unlinked"
        yield from self._fill(path, "xb", token)

    def _fill(self, path: str, mode: str, token: str) -> Iterator[str]:
        data = token.encode()
        with (self._root / path).open(mode, buffering=0) as file:
            yield "opened"
            file.write(data[:10])
            yield "begun"
            file.write(data[10:])
            yield "written"
        self._saved[path] = token

    def _delete(self) -> Iterator[str]:
        path = self._path()
        (self._root / path).unlink()
        self._saved.pop(path, None)
        yield "deleted"

    def _rename(self) -> Iterator[str]:
        source, target = self._path(), self._path()
        if source != target:
            (self._root / source).rename(self._root / target)
            self._move(source, target)
        yield "renamed"

    def _rename_folder(self) -> Iterator[str]:
        source, target = self._choice.sample(FOLDERS, 2)
        (self._root / source).rename(self._root / target)
        self._move(source, target)
        yield "renamed"

    def _delete_folder(self) -> Iterator[str]:
        path = self._choice.choice(FOLDERS)
        for each in [*self._saved]:
            if f"{each}/".startswith(f"{path}/"):
                del self._saved[each]
        shutil.rmtree(self._root / path)
        yield "deleted"

    def _move(self, source: str, target: str) -> None:
        moved = {
            target + path[len(source) :]: self._saved.pop(path)
            for path in [*self._saved]
            if f"{path}/".startswith(f"{source}/")
        }
        for each in [*self._saved]:
            if f"{each}/".startswith(f"{target}/"):
                del self._saved[each]  # renamed over
        self._saved |= moved
