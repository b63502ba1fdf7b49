"""The figures about the source tree."""

from pathlib import Path

from scripts.shape import Tree, class_checks

FILESYSTEM = """
from typing import Protocol

class Movable(Protocol): ...
class HostFilesystem: ...
class ReadableFilesystem(HostFilesystem): ...
"""
CALLER = """
def run(fs, other):
    if isinstance(fs, Movable):
        return isinstance(other, HostFilesystem)
    return isinstance(fs, (Movable, ReadableFilesystem)) or isinstance(fs, OtherFilesystem)
"""


def test_only_checks_on_classes_count(tmp_path: Path):
    package = tmp_path / "weakincentives"
    (package / "filesystem").mkdir(parents=True)
    (package / "filesystem" / "base.py").write_text(FILESYSTEM)
    (package / "filesystem" / "use.py").write_text(CALLER)
    (package / "caller.py").write_text(CALLER)
    assert class_checks(Tree(package)) == ["weakincentives.caller:4", "weakincentives.caller:5"]
