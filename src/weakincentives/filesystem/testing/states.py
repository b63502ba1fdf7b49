"""Whole states, to lay out, to change beyond recognition and to compare."""

from typing import TypeAlias

from weakincentives.filesystem import Filesystem, Kind, ReadableFilesystem

EVERY_BYTE = bytes(range(256)) * 20
NAMES = (
    ".git", ".GIT", "git~1", ".gitignore", ".gitattributes", ".gitmodules", "HEAD", "manifest.json",
    "files", "-rf", "--", "a b", "a\\b", "a:b", "%41", "%", "CON", "...", "..a", "a.", "*", "[x]",
    "~", "$HOME", "'", '"', "é", "日本語", "😀.txt", "n" * 80,
)  # fmt: skip
"""Names that the protocol creates, and that git, ZIP or a shell could take for something else."""
STRANGE_NAMES = (
    "bell\a", "new\nline", " blank", "blank ", "e\u0301", "zero\u200bwidth", "\u202eright",
    "\ufeffmark", "byte\udcff", "n" * 200,
)  # fmt: skip
"""Names that the protocol does not create, and that a disk can hold."""

State: TypeAlias = dict[str, tuple[Kind, int, bytes | str | None]]


def state_of(fs: Filesystem | ReadableFilesystem) -> State:
    """Return everything in `fs`: kind, permissions, and bytes or the target, by path."""
    found: State = {}
    pending = ["."]
    while pending:
        for entry in fs.list(pending.pop()):
            stat = fs.stat(entry.path)
            content = fs.read_bytes(entry.path).content if entry.is_file else stat.link_target
            found[entry.path] = (entry.kind, stat.permissions, content)
            if entry.is_directory:
                pending.append(entry.path)
    return found


def tree_in(state: State) -> dict[str, object]:
    """Return a state without its permissions."""
    return {path: (kind, content) for path, (kind, _, content) in state.items()}


def plant(fs: Filesystem) -> None:
    """Lay out a state with something of everything."""
    fs.write("README.md", "# Read me")
    fs.write("src/main.py", "print()\r\n")
    fs.write_bytes("src/data.bin", EVERY_BYTE)
    fs.write("src/nothing", "")
    fs.write(".gitignore", "*\n")
    fs.write(".gitattributes", "* text eol=crlf filter=none\n")
    fs.write("vendor/.git/HEAD", "ref: refs/heads/main")
    fs.mkdir("empty/below")


def spoil(fs: Filesystem) -> None:
    """Change what `plant` laid out: content, kinds, what is there and what is not."""
    fs.write("README.md", "# Red me?")
    fs.write("src/main.py", "exit()\n", mode="append")
    fs.delete("src/data.bin")
    fs.mkdir("src/data.bin")
    fs.delete("vendor", recursive=True)
    fs.write("vendor", "a file now")
    fs.delete("empty", recursive=True)
    fs.delete(".gitignore")
    fs.write("new/deep/file", "new")
    fs.mkdir("new/empty")
