"""The guide to `evaluate_python`: its examples run, and its figures are true."""

from dataclasses import dataclass

from markdown_it import MarkdownIt

from scripts import evaluate_programs
from scripts.steps import ROOT
from tests.safety.hostile_code import ESCAPES, HOGS
from weakincentives.contrib.evaluation import (
    DEFAULT_ENGINE,
    DEFAULT_EVAL_LIMITS,
    EvalParams,
    FilesystemWorkspace,
)

GUIDE = evaluate_programs.GUIDE.read_text()


@dataclass(frozen=True)
class Example:
    """Code of a model in the guide, and what the guide says that the model reads."""

    code: str
    text: str


def fences() -> list[tuple[str, str]]:
    tokens = MarkdownIt("commonmark").parse(GUIDE)
    return [(each.info, each.content) for each in tokens if each.type == "fence"]


def examples() -> list[Example]:
    blocks = fences()
    return [
        Example(code, next(text for info, text in blocks[number:] if info == "text"))
        for number, (info, code) in enumerate(blocks)
        if info.startswith("python no-run: test_guide.py")
    ]


FILES = {info.split()[1]: text for info, text in fences() if info.startswith("csv ")}


def test_the_examples_do_what_the_guide_says() -> None:
    assert len(examples()) == 2
    with evaluate_programs.open_bench(DEFAULT_ENGINE) as bench:
        workspace = FilesystemWorkspace(bench.fs)
        for path, content in FILES.items():
            bench.fs.write(path, content)
        results = [bench.evaluator.run(EvalParams(each.code), workspace) for each in examples()]
        assert bench.fs.exists("totals.txt")
        assert not bench.fs.exists("report.txt")
    assert [each.message for each in results] == [each.text.strip() for each in examples()]


def test_the_total_of_the_programs_is_that_of_the_stored_results() -> None:
    total = evaluate_programs.render_total(evaluate_programs.read_stored())
    assert evaluate_programs.read_table() == total


def test_the_figures_of_the_guide_are_true() -> None:
    assert f"**{len(HOGS)} hogs**" in GUIDE
    assert f"**{len(ESCAPES)} ways out**" in GUIDE
    safety = (ROOT / "docs" / "safety.md").read_text()
    assert f"| {len(HOGS)} hogs: " in safety
    assert f"| {len(ESCAPES)} ways out: " in safety
    limits = DEFAULT_EVAL_LIMITS
    for row in (
        f"| code | {limits.max_code_length:,} characters |",
        f"| time | {limits.max_seconds:g} seconds, files included |",
        f"| memory | {limits.max_memory_bytes // 1024**2} MiB |",
        f"| {limits.max_output_length:,} characters of each are kept |",
        f"| one written file | {limits.max_write_length:,} characters,",
        f"| files written | {limits.max_writes} |",
        f"| {limits.max_read_bytes >> 20} MiB, {limits.max_total_read_bytes >> 20} MiB |",
        f"| calls of file functions | {limits.max_file_calls:,} |",
        f"| {limits.max_globals}; {limits.max_global_length:,} characters of JSON each,"
        f" {limits.max_globals_length:,} in all; {limits.max_global_depth} levels deep |",
    ):
        assert row in GUIDE
