"""Every operation of a filesystem as a function of one path, for tables of attacks."""

from collections.abc import Callable

from weakincentives.filesystem import BaseFilesystem

Operation = Callable[[BaseFilesystem, str], object]

READING: dict[str, Operation] = {
    "read": lambda fs, path: fs.read(path),
    "read_bytes": lambda fs, path: fs.read_bytes(path),
    "stat": lambda fs, path: fs.stat(path),
    "content_hash": lambda fs, path: fs.content_hash(path),
    "list": lambda fs, path: fs.list(path),
    "glob": lambda fs, path: fs.glob("**", path=path),
    "grep": lambda fs, path: fs.grep(".", path=path),
}

WRITING: dict[str, Operation] = {
    "write": lambda fs, path: fs.write(path, "written"),
    "write_create": lambda fs, path: fs.write(path, "written", mode="create"),
    "write_append": lambda fs, path: fs.write(path, "written", mode="append"),
    "write_without_parents": lambda fs, path: fs.write(path, "written", create_parents=False),
    "write_bytes": lambda fs, path: fs.write_bytes(path, b"written"),
    "mkdir": lambda fs, path: fs.mkdir(path),
    "mkdir_without_parents": lambda fs, path: fs.mkdir(path, parents=False),
    "delete": lambda fs, path: fs.delete(path),
    "delete_recursive": lambda fs, path: fs.delete(path, recursive=True),
    "move_from": lambda fs, path: fs.move(path, "moved"),
    "move_to": lambda fs, path: fs.move("a/f.txt", path, overwrite=True),
    "move_directory_to": lambda fs, path: fs.move("a", path),
    "copy_from": lambda fs, path: fs.copy(path, "copied"),
    "copy_to": lambda fs, path: fs.copy("a/f.txt", path, overwrite=True),
    "copy_directory_to": lambda fs, path: fs.copy("a", path),
}

OPERATIONS = READING | WRITING


def outcome(operation: Operation, fs: BaseFilesystem, path: str) -> object:
    """Return what an operation returned, or the OSError or ValueError that it raised."""
    try:
        return operation(fs, path)
    except (OSError, ValueError) as error:
        return error
