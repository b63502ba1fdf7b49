"""Generated directory trees of every odd kind, each from a seed."""

import os
import random
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias


class File(NamedTuple):
    """A file to be made."""

    content: bytes
    mode: int = 0o644


class Link(NamedTuple):
    """A symbolic link to be made."""

    target: bytes


class Directory(NamedTuple):
    """A directory to be made."""

    children: "dict[bytes, Node]"
    mode: int = 0o755


Node: TypeAlias = File | Link | Directory
Children: TypeAlias = dict[bytes, Node]

PLAIN = [b"a", b"b", b"c.txt", b"src", b"x.py", b"d"]
RESERVED = [
    *(b".git", b".GIT", b".Git", b"git~1", b"GIT~2", b".git ", b".git.", b".git . ."),
    *(b".git\xe2\x80\x8c", b".g\xe2\x80\x8dit", b"\xef\xbb\xbf.git", b".git::$INDEX_ALLOCATION"),
    *(b".git\xff", b".gitmodules", b".GITMODULES", b".gitmodules\xe2\x80\x8e", b"gitmod~1"),
    *(b"gi7eba~1", b"GI7EB~1", b".gitattributes", b".GitAttributes ", b"gitatt~1", b".gitignore"),
    *(b".gitignore.", b"gitign~1", b".mailmap", b".MAILMAP", b"maba30~1", b"~1", b"a~9"),
    *(b"HEAD", b"objects", b"refs", b"config", b"index.lock", b"manifest.json", b"files"),
    *(b"wink.json", b".gitconfig", b".git-rewrite", b".gitx", b"..git", b".git\\x"),
]
ODD = [
    *(b"a b", b"\xff\xfe", b"a\nb", b"\x1b[31mred", b"\x01", b"\x7f", b"\t", b" ", b" a ", b"a."),
    *(b"a%", b"%41", b"%2Egit", b"%25", b"\\", b"a\\b", b"a:b", b"CON", b"nul.txt", b"COM\xc2\xb9"),
    *(b"-rf", b"--help", b"@{u}", b"@x", b"*", b"?", b"[a]", b"{a,b}", b'"', b"'", b"$(id)"),
    *(b"`id`", b"a;b", b"~", b"...", b"..a", b"#", b"!x", b"\xc3\xa9", b"e\xcc\x81", b"\xc3"),
    *("\u202egnp.exe".encode(), "x\u200by".encode(), "\ud800".encode("utf-8", "surrogatepass")),
    *("\U0001f600".encode(), "\u212a".encode(), b"K", b"k", b"A", b"n" * 255, b"\xc3\xa9" * 127),
    *(b".git" + b"\xe2\x80\x8c" * 83, b"%" * 255, b"\r", b"a\r\n"),
]
TEXTS = [
    *(b"", b"one\n", b"no newline", b"a\r\nb\r\n", b"mixed\r\nends\n", b"$Id$\n", b"$Id: 1234 $\n"),
    *("\ufeffbom\n".encode(), "utf-16\r\n".encode("utf-16"), b"\0binary\0", b"gitdir: ../away\n"),
    *(b"ref: refs/heads/main\n", b"<<<<<<< HEAD\n=======\n>>>>>>> x\n", b"\xff" * 7, b" \n\t\n"),
    *(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", b"blob 3\0abc"),
]
ATTRIBUTES = [
    b"* text=auto eol=crlf\n",
    b"* text eol=lf\n*.c ident\n",
    b"* filter=evil diff=evil merge=evil\n",
    b"* working-tree-encoding=UTF-16LE-BOM text\n",
    b"* -diff export-subst export-ignore\n[attr]binary -text\n",
    b"* text eol=crlf ident filter=evil working-tree-encoding=UTF-16\n",
]
CONFIG = b"""
[core]
\thooksPath = %(canary)s
\tfsmonitor = touch %(canary)s
\tautocrlf = true
\tsafecrlf = true
\tattributesFile = ../.gitattributes
\texcludesFile = ../.gitignore
\tsshCommand = touch %(canary)s
\tworktree = /
[filter "evil"]
\tclean = touch %(canary)s; rev
\tsmudge = touch %(canary)s; rev
\trequired = true
[diff "evil"]
\ttextconv = touch %(canary)s; rev
[commit]
\tgpgSign = true
[gpg]
\tprogram = touch %(canary)s
[credential]
\thelper = "!touch %(canary)s"
[include]
\tpath = ../.gitattributes
"""
MODULES = [
    b'[submodule "x"]\n\tpath = x\n\turl = -u./payload\n\tupdate = !touch evil\n',
    b'[submodule "../../modules/x"]\n\tpath = ../x\n\turl = ext::sh -c evil\n',
]
FILE_MODES = [
    *(0o644, 0o644, 0o644, 0o644, 0o755, 0o755, 0o600, 0o700, 0o444, 0o555, 0o400, 0o777),
    *(0o000, 0o200, 0o111, 0o4755, 0o2755, 0o1644),
]
DIRECTORY_MODES = [
    *(0o755, 0o755, 0o755, 0o755, 0o700, 0o555, 0o500, 0o777, 0o750),
    *(0o000, 0o1777, 0o2755, 0o300, 0o600),
]


class Repositories(NamedTuple):
    """What git itself makes, to be put into trees."""

    with_commits: Children
    without_commits: Children

    @classmethod
    def made_in(cls, directory: Path, canary: Path) -> "Repositories":
        """Let git make one repository with a commit and a submodule, and an empty one."""
        full, empty = directory / "full", directory / "empty"
        environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
        environment |= {f"GIT_{who}_NAME": "a" for who in ("AUTHOR", "COMMITTER")}
        environment |= {f"GIT_{who}_EMAIL": "a@example.org" for who in ("AUTHOR", "COMMITTER")}
        for path in (full, empty):
            _git(environment, "init", "-q", "--template=", "--initial-branch=main", str(path))
        (full / "lib.py").write_bytes(b"nested\r\n")
        (full / "deep").mkdir()
        (full / "deep" / "x").write_bytes(b"$Id$\n")
        _git(environment, "-C", str(full), "add", "-A")
        _git(environment, "-C", str(full), "commit", "-q", "-m", "first")
        hook = File(f"#!/bin/sh\ntouch {canary}\n".encode(), 0o755)
        hooks = Directory(dict.fromkeys((b"post-checkout", b"pre-commit"), hook))
        made: list[Children] = []
        for path in (full, empty):
            children = _read(path)
            inner = children[b".git"]
            assert isinstance(inner, Directory)
            config = inner.children[b"config"]
            assert isinstance(config, File)
            more = CONFIG % {b"canary": os.fsencode(canary)}
            changed = inner.children | {b"hooks": hooks, b"config": File(config.content + more)}
            made.append(children | {b".git": Directory(changed)})
        return cls(*made)


def _git(environment: dict[str, str], *arguments: str) -> None:
    subprocess.run(["git", *arguments], check=True, env=environment, stdout=subprocess.DEVNULL)


def _read(path: Path) -> Children:
    return {
        os.fsencode(each.name): Directory(_read(each))
        if each.is_dir()
        else File(each.read_bytes(), each.stat().st_mode & 0o777)
        for each in path.iterdir()
    }


class Trees:
    """Makes trees from numbers, the same ones every time."""

    def __init__(
        self, repositories: Repositories, outside: Path, *, is_readable: bool = False
    ) -> None:
        """Use repositories that git has made; some links lead `outside`.

        With `is_readable`, an ordinary user may read and write everything, as root may.
        """
        self._repositories = repositories
        self._outside = os.fsencode(outside)
        self._added = 0o700 if is_readable and os.geteuid() else 0  # for the owner

    def tree(self, choice: random.Random) -> Children:
        """Return what is to be in a workspace."""
        parts: list[Callable[[random.Random], Children]] = [
            self._ignored,
            self._attributes,
            self._modules,
            self._nested,
            self._own_repository,
            self._reserved,
            self._odd,
            self._links,
            self._modes,
            self._deep,
            self._sizes,
        ]
        children = self.some(choice, 2)
        for part in choice.sample(parts, choice.randint(1, 3)):
            children |= part(choice)
        return children

    def some(self, choice: random.Random, depth: int) -> Children:
        """Return a few entries of any name and kind."""
        names = choice.sample(choice.choice([PLAIN, RESERVED, ODD]), choice.randint(0, 4))
        return {name: self.node(choice, depth) for name in names}

    def node(self, choice: random.Random, depth: int) -> Node:
        """Return something."""
        kind = choice.random()
        if depth and kind < 0.35:
            return Directory(self.some(choice, depth - 1), self._directory_mode(choice))
        return self._link(choice) if kind < 0.5 else self._file(choice)

    def mode(self, choice: random.Random, old: int) -> int:
        """Return other permissions for a file or a directory."""
        return self._directory_mode(choice) if stat.S_ISDIR(old) else self._file_mode(choice)

    def _file(self, choice: random.Random) -> File:
        return File(choice.choice(TEXTS), self._file_mode(choice))

    def _file_mode(self, choice: random.Random) -> int:
        return choice.choice(FILE_MODES) | self._added & 0o600

    def _directory_mode(self, choice: random.Random) -> int:
        return choice.choice(DIRECTORY_MODES) | self._added

    def _link(self, choice: random.Random) -> Link:
        targets = [b"a", b".", b"..", b"loop", b"/etc/passwd", b"/", b"../../x", b"gone", b".git"]
        targets += [self._outside, self._outside + b"/secret", b"\xff\n", b"t" * 4_000, b"a/"]
        return Link(choice.choice(targets))

    def _ignored(self, choice: random.Random) -> Children:
        return {
            b".gitignore": File(b"*\n!.gitignore\n" if choice.random() < 0.5 else b"*.log\nout/\n"),
            b"x.log": File(b"ignored"),
            b"out": Directory({b"o": self._file(choice), b".gitignore": File(b"*")}),
        }

    def _attributes(self, choice: random.Random) -> Children:
        names = choice.sample([b"a.c", b"b.txt", b"c.bin", b"d.utf16"], 3)
        children: Children = {name: self._file(choice) for name in names}
        inner = children | {b".gitattributes": File(choice.choice(ATTRIBUTES))}
        return inner | {b"below": Directory(children)}

    def _modules(self, choice: random.Random) -> Children:
        kinds: list[Node] = [File(choice.choice(MODULES)), Link(b"/etc/passwd"), Directory({})]
        dot_git = File(b"gitdir: ../../.git/modules/x\n")
        sub = Directory({b".git": dot_git, b"f": self._file(choice)})
        return {b".gitmodules": choice.choice(kinds), b"x": sub, b".gitattributes": Link(b"/x")}

    def _nested(self, choice: random.Random) -> Children:
        made = dict(choice.choice(self._repositories))
        inner = made[b".git"]
        assert isinstance(inner, Directory)
        if choice.random() < 0.3:
            return {b"bare.git": inner}
        return {choice.choice([b"vendor", b"lib", b".git"]): Directory(made)}

    def _own_repository(self, choice: random.Random) -> Children:
        return dict(choice.choice(self._repositories))

    def _reserved(self, choice: random.Random) -> Children:
        return {name: self.node(choice, 1) for name in choice.sample(RESERVED, 8)}

    def _odd(self, choice: random.Random) -> Children:
        return {name: self.node(choice, 1) for name in choice.sample(ODD, 8)}

    def _links(self, choice: random.Random) -> Children:
        links: Children = {b"l%d" % number: self._link(choice) for number in range(4)}
        return links | {b"loop": Link(b"loop"), b"pair": Link(b"riap"), b"riap": Link(b"pair")}

    def _modes(self, choice: random.Random) -> Children:
        added = self._added & 0o600
        files: Children = {b"%o" % mode: File(b"m", mode | added) for mode in FILE_MODES}
        few: Children = {b"f": File(b"m")}
        return {
            b"m%o" % mode: Directory(files if mode == 0o755 else few, mode | self._added)
            for mode in choice.sample(DIRECTORY_MODES, 4)
        }

    def _deep(self, choice: random.Random) -> Children:
        name = choice.choice([b"d", b"n" * 150, b".git", b"\xff"])
        node: Node = self._file(choice)
        for _ in range(35):
            node = Directory({name: node}, self._directory_mode(choice))
        return {b"deep": node}

    def _sizes(self, choice: random.Random) -> Children:
        sizes = choice.sample([0, 1, 2, 511, 4_095, 4_096, 8_192, 8_193, 65_537, 200_000], 4)
        return {b"s%d" % size: File(choice.randbytes(size), 0o644) for size in sizes}
