"""The site: its navigation is the index page, and a link that leads nowhere is found."""

from pathlib import Path

from scripts.site import as_fences, as_toml, broken_links, navigation

INDEX_PAGE = """\
# All documents

## Start

- [What it is](../README.md): one page

## Guides

### Files

- [Search](search.md): globs, as [Limits](reference/limits.md#time) allow

### Undo

- [Snapshots](snapshots.md), [Diff](diff.md)

## Reference

- [API](reference/api.md)
- [Errors](reference/errors.md)
"""


def test_headings_are_sections_and_links_are_pages():
    assert navigation(INDEX_PAGE, ["docs/reference/api/serde.md"]) == [
        {"Start": "README.md"},
        {
            "Guides": [
                {"Files": "docs/search.md"},
                {"Undo": [{"Snapshots": "docs/snapshots.md"}, {"Diff": "docs/diff.md"}]},
            ]
        },
        {
            "Reference": [
                {
                    "API": [
                        {"All modules": "docs/reference/api.md"},
                        {"serde": "docs/reference/api/serde.md"},
                    ]
                },
                {"Errors": "docs/reference/errors.md"},
            ]
        },
    ]


def test_the_navigation_is_valid_toml():
    assert as_toml([{'A "b"': [{"C": "c.md"}]}, {"D": "d.md"}]) == (
        '[{ "A \\"b\\"" = [{ "C" = "c.md" }] }, { "D" = "d.md" }]'
    )


def test_a_fence_keeps_its_language_only():
    text = "```python no-run: needs a key\nx = 1\n```\n```python\n```\na ```python b``` c\n"
    assert as_fences(text) == text.replace(" no-run: needs a key", "")


def test_links_to_missing_pages_and_anchors_are_found(tmp_path: Path):
    (tmp_path / "a.html").write_text(
        '<h2 id="there">x</h2><a href="b.html">b</a><a href="gone.html">c</a>'
    )
    (tmp_path / "b.html").write_text(
        '<a href="a.html#there">1</a><a href="a.html#gone">2</a><a href="https://x.test/">3</a>'
    )
    (tmp_path / "404.html").write_text('<a href="/a.html">absolute</a>')
    assert sorted(broken_links(tmp_path)) == ["a.html: gone.html", "b.html: a.html#gone"]
