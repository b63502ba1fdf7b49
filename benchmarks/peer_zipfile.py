"""Python's zipfile with its defaults: what a user would write to keep a workspace in a ZIP."""

import zipfile
from collections.abc import Mapping
from pathlib import Path


def write_zip(path: Path, files: Mapping[str, bytes]) -> int:
    """Write every file, deflated at the default level."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return len(files)


def read_zip(path: Path, prefix: str = "") -> dict[str, bytes]:
    """Read every file whose name begins with `prefix`; its checksum is compared."""
    with zipfile.ZipFile(path) as archive:
        return {
            name.removeprefix(prefix): archive.read(name)
            for name in archive.namelist()
            if name.startswith(prefix) and not name.endswith("/")
        }
