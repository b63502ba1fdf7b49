"""The reference filesystem server and ours get the same calls: they agree, or a reason is given."""

import pytest

from scripts.mcp_comparison import PAGE, compare, render
from scripts.node_packages import REFERENCE_SERVER
from tests.mcp.processes import node_program


@pytest.mark.slow
def test_every_call_has_the_outcome_of_the_reference_server_or_a_reason() -> None:
    node_program(REFERENCE_SERVER)
    comparisons = compare()
    wrong = {
        f"{each.case.tool}: {each.case.title}": (each.reference.meaning, each.ours.meaning)
        for each in comparisons
        if each.is_same == bool(each.case.why)
    }
    assert wrong == {}
    assert PAGE.read_text() == render(comparisons), "run python -m scripts.mcp_comparison"
