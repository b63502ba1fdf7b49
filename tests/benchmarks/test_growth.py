"""Growth is fitted, not guessed."""

import pytest

from benchmarks.growth import cost_per_call, fitted_exponent, growth_facts, open_descriptors
from benchmarks.harness import Case, Measured, Outcome

SIZES = (1_000, 10_000, 100_000)


def _series(times: list[float], growth: str) -> list[Measured]:
    return [
        Measured(
            Case("list", (), growth=growth),
            [Outcome("us", "ours", samples=[seconds], size=size)],
            [],
        )
        for size, seconds in zip(SIZES, times, strict=True)
    ]


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0])
def test_the_exponent_of_a_power_law_is_found(exponent: float) -> None:
    points = [(n, 3e-6 * n**exponent) for n in SIZES]
    assert fitted_exponent(points) == pytest.approx(exponent)


def test_one_size_has_no_exponent() -> None:
    with pytest.raises(ValueError, match="needs two sizes"):
        fitted_exponent([(1_000, 1.0), (1_000, 2.0)])


def test_a_cost_that_grows_misses_the_gate() -> None:
    [fact] = growth_facts(_series([1e-6, 1e-5, 1e-4], "list in memory (gate)"))
    assert fact.met is False
    assert "n^1.00" in fact.value


def test_a_cost_that_stays_meets_the_gate() -> None:
    [fact] = growth_facts(_series([1.0e-6, 1.1e-6, 1.2e-6], "list in memory (gate)"))
    assert fact.met is True


def test_growth_without_a_gate_is_only_told() -> None:
    [fact] = growth_facts(_series([1e-6, 1e-5, 1e-4], "glob in memory"))
    assert fact.met is None


def test_ten_thousand_calls_are_made_for_the_cost_per_call() -> None:
    calls: list[int] = []
    fact = cost_per_call("append", lambda: calls.append(1))
    assert len(calls) == 10_000
    assert "9,901-10,000" in fact.value


def test_a_dear_operation_is_called_less_often() -> None:
    calls: list[int] = []
    fact = cost_per_call("append", lambda: calls.append(1), 200)
    assert len(calls) == 200
    assert "calls 1-100 " in fact.value
    assert "calls 101-200 " in fact.value


def test_an_open_file_is_counted(tmp_path) -> None:
    before = open_descriptors()
    with (tmp_path / "file").open("w"):
        assert open_descriptors() == before + 1
    assert open_descriptors() == before
