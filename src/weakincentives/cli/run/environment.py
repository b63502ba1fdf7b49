"""What the model is told about its surroundings: system, date, Python, git and the top of the tree.

Names of branches and files are data: they are quoted, and bounded in number.
"""

import platform
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from weakincentives.cli.run.repository import RepositoryState, read_repository
from weakincentives.contrib.digest.budget import count, quote_path
from weakincentives.filesystem import Filesystem
from weakincentives.posix import read_regular
from weakincentives.prompt import MarkdownSection
from weakincentives.runtime import Clock
from weakincentives.sandbox.system_paths import find_environment

_MAX_CHANGES = 20
_MAX_NAMES = 60
_MAX_CONFIG = 64 * 1024
_VERSION = re.compile(r"^version(?:_info)?\s*=\s*(\d[\w.+-]{0,30})\s*$", re.MULTILINE)


def environment_section(
    original: Path,
    filesystem: Filesystem,
    clock: Clock,
    environment: Mapping[str, str],
    *,
    sandbox: str | None,
    has_digest: bool,
) -> MarkdownSection[None]:
    """Return a section about the surroundings of a run.

    Args:
        original: The directory that the user works in; its repository is described.
        filesystem: The workspace.
        clock: Tells the date.
        environment: The environment variables.
        sandbox: Where commands run; None if the model cannot run any.
        has_digest: Whether the prompt has a digest, which shows the tree.
    """
    lines = [f"System: {_describe_system(sandbox)}", f"Date: {clock.now():%Y-%m-%d}"]
    if sandbox != "podman":  # an image has its own
        lines.append(f"Python: {_describe_python(original)}")
    state = read_repository(original, environment)
    if state is not None:
        lines += _describe_repository(state)
    if not has_digest:
        lines += _describe_tree(filesystem)
    text = "\n".join(lines)
    return MarkdownSection[None](
        title="Environment", key="environment", template=text.replace("$", "$$")
    )


def _describe_system(sandbox: str | None) -> str:
    system, machine = platform.system(), platform.machine()
    if sandbox == "podman":
        return f"{system}, {machine}; commands run in a container"
    try:
        name = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        name = ""
    return ", ".join(filter(None, (f"{system} {platform.release()}", name, machine)))


def _describe_python(workspace: Path) -> str:
    """Return the version of the workspace's virtual environment, or else of the user's Python."""
    name = find_environment(str(workspace))
    if name is not None:
        try:
            data = read_regular(workspace / name / "pyvenv.cfg", _MAX_CONFIG)
        except OSError:
            data = b""
        version = _VERSION.search(data.decode("utf-8", "replace"))
        if version is not None:
            return f"{version[1]} in {name}/"
    return platform.python_version()


def _describe_repository(state: RepositoryState) -> Iterator[str]:
    branch = "no branch" if state.branch is None else f"branch {quote_path(state.branch)}"
    commit = "no commit yet" if state.commit is None else f"commit {state.commit}"
    if state.changes is None:
        yield f"Git: {branch}, {commit}"
        return
    number = len(state.changes)
    changed = f"{count(number, 'path')} changed before you started:" if number else "no changes"
    yield f"Git: {branch}, {commit}, {changed}"
    for each in state.changes[:_MAX_CHANGES]:
        yield f"  {each[:2]} {quote_path(each[3:])}"
    if number > _MAX_CHANGES:
        yield f"  and {number - _MAX_CHANGES:,} more"


def _describe_tree(filesystem: Filesystem) -> Iterator[str]:
    try:
        entries = filesystem.list(".")
    except OSError:
        return
    names = [f"{quote_path(each.name)}{'/' * each.is_directory}" for each in entries]
    more = f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
    if names:
        yield f"Top of the tree: {' '.join(names[:_MAX_NAMES])}{more}"
