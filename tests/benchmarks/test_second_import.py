"""A second copy of the package, without one of its optional modules."""

import sys

import pytest

import weakincentives.filesystem as filesystem
from benchmarks.second_import import import_without, uses


def test_the_copy_is_another_package_and_works() -> None:
    copy = import_without("isal")
    assert copy is not filesystem
    fs = copy.InMemoryFilesystem()
    fs.write("a.txt", "one\n")
    assert fs.read("a.txt").content == "one\n"


def test_the_module_is_out_of_reach_of_the_copy_only() -> None:
    before = {name: module for name, module in sys.modules.items() if "msgspec" in name}
    with pytest.raises(ImportError, match="msgspec"):
        import_without("msgspec")
    assert {name: module for name, module in sys.modules.items() if "msgspec" in name} == before
    assert sys.modules["weakincentives.filesystem"] is filesystem


def test_what_the_package_uses_is_known() -> None:
    assert uses("msgspec")
    assert not uses("tkinter")
