"""`wink mcp --install`: the change is shown, written after a yes, and can be taken back."""

import json
import os
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.workplace import Terminal, Wink
from weakincentives.cli.mcp.clients import CLIENTS

CLAUDE = """\
{
  "numStartups": 12,
  "mcpServers": {
    "github": {
      "env": { "GITHUB_TOKEN": "ghp_0123456789abcdefghijABCDEFGHIJ" },
      "type": "stdio",
      "command": "npx"
    }
  },
  "projects": {}
}
"""
FILES = {
    "claude-code": ("{home}/.claude.json", CLAUDE),
    "codex": ("{home}/.codex/config.toml", '# mine\nmodel = "gpt-5"\n[tui]\ntheme = "x"\n'),
    "cursor": ("{home}/.cursor/mcp.json", '{"mcpServers": {"a": {"command": "b"}}}'),
    "vscode": ("{home}/.config/Code/User/mcp.json", '// mine\n{\n\t"servers": {},\n}\n'),
    "goose": ("{home}/.config/goose/config.yaml", "A: 1 # one\nextensions:\n  a:\n    b: 1\n"),
    "gemini": ("{home}/.gemini/settings.json", '{\r\n  "theme": "x" // dark\r\n}\r\n'),
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_places: None) -> Path:
    """Return an empty home."""
    made = tmp_path / "home"
    made.mkdir()
    monkeypatch.setenv("HOME", str(made))
    for name in ("XDG_CONFIG_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    return made


def entry_of(client: str, path: Path) -> dict[str, Any]:
    """Return the server in a client's file, as an ordinary parser reads it."""
    text = path.read_text()
    match client:
        case "codex":
            return tomllib.loads(text)["mcp_servers"]["wink"]
        case "goose":
            return yaml.safe_load(text)["extensions"]["wink"]
        case _:
            lines = "\n".join(each.partition("// ")[0] for each in text.splitlines())
            found = json.loads(lines.replace("},\n}", "}\n}"))
            return found[CLIENTS[client].table]["wink"]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_user_s_file_gets_the_server_and_keeps_the_rest(
    wink: Wink, project: Path, home: Path, client: str
) -> None:
    name, before = FILES[client]
    path = Path(name.format(home=home))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(before.encode())
    path.chmod(0o600)
    command = ("mcp", project, "--install", client, "--scope", "user")
    shown = wink(*command, "--print")
    assert shown.code == 0
    assert path.read_bytes() == before.encode()
    done = wink(*command, "--yes")
    assert done.code == 0
    assert str(path) in done.err
    assert shown.out == done.out
    assert f"+++ {path}" in done.out
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    entry = entry_of(client, path)
    program = Path(entry.get("command") or entry["cmd"])
    assert program.is_absolute()
    assert os.access(program, os.X_OK)
    assert entry["args"][-3:] == ["mcp", str(project), "--copy"]
    env = entry.get("env") or entry["envs"]
    assert env["XDG_STATE_HOME"] == os.environ["XDG_STATE_HOME"]
    after = path.read_bytes()
    again = wink(*command, "--yes")
    assert (again.code, path.read_bytes()) == (0, after)
    assert "already" in again.err
    removed = wink("mcp", project, "--uninstall", client, "--scope", "user", "--yes")
    assert removed.code == 0
    left = path.read_bytes()
    if client not in ("vscode", "gemini"):  # there the table was empty or missing
        assert left == before.encode()
    assert b"wink" not in left
    assert "is not in" in wink("mcp", project, "--uninstall", client, "--scope", "user").err


@pytest.mark.parametrize(
    ("client", "name"),
    [
        ("claude-code", ".mcp.json"),
        ("cursor", ".cursor/mcp.json"),
        ("vscode", ".vscode/mcp.json"),
        ("gemini", ".gemini/settings.json"),
    ],
)
def test_a_project_gets_a_file_of_its_own_that_stays_without_the_server(
    wink: Wink, project: Path, home: Path, client: str, name: str
) -> None:
    done = wink("mcp", project, "--in-place", "--read-only", "--install", client, "--yes")
    assert done.code == 0
    assert entry_of(client, project / name)["args"][-2:] == ["--in-place", "--read-only"]
    assert f"wink mcp {project} --uninstall {client}" in done.err
    assert wink("mcp", project, "--uninstall", client, "--yes").code == 0
    left = json.loads((project / name).read_text())
    assert left == {CLIENTS[client].table: {}}
    assert not any(home.iterdir())


RULES = ".claude/settings.local.json"
DENIED = ["Edit", "Write", "NotebookEdit", "Bash"]
OWN_RULES = """\
{
    "env": {"A": "b"}, "permissions": {
        "allow": ["Bash(ls)"],
        "deny": ["Bash", "WebFetch"]
    }
}
"""


def denied(project: Path) -> list[str]:
    return json.loads((project / RULES).read_text())["permissions"].get("deny", [])


@pytest.mark.parametrize("scope", ["project", "user"])
@pytest.mark.parametrize("before", [None, OWN_RULES])
def test_the_tools_of_claude_code_are_denied_as_long_as_the_server_is_there(
    wink: Wink, project: Path, home: Path, scope: str, before: str | None
) -> None:
    mine = [] if before is None else ["Bash", "WebFetch"]
    if before is not None:
        (project / RULES).parent.mkdir()
        (project / RULES).write_text(before)
    command = ("mcp", project, "--scope", scope, "--yes")
    done = wink(*command, "--install", "claude-code")
    assert done.code == 0
    assert str(project / RULES) in done.err
    assert "own tools change the directory without undo" in done.err
    assert denied(project) == [*mine, *DENIED]
    wink(*command, "--install", "claude-code", "--name", "second")
    assert denied(project) == [*mine, *DENIED]
    wink(*command, "--uninstall", "claude-code")
    assert denied(project) == [*mine, *DENIED]
    wink(*command, "--uninstall", "claude-code", "--name", "second")
    assert denied(project) == mine
    if before is not None:
        assert json.loads((project / RULES).read_text()) == json.loads(before)


def test_in_place_the_client_may_keep_its_own_tools(wink: Wink, project: Path, home: Path) -> None:
    command = ("mcp", project, "--install", "claude-code", "--own-tools", "--yes")
    refused = wink(*command)
    assert refused.code == 2
    assert "--own-tools needs --in-place" in refused.err
    assert wink(*command, "--in-place").code == 0
    assert not (project / RULES).exists()


def test_rules_outside_of_the_project_are_not_written(
    wink: Wink, project: Path, home: Path
) -> None:
    (project / ".claude").symlink_to(home)
    done = wink("mcp", project, "--install", "claude-code", "--yes")
    assert done.code == 1
    assert "leads out of the project" in done.err
    assert not (project / ".mcp.json").exists()
    assert not list(home.iterdir())


def test_json_has_the_rules_too(wink: Wink, project: Path, home: Path) -> None:
    done = wink("mcp", project, "--install", "claude-code", "--json")
    rules = json.loads(done.out)["rules"]
    assert (rules["file"], rules["change"]) == (str(project / RULES), "add")
    assert '+      "NotebookEdit",' in rules["diff"]


@pytest.mark.parametrize("client", CLIENTS)
def test_every_client_is_set_up_with_what_keeps_its_own_tools_off(
    wink: Wink, project: Path, home: Path, client: str
) -> None:
    done = wink("mcp", project, "--install", client, "--yes")
    assert CLIENTS[client].own_tools in done.err.replace("\n", " ")


@pytest.mark.parametrize("client", ["codex", "goose"])
def test_a_new_file_of_the_user_is_private(
    wink: Wink, project: Path, home: Path, client: str
) -> None:
    assert wink("mcp", project, "--install", client, "--yes").code == 0
    path = Path(FILES[client][0].format(home=home))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert wink("mcp", project, "--install", client, "--scope", "project").code == 2


def test_nothing_is_written_without_a_yes(wink: Wink, project: Path, home: Path) -> None:
    shown = wink("mcp", project, "--install", "cursor")
    assert shown.code == 3
    assert '+    "wink"' in shown.out
    assert "--yes" in shown.err
    data = json.loads(wink("mcp", project, "--install", "cursor", "--json").out)
    assert (data["change"], data["written"]) == ("add", False)
    assert not (project / ".cursor").exists()
    data = json.loads(wink("mcp", project, "--install", "cursor", "--json", "--yes").out)
    assert data["written"]
    assert data["file"] == str(project / ".cursor" / "mcp.json")
    assert (project / ".cursor" / "mcp.json").exists()


@pytest.mark.parametrize(("answer", "is_written"), [("y", True), ("", False)])
def test_a_person_is_asked(project: Path, home: Path, answer: str, is_written: bool) -> None:
    terminal = Terminal("mcp", project, "--install", "claude-code")
    terminal.wait_for(r"\[y/N\]")
    terminal.type(f"{answer}\n")
    assert terminal.end().code == (0 if is_written else 3)
    assert (project / ".mcp.json").exists() is is_written


def test_print_takes_a_client_too_or_a_directory(wink: Wink, project: Path, home: Path) -> None:
    first = wink("mcp", project, "--print", "codex")
    assert "[mcp_servers.wink]" in first.out
    assert wink("mcp", "--install", "codex", "--print", project).out == first.out
    assert wink("mcp", project, "--print").code == 2
    assert not any(home.iterdir())


def test_our_old_server_is_replaced_and_a_foreign_one_is_not(
    wink: Wink, project: Path, home: Path
) -> None:
    path = project / ".mcp.json"
    old = {"command": "/old/bin/wink", "args": ["mcp", "/elsewhere"]}
    path.write_text(json.dumps({"mcpServers": {"wink": old, "other": {"command": "x"}}}))
    assert wink("mcp", project, "--install", "claude-code", "--yes").code == 0
    assert str(project) in entry_of("claude-code", path)["args"]
    path.write_text(json.dumps({"mcpServers": {"wink": {"command": "other"}}}))
    before = path.read_bytes()
    refused = wink("mcp", project, "--install", "claude-code", "--yes")
    assert (refused.code, path.read_bytes()) == (1, before)
    assert "--name" in refused.err
    assert wink("mcp", project, "--uninstall", "claude-code", "--yes").code == 1
    named = wink("mcp", project, "--install", "claude-code", "--yes", "--name", "files")
    assert named.code == 0
    assert set(json.loads(path.read_text())["mcpServers"]) == {"wink", "files"}
    assert wink("mcp", project, "--install", "claude-code", "--name", "a b").code == 2


@pytest.mark.parametrize(
    ("client", "content"),
    [("claude-code", "{"), ("codex", "a = "), ("goose", "{a: 1}"), ("gemini", "\xff")],
)
def test_a_broken_file_is_left_alone_and_the_text_to_paste_is_shown(
    wink: Wink, project: Path, home: Path, client: str, content: str
) -> None:
    path = Path(FILES[client][0].format(home=home))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode("latin-1"))
    done = wink("mcp", project, "--install", client, "--scope", "user", "--yes")
    assert done.code == 1
    assert path.read_bytes() == content.encode("latin-1")
    assert "was not changed" in done.err
    assert str(project) in done.out


