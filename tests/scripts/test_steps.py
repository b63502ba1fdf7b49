"""Steps: one line when all is well, the whole output when not."""

import sys
from threading import Barrier

import pytest

from scripts.steps import StepFailedError, output_of, run_side_by_side, step


def test_a_step_is_one_line_with_its_duration(capsys: pytest.CaptureFixture[str]):
    with step("format"):
        pass
    assert capsys.readouterr().out.split() == ["format", "0.0", "s"]


def test_a_step_that_fails_says_so(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(StepFailedError), step("format"):
        raise StepFailedError
    assert capsys.readouterr().out.split() == ["format", "failed"]


def test_steps_side_by_side_have_a_line_each(capsys: pytest.CaptureFixture[str]):
    both = Barrier(2, timeout=60)  # one after the other, none would get past it
    run_side_by_side({"format": both.wait, "lint": both.wait})
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line.split()[0] for line in lines) == ["format", "lint"]


def test_of_steps_side_by_side_every_failure_is_shown(capsys: pytest.CaptureFixture[str]):
    def fail() -> None:
        raise StepFailedError("wrong")

    with pytest.raises(StepFailedError, match="wrong\nwrong"):
        run_side_by_side({"format": fail, "lint": fail, "layers": lambda: None})
    printed = capsys.readouterr().out
    assert "format                  failed" in printed
    assert "layers                     0.0 s" in printed


def test_a_command_gives_what_it_printed_on_both_streams():
    program = "import sys; print('out', flush=True); print('err', file=sys.stderr)"
    assert output_of([sys.executable, "-c", program]).split() == ["out", "err"]


def test_a_command_that_fails_is_told_with_its_output_and_code():
    with pytest.raises(StepFailedError, match=r"(?s)boom.*exit code 3"):
        output_of([sys.executable, "-c", "print('boom'); raise SystemExit(3)"])
