"""The suites themselves: what they reject, and their messages when something is missing."""

import subprocess
import sys
from abc import ABC
from collections.abc import Callable
from pathlib import Path

import pytest

from weakincentives.extras import describe_missing
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.filesystem.testing import (
    ConformanceSuite,
    FilesystemProtocolTests,
    QuotaTests,
    ReadOnlyTests,
    SpecialFileTests,
)


def nothing() -> Callable[[object], None]:
    """Return a new test that passes; not a lambda, which pytest does not mark."""

    def test(self: object) -> None:
        pass

    return test


def test_a_replaced_test_is_refused():
    with pytest.raises(TypeError, match="test_a_write_replaces_the_content"):

        class Lenient(FilesystemProtocolTests):  # pyright: ignore[reportUnusedClass] # it is refused
            def test_a_write_replaces_the_content(self, fs: Filesystem) -> None:
                pass


def test_a_test_replaced_by_nothing_is_refused():
    with pytest.raises(TypeError, match="xfail"):
        type("Lenient", (FilesystemProtocolTests,), {"test_a_write_replaces_the_content": None})


def test_a_test_replaced_by_a_class_before_the_suite_is_refused():
    class Before:
        def test_a_write_replaces_the_content(self) -> None:
            pass

    with pytest.raises(TypeError, match="test_a_write_replaces_the_content"):
        type("Lenient", (Before, FilesystemProtocolTests), {})


@pytest.mark.parametrize(
    "mark",
    [
        pytest.mark.skip(reason="later"),
        pytest.mark.skipif(True, reason="later"),
        pytest.mark.xfail,
        pytest.mark.xfail(reason=""),
        pytest.mark.xfail(reason=" \t"),
        pytest.mark.xfail(reason="later", strict=False),
        pytest.mark.xfail(reason="later", run=False),
        pytest.mark.xfail(False, reason="later"),
        pytest.mark.xfail(condition=False, reason="later"),
        pytest.mark.xfail("sys.platform == 'other'", reason="later"),
    ],
)
def test_a_replaced_test_without_a_valid_excuse_is_refused(mark: pytest.MarkDecorator):
    replaced = mark(nothing())
    with pytest.raises(TypeError, match=r"test_an_error_names_the_path; .*xfail\(reason=\.\.\.\)"):
        type("Lenient", (FilesystemProtocolTests,), {"test_an_error_names_the_path": replaced})


@pytest.mark.parametrize(
    "mark",
    [pytest.mark.skip(reason="later"), pytest.mark.xfail(reason="later", run=False)],
)
def test_an_excuse_does_not_cover_another_mark(mark: pytest.MarkDecorator):
    replaced = mark(pytest.mark.xfail(reason="this backend folds case")(nothing()))
    with pytest.raises(TypeError, match="test_an_error_names_the_path"):
        type("Lenient", (FilesystemProtocolTests,), {"test_an_error_names_the_path": replaced})


@pytest.mark.parametrize(
    "mark",
    [
        pytest.mark.xfail(reason="this backend folds case", strict=True, run=True),
        pytest.mark.xfail(True, reason="this backend folds case", raises=AssertionError),
    ],
)
def test_an_excuse_may_be_stricter_than_it_must(mark: pytest.MarkDecorator):
    replaced = mark(nothing())
    type("Honest", (FilesystemProtocolTests,), {"test_an_error_names_the_path": replaced})


WHOLE = [
    pytest.mark.skip(reason="later"),
    pytest.mark.skipif(True, reason="later"),
    pytest.mark.xfail(reason="later"),
]


@pytest.mark.parametrize("mark", WHOLE, ids=lambda mark: mark.name)
def test_a_class_that_is_marked_as_a_whole_is_refused(mark: pytest.MarkDecorator):
    for held in (mark, mark.mark, [pytest.mark.slow, mark]):
        with pytest.raises(TypeError, match=f"Lenient is marked {mark.name};"):
            type("Lenient", (FilesystemProtocolTests,), {"pytestmark": held})


@pytest.mark.parametrize("mark", WHOLE, ids=lambda mark: mark.name)
def test_a_class_that_inherits_such_a_mark_is_refused(mark: pytest.MarkDecorator):
    before = type("Before", (), {"pytestmark": [mark]})
    with pytest.raises(TypeError, match=f"Lenient is marked {mark.name};"):
        type("Lenient", (before, FilesystemProtocolTests), {})


@pytest.mark.parametrize("mark", WHOLE, ids=lambda mark: mark.name)
def test_such_a_mark_as_a_decorator_is_refused(mark: pytest.MarkDecorator):
    class Lenient(FilesystemProtocolTests):
        pass

    with pytest.raises(TypeError, match=f"Lenient is marked {mark.name};"):
        mark(Lenient)


