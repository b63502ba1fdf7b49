"""Steps: one line when all is well, the whole output when not."""

import sys

import pytest

from scripts.steps import StepFailedError, output_of, step


def test_a_step_is_one_line_with_its_duration(capsys: pytest.CaptureFixture[str]):
    with step("format"):
        pass
    assert capsys.readouterr().out.split() == ["format", "0.0", "s"]


def test_a_step_that_fails_says_so(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(StepFailedError), step("format"):
        raise StepFailedError
    assert capsys.readouterr().out.split() == ["format", "failed"]


def test_a_command_gives_what_it_printed_on_both_streams():
    program = "import sys; print('out', flush=True); print('err', file=sys.stderr)"
    assert output_of([sys.executable, "-c", program]).split() == ["out", "err"]


def test_a_command_that_fails_is_told_with_its_output_and_code():
    with pytest.raises(StepFailedError, match=r"(?s)boom.*exit code 3"):
        output_of([sys.executable, "-c", "print('boom'); raise SystemExit(3)"])
