"""The ratchet: a figure that gets worse fails, unless a raise says why."""

import subprocess
from pathlib import Path

import pytest

from scripts.ratchet import FILE, Raise, Ratchet, figures_before
from scripts.shape import Tree, measure_all

FIGURES = {"lines": 100, "lines: mcp": 40, "modules": 7}
RATCHET = Ratchet(FIGURES)


@pytest.mark.parametrize("name", FIGURES)
def test_a_worse_figure_fails_and_says_by_how_much_and_what_to_do(name: str):
    [problem] = RATCHET.problems({**FIGURES, name: FIGURES[name] + 3})
    limit = FIGURES[name]
    assert problem.startswith(f"{name!r} is {limit + 3}, 3 more than {limit} in scripts/shape.toml")
    assert f'"{name}" = {{ to = {limit + 3}, reason = "..." }}' in problem


def test_a_package_that_grew_explains_the_lines_of_all():
    [problem] = RATCHET.problems({**FIGURES, "lines": 103, "lines: mcp": 43})
    assert problem.startswith("'lines: mcp' is 43, 3 more than 40")


def test_figures_that_are_the_same_or_better_pass():
    assert list(RATCHET.problems(FIGURES, FIGURES)) == []
    assert list(RATCHET.problems({**FIGURES, "modules": 6})) == []
    assert RATCHET.improvements({**FIGURES, "modules": 6}) == ["modules: 7 -> 6"]


def test_a_raise_allows_its_figure_and_no_more():
    raised = Ratchet(FIGURES, {"modules": Raise(9, "two backends were added")})
    assert list(raised.problems({**FIGURES, "modules": 9})) == []
    [problem] = raised.problems({**FIGURES, "modules": 10})
    assert "1 more than 9" in problem


def test_the_raise_of_a_package_allows_as_many_lines_in_all():
    raised = Ratchet(FIGURES, {"lines: mcp": Raise(45, "resources can be subscribed to")})
    assert list(raised.problems({**FIGURES, "lines": 105, "lines: mcp": 45})) == []
    assert raised.improvements({**FIGURES, "lines": 102, "lines: mcp": 45}) == []
    [problem] = raised.problems({**FIGURES, "lines": 106, "lines: mcp": 45})
    assert "'lines' is 106, 1 more than 105" in problem


@pytest.mark.parametrize("reason", ["", "  "])
def test_a_raise_without_a_reason_fails(reason: str):
    raised = Ratchet(FIGURES, {"modules": Raise(9, reason)})
    [problem] = raised.problems({**FIGURES, "modules": 9})
    assert problem == "The raise of 'modules' to 9 has no reason: say why it must be"


def test_a_figure_that_is_raised_in_its_own_line_fails():
    [problem] = Ratchet({**FIGURES, "modules": 9}).problems({**FIGURES, "modules": 9}, FIGURES)
    assert "'modules' was raised from 7 to 9 below [figures]: put 7 back" in problem


def test_a_new_figure_is_to_be_written_down_and_a_raise_of_none_removed():
    [problem] = RATCHET.problems({**FIGURES, "lines: new": 5})
    assert "'lines: new' is a new figure, 5" in problem
    [problem] = Ratchet(FIGURES, {"gone": Raise(1, "why")}).problems(FIGURES)
    assert "'gone', which is not a figure" in problem


def test_an_update_writes_what_got_better_and_nothing_that_got_worse():
    measured = {"lines": 90, "lines: mcp": 50, "modules": 6, "lines: new": 5}
    updated = RATCHET.update(measured)
    assert updated.figures == {"lines": 90, "lines: mcp": 40, "modules": 6, "lines: new": 5}
    [problem] = updated.problems(measured)
    assert "'lines: mcp' is 50, 10 more than 40" in problem


def test_an_update_lowers_raises_and_removes_those_that_ended():
    raises = {"modules": Raise(9, "why"), "lines: mcp": Raise(50, "why")}
    updated = Ratchet(FIGURES, raises).update({**FIGURES, "modules": 7, "lines: mcp": 42})
    assert updated == Ratchet(FIGURES, {"lines: mcp": Raise(42, "why")})


def test_the_file_is_read_as_it_was_written():
    ratchet = Ratchet(FIGURES, {"modules": Raise(9, 'two backends: "a" and "b"')})
    assert Ratchet.parse(str(ratchet)) == ratchet


def test_the_file_before_is_the_committed_one_or_the_one_before_that(tmp_path: Path):
    file = tmp_path / "scripts" / "shape.toml"
    file.parent.mkdir()

    def commit(ratchet: Ratchet) -> None:
        file.write_text(str(ratchet))
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "x"]):
            subprocess.run(["git", *command], cwd=tmp_path, check=True)

    file.write_text(str(RATCHET))
    assert figures_before(file) == {}
    commit(RATCHET)
    assert figures_before(file) == {}
    raised = Ratchet({**FIGURES, "modules": 9})
    file.write_text(str(raised))
    assert figures_before(file) == FIGURES
    commit(raised)
    assert figures_before(file) == FIGURES


def test_every_raise_in_the_file_has_a_reason_and_a_figure():
    ratchet = Ratchet.parse(FILE.read_text(encoding="utf-8"))
    assert list(ratchet.problems({})) == []


def test_long_functions_many_parameters_and_names_used_twice_are_counted(tmp_path: Path):
    package = tmp_path / "weakincentives"
    package.mkdir()
    body = "    pass\n" * 40
    (package / "a.py").write_text(f"class One: ...\ndef short(): ...\ndef long():\n{body}")
    few, many = "a, b, c, d, e, f", "a, b, c, *d, e, f, **g"
    (package / "b.py").write_text(
        f"class One:\n    def few(self, {few}): ...\n    def many(self, {many}): ...\n"
    )
    (package / "mcp").mkdir()
    (package / "mcp" / "a.py").write_text("class Two: ...\n")
    measured = measure_all(Tree(package), {"edit_file": (5, 50)})
    assert measured["functions over 40 lines"] == 1
    assert measured["functions with more than 6 parameters"] == 1
    assert (measured["class names used twice"], measured["module names used twice"]) == (1, 1)
    assert (measured["lines"], measured["lines: mcp"], measured["modules"]) == (47, 1, 3)
    assert measured["modules crossed by edit_file"] == 5