def test_a_class_may_carry_marks_that_hide_nothing():
    @pytest.mark.timeout(60)
    class Marked(FilesystemProtocolTests):
        pytestmark = pytest.mark.slow

    assert issubclass(Marked, FilesystemProtocolTests)


def test_a_suite_mixes_with_an_abstract_class():
    class Mixed(ABC, FilesystemProtocolTests):
        pass

    assert issubclass(Mixed, ConformanceSuite)


@pytest.mark.parametrize("method", ["fs", "own"])
def test_a_replaced_fixture_is_refused(method: str):
    own = pytest.fixture(name="fs")(lambda self: InMemoryFilesystem())
    with pytest.raises(TypeError, match=r"replaces fixtures of the suite: fs; .*make_filesystem"):
        type("Lenient", (FilesystemProtocolTests,), {method: own})


def test_a_fixture_replaced_by_a_class_before_the_suite_is_refused():
    class Before:
        @pytest.fixture
        def fs(self) -> Filesystem:
            return InMemoryFilesystem()

    with pytest.raises(TypeError, match="replaces fixtures of the suite: fs"):
        type("Lenient", (Before, FilesystemProtocolTests), {})


def test_the_fixtures_of_a_capability_cannot_be_replaced_either():
    with pytest.raises(TypeError, match="replaces fixtures of the suite: frozen"):
        type("Lenient", (ReadOnlyTests,), {"frozen": pytest.fixture(lambda self: None)})


def test_fixtures_may_be_added():
    class Mine(FilesystemProtocolTests):
        @pytest.fixture
        def filled(self, fs: Filesystem) -> Filesystem:
            fs.write("file", "text")
            return fs

    assert issubclass(Mine, FilesystemProtocolTests)


def test_a_test_with_an_excuse_may_be_replaced():
    class Honest(FilesystemProtocolTests):
        @pytest.mark.xfail(reason="this backend folds case")
        def test_names_that_differ_in_case_are_different(self, fs: Filesystem) -> None:
            super().test_names_that_differ_in_case_are_different(fs)

    class StillHonest(Honest):
        pass

    assert issubclass(StillHonest, FilesystemProtocolTests)


def test_tests_may_be_added_and_replaced_by_their_owner():
    class Mine(FilesystemProtocolTests):
        def test_mine(self, fs: Filesystem) -> None:
            pass

    class Later(Mine):
        def test_mine(self, fs: Filesystem) -> None:
            assert fs

    assert Later.test_mine is not Mine.test_mine


@pytest.mark.parametrize("suite", [ConformanceSuite, FilesystemProtocolTests])
def test_a_suite_without_its_hook_says_which(suite: type[ConformanceSuite], tmp_path: Path):
    with pytest.raises(NotImplementedError, match=r"make_filesystem\(tmp_path\)"):
        suite().make_filesystem(tmp_path)


def test_a_capability_without_its_hook_says_which(tmp_path: Path):
    fs = InMemoryFilesystem()
    with pytest.raises(NotImplementedError, match="make_limited"):
        QuotaTests().make_limited(tmp_path, fs.limits)
    with pytest.raises(NotImplementedError, match="make_read_only"):
        ReadOnlyTests().make_read_only(fs)
    with pytest.raises(NotImplementedError, match="make_special"):
        SpecialFileTests().make_special(fs, "pipe")


@pytest.mark.slow
def test_a_failure_prints_the_values(tmp_path: Path):
    module = tmp_path / "test_broken.py"
    module.write_text(
        "from weakincentives.filesystem import InMemoryFilesystem\n"
        "from weakincentives.filesystem.testing import FilesystemProtocolTests\n"
        "class Broken(InMemoryFilesystem):\n"
        "    def exists(self, path):\n"
        "        return 'perhaps'\n"
        "class TestBroken(FilesystemProtocolTests):\n"
        "    def make_filesystem(self, tmp_path):\n"
        "        return Broken()\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        "what_is_there",
    ]
    done = subprocess.run(
        [*command, str(module)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert "assert 'perhaps' is True" in done.stdout


@pytest.mark.parametrize("missing", ["pytest", "hypothesis"])
def test_a_missing_extra_is_named_in_the_error(missing: str):
    program = (
        f"import sys; sys.modules[{missing!r}] = None\nimport weakincentives.filesystem.testing\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    last = done.stderr.splitlines()[-1]
    assert last.endswith(describe_missing("weakincentives.filesystem.testing", "testing"))


def test_the_filesystem_does_not_need_the_extra():
    program = (
        "import sys; sys.modules['pytest'] = sys.modules['hypothesis'] = None\n"
        "import weakincentives.filesystem\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
