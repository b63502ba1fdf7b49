"""Editing configuration files: one server is added, replaced or removed, the rest stays."""

import json
import sys
import tomllib
from difflib import ndiff
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from weakincentives.cli.mcp.config_formats import JSON, TOML, YAML, ConfigEditError

ENTRY: dict[str, Any] = {"command": "/bin/wink", "args": ["mcp", "/a b"], "env": {"A": 'q"\\'}}
VSCODE = """\
// servers of this project
{
\t"inputs": [
\t\t{ "id": "key", "type": "promptString", "password": true, }, // asked once
\t],
\t"servers": {
\t\t/* the old one */
\t\t"github": {
\t\t\t"url": "https://api.githubcopilot.com/mcp/", // not a comment: "//"
\t\t},
\t\t// the end
\t},
}
"""
CODEX = """\
# my settings
model = "gpt-5"   # the big one

[mcp_servers.docs]
command = "npx"
args = ["-y", "docs"]
text = '''
[mcp_servers.wink]
not a table
'''

# about the profile
[profiles.fast]
model = "mini"
"""
GOOSE = """\
GOOSE_PROVIDER: anthropic  # mine
extensions:  # tools
  # the built-in one
  developer:
    bundled: true
    enabled: true
    name: developer
    timeout: 300
    type: builtin
  notes:
    type: stdio
    cmd: uvx
    args:
    - notes
    description: |
      ends with something
      # like a comment

GOOSE_MODE: auto
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_json_with_comments_gets_a_server_and_keeps_every_other_line(newline: str) -> None:
    before = VSCODE.replace("\n", newline)
    after = JSON.put(before, "servers", "wink", ENTRY)
    assert JSON.read(after, "servers")["wink"] == ENTRY
    changes = list(ndiff(before.split(newline), after.split(newline)))
    assert '+ \t\t"wink": {' in changes
    assert not [each for each in changes if each.startswith(("-", "?"))]
    assert JSON.drop(after, "servers", "wink") == before


@pytest.mark.parametrize(
    "before",
    [
        "{}",
        "{}\n",
        "{ }",
        '{"theme": "dark"}',
        '{"theme": "dark", "mcpServers": {}}\n',
        '{"mcpServers": {"a": {"command": "x"}}}',
        '{\n    "mcpServers": {\n        "a": {"command": "x"}\n    },\n    "z": 1\n}\n',
        '{\n  "mcpServers": {}\n}',
        '{\n  "mcpServers": {\n    // none yet\n  }\n}',
        '{\n  "a": 1 // one\n}\n',
        '{\n  "a": 1, // one\n}\n',
        '\ufeff{\n  "a": "\\u2028 // /* \\""\n}\n',
        '{\n  "a": 1 }',
    ],
)
def test_json_is_the_same_after_a_server_was_added_and_removed(before: str) -> None:
    after = JSON.put(before, "mcpServers", "wink", ENTRY)
    assert JSON.read(after, "mcpServers")["wink"] == ENTRY
    assert JSON.put(after, "mcpServers", "wink", ENTRY) == after
    back = JSON.drop(after, "mcpServers", "wink")
    assert "wink" not in back
    if "mcpServers" in before and JSON.read(before, "mcpServers"):
        assert back == before


def test_a_server_in_the_middle_of_json_is_replaced_and_removed_alone() -> None:
    before = '{"mcpServers": {\n  "a": {"x": 1}, // first\n  "wink": {"x": 2}, // ours\n  "z": 3}}'
    assert JSON.put(before, "mcpServers", "wink", {"x": 9}) == before.replace(
        '{"x": 2}', '{\n    "x": 9\n  }'
    )
    assert JSON.drop(before, "mcpServers", "wink") == (
        '{"mcpServers": {\n  "a": {"x": 1}, // first\n  // ours\n  "z": 3}}'
    )


@pytest.mark.parametrize("text", ["", "  \n", "\ufeff"])
def test_an_empty_json_file_gets_a_whole_one(text: str) -> None:
    assert JSON.put(text, "mcpServers", "wink", ENTRY) == JSON.render("mcpServers", "wink", ENTRY)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"a": 1,, }',
        '{"a" 1}',
        '{"a": 1} x',
        "[]",
        "nonsense",
        '{"mcpServers": []}',
        '{"mcpServers": null}',
        '{"mcpServers": {}, "mcpServers": {}}',
        '{"a": ' + "[" * 200_000 + "]" * 200_000 + "}",
        '{"a": [,]}',
        '{"a": {,}}',
        "{,}",
        '{"a": [1,,]}',
        '{"a": "\n"}',
        "{/* never ends",
    ],
)
def test_json_that_is_broken_or_ambiguous_is_refused(text: str) -> None:
    with pytest.raises(ConfigEditError):
        JSON.put(text, "mcpServers", "wink", ENTRY)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.text(max_size=3), _VALUES, max_size=3),
    st.dictionaries(st.text(max_size=3).filter(lambda each: each != "wink"), _VALUES, max_size=3),
    st.sampled_from([None, 2, "\t"]),
)
def test_any_json_keeps_what_it_says(
    rest: dict[str, Any], servers: dict[str, Any], indent: int | str | None
) -> None:
    rest.pop("s", None)
    before = json.dumps({**rest, "s": servers}, indent=indent)
    after = JSON.put(before, "s", "wink", ENTRY)
    assert json.loads(after) == {**rest, "s": {**servers, "wink": ENTRY}}
    back = JSON.drop(after, "s", "wink")
    assert (back == before) if servers else (json.loads(back) == {**rest, "s": {}})


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_toml_gets_a_table_and_keeps_every_other_byte(newline: str) -> None:
    before = CODEX.replace("\n", newline)
    after = TOML.put(before, "mcp_servers", "wink", ENTRY)
    assert after.startswith(before)
    assert tomllib.loads(after)["mcp_servers"]["wink"] == ENTRY
    assert after.count("\n") == after.count(newline)


def test_a_table_of_toml_is_replaced_and_removed_with_its_own_tables() -> None:
    own = '[mcp_servers.wink]\ncommand = "old"\n[mcp_servers.wink.env]\nA = "1"\n'
    before = f'a = 1\n\n{own}\n# about b\n[b]\nc = ["[x]"]\n'
    after = TOML.put(before, "mcp_servers", "wink", ENTRY)
    assert after == before.replace(own, TOML.render("mcp_servers", "wink", ENTRY))
    assert TOML.drop(before, "mcp_servers", "wink") == before.replace(f"\n{own}", "")


@pytest.mark.parametrize("before", ["", "a = 1\n", "a = 1\n\n[b]\nc = 2\n"])
def test_toml_is_the_same_after_a_server_was_added_and_removed(before: str) -> None:
    after = TOML.put(before, "mcp_servers", "my-server", ENTRY)
    assert TOML.read(after, "mcp_servers") == {"my-server": ENTRY}
    assert TOML.drop(after, "mcp_servers", "my-server") == before


@pytest.mark.parametrize(
    "text",
    [
        "a = ",
        'mcp_servers = "x"',
        "mcp_servers = { a = { command = 1 } }\n",
        "[[mcp_servers]]\na = 1\n",
        '[mcp_servers]\nwink = { command = "x" }\n',
        CODEX.replace("[profiles", "[mcp_servers.wink]\na = 1\n[profiles"),
    ],
)
def test_toml_that_is_broken_or_in_another_form_is_refused(text: str) -> None:
    with pytest.raises(ConfigEditError):
        TOML.put(text, "mcp_servers", "wink", ENTRY)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_yaml_gets_a_block_and_keeps_every_other_byte(newline: str) -> None:
    before = GOOSE.replace("\n", newline)
    after = YAML.put(before, "extensions", "wink", ENTRY)
    expected = yaml.safe_load(before)
    expected["extensions"]["wink"] = ENTRY
    assert yaml.safe_load(after) == expected
    assert after.count("\n") == after.count(newline)
    assert YAML.put(after, "extensions", "wink", ENTRY) == after
    assert YAML.drop(after, "extensions", "wink") == before


@pytest.mark.parametrize(
    "before",
    [
        "",
        "---\nA: 1\n",
        "A: 1",
        "extensions: {}\n",
        "extensions:\nA: 1\n",
        "extensions: null # none\nA: 1\n",
        "'extensions':\n    a:\n        type: b\n",
        "A:\n- 1\n- b: 2\nextensions:\n  x: {a: 1}\n",
        "A: |\n  extensions:\n    no: 1\n",
        "\ufeffextensions:\n  a:\n    b: 1\n",
        "A: [1,\n2]\nextensions: {\n}\n",
        "extensions: &all\n  a: {b: [1,\n      2]}\n\n# the end\nZ: 1\n",
        "A: {b: x\u2028y}\nextensions:\n  a:\n    b: >-\n      one\n      two",
    ],
)
def test_yaml_in_plain_form_says_the_same_after_a_server_was_added(before: str) -> None:
    after = YAML.put(before, "extensions", "wink", ENTRY)
    found = yaml.safe_load(before) or {}
    servers = found.get("extensions") or {}
    assert yaml.safe_load(after) == {**found, "extensions": {**servers, "wink": ENTRY}}
    back = yaml.safe_load(YAML.drop(after, "extensions", "wink"))
    assert back == {**found, "extensions": servers}


def test_a_block_of_yaml_is_replaced_alone() -> None:
    before = YAML.put(GOOSE, "extensions", "wink", {"cmd": "old", "args": []})
    after = YAML.put(before, "extensions", "wink", ENTRY)
    assert after == YAML.put(GOOSE, "extensions", "wink", ENTRY)
    assert set(YAML.read(after, "extensions")) == {"wink", "developer", "notes"}


@pytest.mark.parametrize(
    "text",
    [
        "{extensions: {}}\n",
        "extensions: {a: {type: b}}\n",
        "extensions: &all\n  a: {}\nothers: *all\n",
        "extensions:\n- a\n",
        "extensions:\n  - a\n",
        "extensions: |\n  text\n",
        "extensions: {}\nextensions: {}\n",
        "a: 1\n---\nb: 2\n",
        "extensions:\n\ta: 1\n",
        "extensions:\n    a: 1\n  b: 2\n",
        "A: &a [*a]\n",
        "A: !unknown 1\n",
        "A: " + "[" * 5_000 + "]" * 5_000,
        "A: 1\n...\n",
        "extensions:\n  a: &x\n    b: 1\n  wink:\n    c: *x\n",
    ],
)
def test_yaml_that_is_not_plain_is_refused(text: str) -> None:
    with pytest.raises(ConfigEditError):
        YAML.put(text, "extensions", "wink", ENTRY)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.text(max_size=3), _VALUES, max_size=3),
    st.dictionaries(st.text(max_size=3).filter(lambda each: each != "wink"), _VALUES, max_size=3),
    st.sampled_from(["\n", "\r\n"]),
)
def test_any_yaml_keeps_what_it_says(
    rest: dict[str, Any], servers: dict[str, Any], newline: str
) -> None:
    rest.pop("s", None)
    said = {**rest, "s": servers}
    before = yaml.safe_dump(said, default_flow_style=False, sort_keys=False)
    before = f"# mine\n{before}# the end".replace("\n", newline)
    after = YAML.put(before, "s", "wink", ENTRY)
    assert yaml.safe_load(after) == {**rest, "s": {**servers, "wink": ENTRY}}
    back = YAML.drop(after, "s", "wink")
    assert (back == before) if servers else (yaml.safe_load(back) == said)
    replaced = YAML.put(after, "s", "wink", {"command": "other"})
    assert YAML.put(replaced, "s", "wink", ENTRY) == after


def test_without_pyyaml_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigEditError, match=r"^Packages for YAML are missing: "):
        YAML.read("a: 1", "extensions")


@settings(max_examples=40, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=8))
def test_any_text_is_quoted_so_that_each_format_reads_it(text: str) -> None:
    entry = {"command": text, "args": [text]}
    assert tomllib.loads(TOML.render("t", "n", entry))["t"]["n"] == entry
    assert yaml.safe_load(YAML.render("t", "n", entry))["t"]["n"] == entry
    assert json.loads(JSON.render("t", "n", entry))["t"]["n"] == entry
