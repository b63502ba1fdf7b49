"""`wink run --allow-host`: what the model is told, and what the user sees of the network."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.workplace import Script, Wink, shell
from tests.sandbox.proxy_servers import web_server
from weakincentives.cli.run.result import count_traffic, describe_traffic
from weakincentives.runtime.session import load_session
from weakincentives.sandbox import NetworkConnection

pytestmark = pytest.mark.usefixtures("default_sandbox")

FETCH = "import sys, urllib.request as u\nfor each in sys.argv[1:]: print(u.urlopen(each).read())"


def fetch(*urls: str) -> dict[str, Any]:
    return shell(sys.executable, "-c", FETCH, *urls)


def test_connections_are_shown_summed_up_and_dumped(
    wink: Wink, project: Path, script: Script, tmp_path: Path
) -> None:
    with web_server() as port:
        allowed = f"127.0.0.1:{port}"
        url = f"http://{allowed}/page"
        steps = script(
            fetch(url, url, "http://other.example/"), fetch("http://other.example/"), "Done."
        )
        done = wink(
            *("run", "x", "--workspace", project, "--model", steps, "--discard"),
            *("--allow-host", allowed, "--allow-host", "a.example", "--dump", tmp_path / "dump"),
        )
    assert done.code == 0
    assert f"run isolated by bubblewrap and reach {allowed}, a.example." in done.err
    refusal = "  network: other.example is not allowed; allow it with --allow-host other.example\n"
    assert done.err.count(refusal) == 1
    assert f" · network: {allowed} 2 connections; refused: other.example 2 · wink log" in done.err
    (dump,) = (tmp_path / "dump").glob("*.jsonl")
    recorded = load_session(dump, session_only=True)[NetworkConnection].all()
    # a connection is recorded when it has ended: a refusal may overtake one that is being closed
    assert sorted((each.host, each.allowed) for each in recorded) == [
        ("127.0.0.1", True),
        ("127.0.0.1", True),
        ("other.example", False),
        ("other.example", False),
    ]


def test_json_has_every_connection_and_the_sums(wink: Wink, project: Path, script: Script) -> None:
    with web_server() as port:
        steps = script(fetch(f"http://127.0.0.1:{port}/"), "Done.")
        options = ("--json", "--allow-host", f"127.0.0.1:{port}")
        done = wink("run", "x", "--workspace", project, "--model", steps, "--discard", *options)
    assert done.events[0]["allow_host"] == [f"127.0.0.1:{port}"]
    (connection,) = [each for each in done.events if each["event"] == "network"]
    assert (connection["host"], connection["port"]) == ("127.0.0.1", port)
    assert (connection["allowed"], connection["reason"]) == (True, "")
    (total,) = done.last["network"]
    assert (total["connections"], total["refused"]) == (1, 0)
    assert total["bytes_received"] == connection["bytes_received"] > 0


def test_without_an_allowed_host_the_option_that_allows_one_is_named_once(
    wink: Wink, project: Path, script: Script
) -> None:
    steps = script(fetch("http://other.example/"), fetch("http://third.example/"), "Done.")
    done = wink("run", "x", "--workspace", project, "--model", steps, "--discard")
    hint = "  network: commands have no network; --allow-host HOST allows a host\n"
    assert done.err.count(hint) == 1
    failing = script(shell("sh", "-c", "exit 1"), "Done.")
    done = wink("run", "x", "--workspace", project, "--model", failing, "--discard")
    assert hint not in done.err


def test_the_model_is_told_what_it_can_reach_and_why_it_was_refused(
    wink: Wink, project: Path, script: Script, tmp_path: Path
) -> None:
    steps = script(fetch("https://other.example/"), "Done.")
    record = tmp_path / "record.jsonl"
    options = ("--allow-host", "*.example.com", "--record", record, "--json")
    done = wink("run", "x", "--workspace", project, "--model", steps, "--discard", *options)
    (call,) = [each for each in done.events if each["event"] == "tool"]
    assert call["message"].endswith(
        "[network: other.example is not allowed; the user can allow it with"
        " --allow-host other.example]"
    )
    assert "Commands can reach *.example.com by HTTP and HTTPS and no other host" in _told(record)


@pytest.mark.parametrize(
    ("sandbox", "sentence"),
    [("bubblewrap", "Commands have no network."), ("none", "You cannot run commands.")],
)
def test_the_model_is_told_that_there_is_no_network(
    wink: Wink, project: Path, script: Script, tmp_path: Path, sandbox: str, sentence: str
) -> None:
    record = tmp_path / "record.jsonl"
    options = ("--sandbox", sandbox, "--record", record)
    done = wink("run", "x", "--workspace", project, "--model", script("Done."), *options)
    assert done.code == 0
    assert sentence in _told(record)


def _told(record: Path) -> str:
    """Return everything in a recording as text."""
    lines = record.read_text().splitlines()
    return "\n".join(json.dumps(json.loads(line), ensure_ascii=False) for line in lines)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("https://example.com",), "--allow-host is invalid: Write the host alone"),
        (("a.example", "--sandbox", "local"), "The local sandbox reaches the whole network"),
        (("a.example", "--sandbox", "landlock"), "The landlock sandbox has no network"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_copied(
    wink: Wink, project: Path, script: Script, options: tuple[str, ...], problem: str
) -> None:
    arguments = ("--workspace", project, "--model", script("Done."), "--allow-host", *options)
    done = wink("run", "x", *arguments)
    assert done.code == 2
    assert done.err.startswith(f"wink: {problem}")


def test_hosts_do_not_matter_without_commands(wink: Wink, project: Path, script: Script) -> None:
    options = ("--sandbox", "none", "--allow-host", "a.example")
    done = wink("run", "x", "--workspace", project, "--model", script("Done."), *options)
    assert done.code == 0


def test_a_command_in_a_sandbox_reaches_the_hosts_that_are_named(wink: Wink, project: Path) -> None:
    with web_server() as port:
        url = f"http://127.0.0.1:{port}/page"
        options = ("--workspace", project, "--allow-host", f"127.0.0.1:{port}")
        done = wink("sandbox", "run", *options, "--", sys.executable, "-c", FETCH, url)
    assert (done.code, done.err) == (0, "")
    assert "/page for 127.0.0.1" in done.out


def test_the_end_of_a_command_in_a_sandbox_says_what_was_refused(wink: Wink, project: Path) -> None:
    options = ("--workspace", project, "--allow-host", "a.example")
    url = "http://other.example/"
    done = wink("sandbox", "run", *options, "--", sys.executable, "-c", FETCH, url)
    assert done.code == 1
    assert done.err.endswith(
        "\nwink: other.example is not allowed; the user can allow it with"
        " --allow-host other.example\n"
    )
    done = wink("sandbox", "run", "--allow-host", "a b", "--", "true")
    assert done.code == 2
    assert "--allow-host is invalid: Not a host name: 'a b'" in done.err


def test_a_summary_names_a_few_hosts() -> None:
    made = [NetworkConnection(host=f"h{each}.example", port=443) for each in range(7)]
    invalid = NetworkConnection(host="", port=0, allowed=False)
    assert describe_traffic(count_traffic([*made, invalid])) == (
        "network: h0.example 1 connection, h1.example 1 connection, h2.example 1 connection,"
        " h3.example 1 connection, h4.example 1 connection and 2 more;"
        " refused: an invalid request 1"
    )
    assert describe_traffic(count_traffic([])) == ""
