"""Ways to save: what a person does to a project beside an agent, a step at a time.

Each way is a generator: whatever else happens in the project may happen between two of its steps.
A save counts from when its last byte is written, and has to be found from then on.
"""

import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from mmap import mmap
from pathlib import Path
from random import Random

from tests.safety.person.project import FILES, FOLDERS, HALF, WIDTH, text, top_line, with_top
from weakincentives.filesystem import ReadableFilesystem

ATTRIBUTE = "user.mine"


@dataclass(slots=True)
class Save:
    """Something that a person did, and what tells that it is still there."""

    way: str
    path: str
    token: bytes = b""
    permissions: int | None = None
    attribute: bytes = b""

    def is_at(self, path: Path) -> bool:
        """Return whether the file at a path has it."""
        try:
            if self.permissions is not None:
                return stat.S_IMODE(path.lstat().st_mode) == self.permissions
            if self.attribute:
                return os.getxattr(path, ATTRIBUTE, follow_symlinks=False) == self.attribute
            return self.token in path.read_bytes()
        except OSError:
            return False

    def is_in(self, files: ReadableFilesystem) -> bool:
        """Return whether a state has it at its path; no state has extended attributes."""
        if self.attribute or not files.exists(self.path):
            return False
        if self.permissions is not None:
            return files.stat(self.path).permissions == self.permissions
        return self.token in files.read_bytes(self.path).content


@dataclass(slots=True)
class Person:
    """Saves in the files of a project, each time with a token that nobody else writes."""

    root: Path
    choice: Random
    targets: tuple[str, ...] = FILES
    folders: tuple[str, ...] = FOLDERS
    saves: list[Save] = field(default_factory=list[Save])
    _count: int = 0
    _taken: set[str] = field(default_factory=set[str])

    def begin(self, way: str) -> Iterator[None]:
        """Begin to save; each step of the result does a part of it, until it is done."""
        with suppress(OSError):  # what cannot be done is not done
            yield from WAYS[way](self)

    def word(self) -> str:
        """Return a word that nobody else writes."""
        self._count += 1
        return f"{self.choice.getrandbits(40)}.{self._count}"

    def file(self, folder: str = "") -> str:
        """Return a file to save, another one each time: no save replaces another."""
        names = [each for each in self.targets if each.startswith(folder)]
        names = [each for each in names if (self.root / each).exists()] or names
        left = [each for each in names if each not in self._taken] or names
        chosen = self.choice.choice(left)
        self._taken.add(chosen)
        return chosen

    def folder(self) -> str:
        """Return a directory with files in it."""
        used = [
            each for each in self.folders if any(t.startswith(f"{each}/") for t in self.targets)
        ]
        return self.choice.choice(used)

    def read(self, path: str) -> str:
        """Return what is in a file; nothing if there is none."""
        try:
            return (self.root / path).read_text()
        except (OSError, UnicodeDecodeError):
            return ""

    def done(self, way: str, path: str, word: str) -> None:
        """Remember a save that is complete."""
        self.saves.append(Save(way, path, f"<{word}>".encode()))


def rename_over(person: Person) -> Iterator[None]:
    """Write another file, and rename it over the old one, as most editors do."""
    path, word = person.file(), person.word()
    draft = (person.root / path).with_name(f".draft-{word}")
    draft.write_text(with_top(person.read(path), path, word))
    yield
    try:
        draft.replace(person.root / path)
    except OSError:
        draft.unlink()
        raise
    person.done("rename over", path, word)


def truncate_and_write(person: Person) -> Iterator[None]:
    """Empty the file, and write it again."""
    path, word = person.file(), person.word()
    data = with_top(person.read(path), path, word).encode()
    with (person.root / path).open("wb", buffering=0) as file:
        yield
        file.write(data[:HALF])
        yield
        file.write(data[HALF:])
    person.done("truncate and write", path, word)


def append(person: Person) -> Iterator[None]:
    """Open a file, and add a line to it later."""
    path, word = person.file(), person.word()
    descriptor = os.open(person.root / path, os.O_WRONLY | os.O_APPEND)
    try:
        yield
        os.write(descriptor, f"{top_line(word)}\n".encode())
    finally:
        os.close(descriptor)
    person.done("append", path, word)


def store_in_map(person: Person) -> Iterator[None]:
    """Map a file, and store in its memory: no time of the file changes."""
    path, word = person.file(), person.word()
    with (person.root / path).open("r+b") as file, mmap(file.fileno(), 0) as memory:
        yield
        memory[:WIDTH] = top_line(word).encode()
    person.done("mmap", path, word)


