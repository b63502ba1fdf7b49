"""An import hook for workspaces that are copies: Python imports the copy, not its original.

A virtual environment outside the workspace may have an editable install of the original. It
cannot be changed, so every Python that a command starts loads a `sitecustomize` module, found by
`PYTHONPATH`, which makes the paths into the original lead to the copy.
"""

from pathlib import Path
from typing import Final

_NAME: Final = "sitecustomize.py"


def write_import_hook(directory: Path, *, original: str, copy: str) -> None:
    """Write the module for `PYTHONPATH`.

    Args:
        directory: Where to write it.
        original: The directory that the workspace is a copy of.
        copy: Where commands find the workspace.
    """
    text = f"ORIGINAL, COPY = {original!r}, {copy!r}\n{_HOOK}"
    (directory / _NAME).write_text(text, encoding="utf-8")


# for any Python 3; an error in it would be printed by every command
_HOOK = r'''
import os
import sys


def moved(path):
    """Return the path in the copy for one in the original; any other value as it is."""
    if isinstance(path, str) and path.startswith("/"):
        for each in (path, os.path.realpath(path)):  # a link may lead to the original
            if (each + "/").startswith(ORIGINAL + "/"):
                there = COPY + each[len(ORIGINAL):]
                # an environment may not be in the copy; what a command has removed stays removed
                return there if os.path.exists(there) or "/site-packages" not in there else path
    return path


def move_items(values):
    """Change the paths in a list, or in the values of a dictionary."""
    keys = range(len(values)) if isinstance(values, list) else list(values)
    for key in keys:
        if isinstance(values[key], (dict, list)):
            move_items(values[key])
        else:
            values[key] = moved(values[key])


def move_attributes(owner):
    for value in list(getattr(owner, "__dict__", {}).values()):
        if isinstance(value, (dict, list)):
            move_items(value)


def missing_entries(directory):
    """Return the paths in .pth files that site has left out, because they do not exist here."""
    for name in sorted(os.listdir(directory)):
        if name.endswith(".pth"):
            with open(os.path.join(directory, name), errors="surrogateescape") as lines:
                for line in lines:
                    path = moved(line.rstrip())
                    if path != line.rstrip() and os.path.isdir(path):
                        yield path


def redirect():
    sys.path[:] = [each for each in sys.path if os.path.abspath(each) != HERE]
    move_items(sys.path)
    for directory in list(sys.path):
        if os.path.basename(directory) in ("site-packages", "dist-packages"):
            try:
                sys.path += [each for each in missing_entries(directory) if each not in sys.path]
            except OSError:
                pass
    # the finders of editable installs
    for name, module in list(sys.modules.items()):
        if "editable" in name:
            move_attributes(module)
    for finder in sys.meta_path:
        if "editable" in getattr(finder, "__module__", "") + type(finder).__module__:
            move_attributes(finder)


def load_next():
    """Import the sitecustomize module that this one hides, if there is one."""
    own = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize
    except ImportError as error:
        if getattr(error, "name", None) != "sitecustomize":
            raise
    finally:
        if own is not None:
            sys.modules.setdefault("sitecustomize", own)


HERE = os.path.dirname(os.path.abspath(__file__))
redirect()
load_next()
'''