def test_a_link_of_the_user_stays_and_its_target_is_written(
    wink: Wink, project: Path, home: Path, tmp_path: Path
) -> None:
    target = tmp_path / "dotfiles" / "codex.toml"
    target.parent.mkdir()
    target.write_text("a = 1\n")
    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").symlink_to(target)
    done = wink("mcp", project, "--install", "codex", "--yes")
    assert done.code == 0
    assert f"a link to {target}" in done.err
    assert (home / ".codex" / "config.toml").is_symlink()
    assert "[mcp_servers.wink]" in target.read_text()
    target.write_text(target.read_text().removeprefix("a = 1\n\n"))
    assert wink("mcp", project, "--uninstall", "codex", "--yes").code == 0
    assert target.read_bytes() == b""  # a link to nothing is not left


def test_a_link_that_leads_to_nothing_is_not_written_through(
    wink: Wink, project: Path, home: Path
) -> None:
    (home / ".codex").symlink_to(home / "dotfiles")
    (home / ".claude.json").symlink_to(home / "claude.json")
    for client in ("codex", "claude-code"):
        done = wink("mcp", project, "--install", client, "--scope", "user", "--yes")
        assert done.code == 1
        assert "leads to nothing" in done.err
    assert {each.name for each in home.iterdir()} == {".codex", ".claude.json"}