def swap_file(person: Person) -> Iterator[None]:
    """Rename the file to a backup, write it again, remove the backup, as vim does."""
    path, word = person.file(), person.word()
    target = person.root / path
    backup = target.with_name(f"{target.name}~")
    data = with_top(person.read(path), path, word)
    target.rename(backup)
    yield
    with target.open("w") as file:
        file.write(data)
    person.done("swap file", path, word)
    yield
    backup.unlink()


def git_checkout(person: Person) -> Iterator[None]:
    """Take a file from another commit."""
    path = person.file()
    word = _commit(person, path)
    yield
    _git(person.root, "checkout", "-q", "mine", "--", path)
    person.done("git checkout", path, word)


def make_directory(person: Person) -> Iterator[None]:
    """Remove an empty directory, make one and put a file into it."""
    with suppress(OSError):
        (person.root / "empty").rmdir()
    folder, word = person.folder(), person.word()
    made = person.root / folder / f"mine-{word}"
    made.mkdir()
    yield
    path = f"{folder}/{made.name}/note.txt"
    (person.root / path).write_text(text(path, word))
    person.done("mkdir", path, word)


def change_mode(person: Person) -> Iterator[None]:
    """Change the permissions of a file."""
    path, mode = person.file(), person.choice.choice([0o640, 0o664, 0o755])
    yield
    (person.root / path).chmod(mode)
    person.saves.append(Save("chmod", path, permissions=mode))


def set_attribute(person: Person) -> Iterator[None]:
    """Set an extended attribute."""
    path, word = person.file(), person.word().encode()
    yield
    os.setxattr(person.root / path, ATTRIBUTE, word, follow_symlinks=False)
    person.saves.append(Save("xattr", path, attribute=word))


def rename_away_and_back(person: Person) -> Iterator[None]:
    """Rename a directory, save in it, and rename it back."""
    folder = person.folder()
    path, word = person.file(f"{folder}/"), person.word()
    away = person.root / f"{folder}-away-{word}"
    (person.root / folder).rename(away)
    yield
    with suppress(OSError):
        inside = away / path.removeprefix(f"{folder}/")
        draft = inside.with_name(f".draft-{word}")
        draft.write_text(text(path, word))
        draft.replace(inside)
        person.done("rename away and back", path, word)
    yield
    away.rename(person.root / folder)


def swap_link_and_directory(person: Person) -> Iterator[None]:
    """Put a link in the place of a directory, save through it, and swap back."""
    folder = person.folder()
    path, word = person.file(f"{folder}/"), person.word()
    link, real = person.root / folder, person.root / f"{folder}-real-{word}"
    link.rename(real)
    link.symlink_to(real.name)
    yield
    with suppress(OSError):
        (person.root / path).write_text(text(path, word))
        person.done("link and directory", path, word)
    yield
    if link.is_symlink():
        link.unlink()
    real.rename(link)


WAYS: dict[str, Callable[[Person], Iterator[None]]] = {
    "rename over": rename_over,
    "truncate and write": truncate_and_write,
    "append": append,
    "mmap": store_in_map,
    "swap file": swap_file,
    "git checkout": git_checkout,
    "mkdir": make_directory,
    "chmod": change_mode,
    "xattr": set_attribute,
    "rename away and back": rename_away_and_back,
    "link and directory": swap_link_and_directory,
}


def make_repository(root: Path) -> None:
    """Make the project a repository with one commit."""
    _git(root, "init", "-q", "-b", "main")
    # those who commit in it need not have told git who they are
    _git(root, "config", "user.name", "x")
    _git(root, "config", "user.email", "x@example.org")
    _git(root, "add", "-A")
    _git(root, "commit", "-qm", "first")


def _commit(person: Person, path: str) -> str:
    """Commit another text of a file as `mine`, without touching the directory."""
    word = person.word()
    blob = _git(person.root, "hash-object", "-w", "--stdin", given=text(path, word)).strip()
    index = {"GIT_INDEX_FILE": str(person.root / ".git" / "mine.index")}
    _git(person.root, "read-tree", "HEAD", **index)
    _git(person.root, "update-index", "--add", "--cacheinfo", f"100644,{blob},{path}", **index)
    tree = _git(person.root, "write-tree", **index).strip()
    commit = _git(person.root, "commit-tree", "-p", "HEAD", "-m", "mine", tree).strip()
    _git(person.root, "update-ref", "refs/heads/mine", commit)
    return word


def _git(root: Path, *arguments: str, given: str = "", **environment: str) -> str:
    program = shutil.which("git")
    assert program is not None
    command = [program, "-c", "user.name=x", "-c", "user.email=x@example.org", *arguments]
    done = subprocess.run(
        command,
        cwd=root,
        input=given,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise OSError(done.stderr)
    return done.stdout
