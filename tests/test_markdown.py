"""Markdown as nodes: what it becomes, and what it never becomes."""

import pytest

from weakincentives.markdown import markdown_nodes


def test_blocks_and_words_are_nested():
    assert markdown_nodes("# T\n\na **b** `c`\nd\n\n3. x\n   - y\n") == [
        ["h1", "T"],
        ["p", "a ", ["strong", "b"], " ", ["code", "c"], "\n", "d"],
        ["ol", 3, ["li", "x", ["ul", ["li", "y"]]]],
    ]


def test_a_table_and_code_that_its_caller_renders():
    found = markdown_nodes("|a|\n|-|\n|1|\n\n```py x\nreturn\n```\n", lambda *code: [*code])
    rows = ["thead", ["tr", ["th", "a"]]], ["tbody", ["tr", ["td", "1"]]]
    assert found == [["table", *rows], ["pre", ["py", "return\n"]]]


@pytest.mark.parametrize(
    "target", ["javascript:alert(1)", "JAVASCRIPT:x", "data:text/html,x", "file:///etc/passwd"]
)
def test_a_link_that_does_not_lead_to_the_web_is_no_link(target: str):
    found = str(markdown_nodes(f"[x]({target}) <{target}> ![x]({target})"))
    assert "['a'" not in found
    assert target in found


def test_a_relative_link_says_its_target_and_leads_nowhere():
    assert markdown_nodes("[x](a.md)") == [["p", ["span", "a.md", "x"]]]
    assert markdown_nodes("[x](https://a.b/)") == [["p", ["a", "https://a.b/", "x"]]]


@pytest.mark.parametrize("text", ["<script>x</script>", "<img src=x>", "a <b>c</b>", "&lt;b&gt;"])
def test_html_is_text(text: str):
    def names(node: object) -> set[str]:
        if not isinstance(node, list):
            return set()
        first, *rest = node
        return {str(first)}.union(*map(names, rest))

    nodes = markdown_nodes(text)
    assert nodes is not None
    assert set().union(*map(names, nodes)) <= {"p"}
    assert "<" in str(nodes)


def test_a_text_that_is_too_long_is_not_parsed():
    assert markdown_nodes("x" * 50_001) is None
