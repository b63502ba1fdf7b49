"""The benchmarks run: every workload once, at its smallest size, with right answers.

What they print and judge is read by people; `make bench` is where it is looked at.
"""

import gc
import shutil
import time

import pytest

from benchmarks import corpus
from benchmarks.__main__ import main, run_workload
from benchmarks.gitids import ExpectedTree
from benchmarks.harness import Case, Contender, Fact, Workload, expect, measure
from benchmarks.peer_git import Git
from benchmarks.report import Report, environment
from benchmarks.saved import MARK, RESULTS, save
from benchmarks.workloads import WORKLOADS
from scripts.steps import ROOT
from tests.test_docs import broken_links

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is a peer")


@pytest.fixture(autouse=True)
def keep_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the tests out of the garbage collector: a measurement would hand them back to it."""
    monkeypatch.setattr(gc, "unfreeze", gc.freeze)


@needs_git
@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_runs_and_its_answers_are_right(name: str) -> None:
    report = run_workload(
        WORKLOADS[name], smallest=True, sizes=(), rounds=1, clock=time.perf_counter
    )
    assert report.broken == []
    ours = [o for case in report.measured for o in case.outcomes if o.role == "ours"]
    assert all(outcome.samples for outcome in ours)


@pytest.mark.parametrize(("answer", "status"), [(4, "ok"), (5, "wrong")])
def test_a_wrong_answer_has_no_figure(answer: int, status: str) -> None:
    contender = Contender("us", "ours", lambda: answer, lambda it: expect(it, 4, "two and two"))
    [outcome] = measure(Case("sum", (contender,)), rounds=2).outcomes
    assert (outcome.status, outcome.comparable) == (status, status == "ok")


@needs_git
def test_the_expected_tree_is_what_git_makes_of_the_files(tmp_path) -> None:
    root, place = tmp_path / "root", tmp_path / "place"
    place.mkdir()
    files = {"a.py": b"one\n", "a.d/b.py": b"", "a-b/c.py": b"\0\xff", "a/b/c/d.py": b"deep\n"}
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    git = Git(root, place)
    assert ExpectedTree(files.items()).id == git.tree_of(git.snapshot())


def test_the_cache_of_somebody_else_is_refused(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus.tempfile, "tempdir", str(tmp_path))
    place = corpus.cache_directory()
    place.rmdir()
    (tmp_path / "elsewhere").mkdir()
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="somebody else"):
        corpus.cache_directory()


def test_an_unknown_workload_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["W99"])
    assert caught.value.code == 2
    assert "unknown workload: W99" in capsys.readouterr().err


def test_a_saved_result_keeps_its_words_and_replaces_its_tables(tmp_path) -> None:
    contender = Contender("us", "ours", lambda: 4, lambda it: expect(it, 4, "two and two"))
    sums = [measure(Case("a | b", (contender,)), rounds=2)]
    report = Report(Workload("W0", "sums", lambda stage: iter(())), sums, [Fact("size", "7 MB")])
    place = tmp_path / "results" / "sums.md"
    save(place, environment("python -m benchmarks W0"), [report])
    first = place.read_text()
    assert first.startswith(f"# sums\n\n{MARK}\n\n`python -m benchmarks W0`, 20")
    assert r"| W0 | a \| b | " in first
    assert first.endswith(
        "|  | fact | is | met |\n| --- | --- | --- | --- |\n| W0 | size | 7 MB | - |\n"
    )
    place.write_text(first.replace("# sums\n", "# Sums\n\nWhat they are.\n"))
    report.facts[:] = [Fact("size", "8 MB", met=False)]
    save(place, environment("python -m benchmarks W0"), [report])
    second = place.read_text()
    assert second.startswith(f"# Sums\n\nWhat they are.\n\n{MARK}\n\n`python")
    assert second.count(MARK) == 1
    assert "| W0 | size | 8 MB | MISSED |" in second
    assert "7 MB" not in second


def test_the_results_are_linked_and_their_links_lead_somewhere() -> None:
    pages = "".join(each.read_text() for each in (ROOT / "docs").glob("*.md"))
    results = sorted(RESULTS.glob("*.md"))
    assert results
    assert [each.name for each in results if f"results/{each.name})" not in pages] == []
    assert {each.name: list(broken_links(each)) for each in results} == {
        each.name: [] for each in results
    }
