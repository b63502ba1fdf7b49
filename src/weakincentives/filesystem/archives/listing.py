"""Every path of a state, in the order in which an archive holds them."""

from weakincentives.filesystem.archives.names import escape, is_plain
from weakincentives.filesystem.limits import check_time
from weakincentives.filesystem.paths import RESERVED_PREFIX
from weakincentives.filesystem.searchable import SearchableFilesystem


def listing(state: SearchableFilesystem) -> list[tuple[str, str, bool]]:
    """Return every path, escaped and plain, and whether something is below it.

    Sorted by the names in the ZIP, where those of directories end with a slash, and so do
    the escaped paths of directories here.
    """
    found: list[tuple[str, str, bool]] = []
    folders = [""]
    for directory in folders:
        check_time("Archive")
        files, directories, links = _names(state, directory)
        prefix = directory + "/" if directory else ""
        folders += [prefix + name for name in directories]
        if directory:
            is_parent = bool(files or directories or links)
            found.append((escape(directory) + "/", directory, is_parent))
        paths = [prefix + name for name in (*files, *links)]
        if is_plain("".join(paths)):
            found += [(path, path, False) for path in paths]
        else:
            found += [(escape(path), path, False) for path in paths]
    found.sort()
    return found


def _names(state: SearchableFilesystem, directory: str) -> list[list[str]]:
    """Return the names of files, directories and links in a directory."""
    try:
        groups = state._children(directory)[:3]  # pyright: ignore[reportPrivateUsage] # a state is read by its primitives
    except OSError:
        found = state._lookup(directory)  # pyright: ignore[reportPrivateUsage] # the same
        if found is not None and found.is_directory:
            raise
        return [[], [], []]  # gone since it was listed
    return [[name for name in group if not name.startswith(RESERVED_PREFIX)] for group in groups]
