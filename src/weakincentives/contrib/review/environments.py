"""Virtual environments in a working copy: their scripts and path entries lead to the copy.

A virtual environment knows its directory by absolute paths: in the first line of its scripts, in
`activate`, and in the files of editable installs. In a copy they would lead back to the original,
and tests would import its modules. Here they become relative, so that they are right wherever
the copy is, also inside a sandbox. Nothing outside the environments is changed, except for the
links that setuptools makes for a strict editable install.
"""

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from weakincentives.filesystem import BytesContent, Content, FileStat
from weakincentives.posix import parent_of

_MARKERS = frozenset({"pyvenv.cfg"})
_OTHER_MARKERS = frozenset({"CMakeCache.txt", "conda-meta"})
_LINK_TREE = "/__editable__."
_MAX_BYTES = 1024 * 1024
_IN_PACKAGES = re.compile(r"lib/[^/]+/(?:site|dist)-packages/[^/]+\.(pth|egg-link|py)")
_IN_PROGRAMS = re.compile(r"bin/[^/]+")
_REWRITTEN = re.compile(r"bin|lib/[^/]+/(?:site|dist)-packages")  # where these are
_SHEBANG = re.compile(r"#!(/\S*/(?:python|pypy)[\w.-]*)( [^\n]*)?\n")
# what pip and uv write if the path is too long for a first line, or has a space
_LONG_SHEBANG = re.compile(
    r"""#!/bin/sh\n'''exec' (["']?)(/[^\n]*/(?:python|pypy)[\w.-]*)\1 "\$0" "\$@"\n' '''\n"""
)
_ACTIVATED = re.compile(
    r"""^([ \t]*(?:export )?VIRTUAL_ENV=)(["']?)(/[^"'\n]*)\2[ \t]*$""", re.MULTILINE
)
_PLAIN = re.compile(r"[\w ./@+-]*")  # what a shell does not interpret inside quotes
_LITERAL = re.compile(r"""(?<![\w\\])(["'])(/[^"'\\\n]*)\1""")

Rewrite: TypeAlias = Callable[[str, str], str]


def find_fixed_paths(entries: Iterable[FileStat]) -> tuple[str, ...]:
    """Return the entries that name the original and cannot be made relative; sorted.

    They are caches of CMake and environments of conda.
    """
    return tuple(sorted(each.path for each in entries if _has_name(each, _OTHER_MARKERS)))


def _has_name(entry: FileStat, names: Iterable[str]) -> bool:
    return entry.link_target is None and entry.path.rpartition("/")[2] in names


class Relocation:
    """Makes absolute paths into the original relative, in the virtual environments of a copy."""

    def __init__(self, original: Path, entries: Iterable[FileStat]) -> None:
        """Find the environments among all entries of `original`, a path without links."""
        self._original = str(original)
        self._roots = sorted(
            {parent_of(each.path) for each in entries if _has_name(each, _MARKERS)}
        )

    def rewrite(self, entry: FileStat, content: Content) -> Content:
        """Return the content for a file of the copy."""
        root = self._find_root(entry.path) if self._roots else None
        if root is None or entry.size_bytes > _MAX_BYTES:
            return content
        rewrite = self._find_rewrite(entry.path[len(root) :].lstrip("/"))
        if rewrite is None:
            return content
        before = content.read(0, _MAX_BYTES)
        text = before.decode("utf-8", "surrogateescape")
        after = rewrite(entry.path, text).encode("utf-8", "surrogateescape")
        return content if after == before else BytesContent(after)

    def rewrites_in(self, directory: str) -> bool:
        """Return whether files that are directly in a directory may be rewritten."""
        root = self._find_root(f"{directory}/") if self._roots else None
        return root is not None and bool(_REWRITTEN.fullmatch(directory[len(root) :].lstrip("/")))

    def link_target(self, entry: FileStat) -> str:
        """Return the target for a link of the copy."""
        target = entry.link_target or ""
        if self._find_root(entry.path) is None and _LINK_TREE not in f"/{entry.path}":
            return target
        inside = self._inside(target)
        return target if inside is None else _relative(inside, entry.path)

    def _find_root(self, path: str) -> str | None:
        return next((each for each in self._roots if not each or path.startswith(f"{each}/")), None)

    def _find_rewrite(self, inside: str) -> Rewrite | None:
        if inside == "bin/activate":
            return self._rewrite_activate
        if _IN_PROGRAMS.fullmatch(inside):
            return self._rewrite_script
        found = _IN_PACKAGES.fullmatch(inside)
        if found is None:
            return None
        return self._rewrite_module if found[1] == "py" else self._rewrite_paths

    def _rewrite_script(self, path: str, text: str) -> str:
        """Let a script find the Python beside it, as uv does in relocatable environments."""
        found = _SHEBANG.match(text)
        program, options = ("", "") if found is None else (found[1], found[2] or "")
        if found is None:
            found = _LONG_SHEBANG.match(text)
            program = "" if found is None else found[2]
        inside = self._inside(program) if found is not None else None
        if found is None or inside is None:
            return text
        beside = _relative(inside, path)
        if not _PLAIN.fullmatch(beside):
            return text
        # a shell runs the second line; for Python it is a string
        line = f"""'''exec' "$(dirname -- "$(realpath -- "$0")")/{beside}"{options} "$0" "$@"\n"""
        return f"#!/bin/sh\n{line}' '''\n{text[found.end() :]}"

    def _rewrite_activate(self, path: str, text: str) -> str:
        """Let `activate` find its directory; without bash, from the top of the workspace."""

        def relocate(found: re.Match[str]) -> str:
            if self._inside(found[3]) is None or not _PLAIN.fullmatch(path):
                return found[0]
            place = f'"$(dirname -- "${{BASH_SOURCE:-./{path}}}")/.."'
            return f'{found[1]}"$(cd -- {place} && pwd)"'

        return _ACTIVATED.sub(relocate, text)

    def _rewrite_paths(self, path: str, text: str) -> str:
        """Make the lines of a `.pth` or `.egg-link` file relative to its directory."""
        lines = text.splitlines(keepends=True)
        for at, line in enumerate(lines):
            inside = self._inside(line.rstrip())
            if inside is not None:
                lines[at] = _relative(inside, path) + line[len(line.rstrip()) :]
        return "".join(lines)

    def _rewrite_module(self, path: str, text: str) -> str:
        """Replace paths in a module that finds the packages of an editable install."""
        if "editable" not in f"{PurePosixPath(path).name}{text[:2000]}".lower():
            return text

        def relocate(found: re.Match[str]) -> str:
            inside = self._inside(found[2])
            if inside is None:
                return found[0]
            place = f"__import__('os').path.join(__file__, '..', {_relative(inside, path)!r})"
            return f"__import__('os').path.normpath({place})"

        return _LITERAL.sub(relocate, text)

    def _inside(self, path: str) -> str | None:
        """Return the path in the workspace for an absolute path into the original, else None."""
        if not path.startswith("/") or "\0" in path:
            return None
        plain = Path(os.path.normpath(path))
        # a person may have come to the directory by a link
        real = f"{os.path.realpath(plain.parent)}/{plain.name}"
        for each in (str(plain), real, os.path.realpath(plain)):
            if each == self._original:
                return ""
            if each.startswith(f"{self._original}/"):
                return each[len(self._original) + 1 :]
        return None


def _relative(inside: str, path: str) -> str:
    """Return a path of the workspace, seen from the directory of the file at `path`."""
    return os.path.relpath(f"/{inside}", f"/{parent_of(path)}")
