"""Warnings at the start of a run: what in the copy still leads to the original, and the fix."""

import os
from collections.abc import Iterator
from pathlib import Path

from weakincentives.cli.config import LOCAL_SANDBOX
from weakincentives.contrib.review import WorkingCopy
from weakincentives.posix import display_path

_ENVIRONMENTS = (".venv", "venv")
_CONTAINER = "podman"


def copy_warnings(copy: WorkingCopy, sandbox: str | None) -> Iterator[str]:
    """Yield a sentence for each thing that commands in this sandbox cannot use as it is."""
    if sandbox is None:
        return
    for name in _ENVIRONMENTS:
        if name in copy.external_links and _is_out_of_reach(copy, name, sandbox):
            yield (
                f"{name} is a link to outside the workspace, which commands cannot use: activate"
                " the environment before you start wink"
            )
        elif sandbox == _CONTAINER and (copy.root / name / "pyvenv.cfg").is_file():
            yield (
                f"{name} is not used: commands run in a container with a Python of its own;"
                " choose --sandbox bubblewrap, or an image with what the project needs: wink"
                " sandbox pull-image NAME, then set WEAKINCENTIVES_IMAGE=NAME"
            )
    for path in copy.fixed_paths:
        directory, _, name = path.rpartition("/")
        fix = (
            "move the environment out of the workspace, and activate it before you start wink"
            if name == "conda-meta"
            else "let the model configure the build again with cmake --fresh"
        )
        yield f"{display_path(directory or '.')} was made for the original directory: {fix}"


def _is_out_of_reach(copy: WorkingCopy, name: str, sandbox: str) -> bool:
    """Return whether commands cannot use the environment that a link leads to."""
    link = copy.original / name
    target = os.path.realpath(link)
    if sandbox == LOCAL_SANDBOX and link.is_symlink() and link.readlink().is_absolute():
        return False
    is_active = any(
        Path(os.path.realpath(each)).parent == Path(target) for each in os.get_exec_path()
    )
    return sandbox == _CONTAINER or not is_active
