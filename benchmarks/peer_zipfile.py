"""Python's zipfile: what a user would write to keep a workspace in a ZIP, plain and with checks."""

import hashlib
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

MANIFEST = "manifest.json"
MAX_BYTES = 4 << 30


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


def write_checked_zip(path: Path, files: Mapping[str, bytes]) -> int:
    """Write what an archive of ours has, by zipfile: sorted, level 1, hashes, atomic, synced."""
    hashes: dict[str, str] = {}
    hidden = path.with_name(f".{path.name}.tmp")
    with hidden.open("wb") as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name in sorted(files):
                hashes[name] = hashlib.sha256(files[name]).hexdigest()
                archive.writestr(zipfile.ZipInfo(name), files[name], zipfile.ZIP_DEFLATED, 1)
            archive.writestr(MANIFEST, json.dumps(hashes))
        file.flush()
        os.fsync(file.fileno())
    hidden.rename(path)
    return len(files)


def read_checked_zip(path: Path) -> dict[str, bytes]:
    """Read such an archive, believing nothing: names, sizes, checksums and hashes are compared."""
    found: dict[str, bytes] = {}
    with zipfile.ZipFile(path) as archive:
        entries = [each for each in archive.infolist() if each.filename != MANIFEST]
        if sum(each.file_size for each in entries) > MAX_BYTES:
            raise ValueError("too large")
        hashes = json.loads(archive.read(MANIFEST))
        for each in entries:
            name = PurePosixPath(each.filename)
            if name.is_absolute() or ".." in name.parts or each.filename in found:
                raise ValueError(f"bad name: {each.filename!r}")
            content = archive.read(each)
            if hashlib.sha256(content).hexdigest() != hashes.pop(each.filename):
                raise ValueError(f"damaged: {each.filename!r}")
            found[each.filename] = content
    if hashes:
        raise ValueError("entries are missing")
    return found