@pytest.mark.parametrize("link", [".mcp.json", ".cursor"])
def test_a_link_of_a_project_decides_nothing(
    wink: Wink, project: Path, home: Path, link: str
) -> None:
    target = home / ("bashrc" if link == ".mcp.json" else "")
    (project / link).symlink_to(target)
    client = "claude-code" if link == ".mcp.json" else "cursor"
    done = wink("mcp", project, "--install", client, "--yes")
    assert done.code == 1
    assert "leads out of the project" in done.err
    assert not any(home.iterdir())


def test_a_file_that_changes_while_a_person_decides_is_not_replaced(
    project: Path, home: Path
) -> None:
    terminal = Terminal("mcp", project, "--install", "claude-code")
    terminal.wait_for(r"\[y/N\]")
    (project / ".mcp.json").write_text("{}")
    terminal.type("y\n")
    assert terminal.end().code == 1
    assert (project / ".mcp.json").read_text() == "{}"


def test_keys_of_other_servers_are_masked_where_the_change_is_shown(
    wink: Wink, project: Path, home: Path
) -> None:
    (home / ".claude.json").write_text(CLAUDE)
    done = wink("mcp", project, "--install", "claude-code", "--scope", "user", "--yes")
    assert "ghp_***" in done.out
    assert "0123456789abcdef" not in done.out
    assert "ghp_0123456789abcdefghijABCDEFGHIJ" in (home / ".claude.json").read_text()


@pytest.mark.parametrize("place", ["/", "home", "parent"])
def test_the_home_directory_is_served_only_on_request(wink: Wink, home: Path, place: str) -> None:
    directory = {"/": Path("/"), "home": home, "parent": home.parent}[place]
    done = wink("mcp", directory, "--install", "codex", "--yes")
    assert done.code == 2
    assert "--any-directory" in done.err
    done = wink("mcp", directory, "--install", "codex", "--yes", "--any-directory")
    assert done.code == 0


@pytest.mark.parametrize(
    "words",
    [
        ("--token-file", "x"),
        ("--allow-remote",),
        ("--yes",),
        ("--scope", "user"),
        ("--in-place", "--exclude", "x"),
        ("--dump", "x", "--no-dump"),
        ("--http", "nonsense"),
        ("--http", "1:2:3"),
        ("--http", "99999"),
        ("--install", "codex", "--uninstall", "codex"),
        ("--install", "codex", "--http", "0"),
        ("--install", "emacs"),
    ],
)
def test_options_that_do_not_fit_are_a_usage_error(
    wink: Wink, project: Path, home: Path, words: tuple[str, ...]
) -> None:
    done = wink("mcp", project, *words)
    assert done.code == 2
    assert done.err.startswith("wink: ")
