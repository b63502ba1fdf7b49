"""`wink debug`: the server for programs and people, and the exported file."""

import json
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.workplace import Wink
from tests.debug.recordings import KEY, record
from tests.preloaded import PreloadedProcess
from weakincentives.cli.runs import new_run, new_session_id, steps_path
from weakincentives.extras import install_command


@contextmanager
def running(*arguments: str | Path) -> Iterator[PreloadedProcess]:
    command = [sys.executable, "-m", "weakincentives", "debug", *map(str, arguments)]
    with PreloadedProcess(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_json_is_one_line_and_the_server_answers_until_it_is_stopped(tmp_path: Path) -> None:
    with running(record(tmp_path), "--json") as process:
        assert process.stdout is not None
        found = json.loads(process.stdout.readline())
        assert set(found) == {"url", "token"}
        base = found["url"].partition("?")[0]
        assert base.startswith("http://127.0.0.1:")
        request = urllib.request.Request(
            f"{base}api/steps", headers={"Authorization": f"Bearer {found['token']}"}
        )
        with urllib.request.urlopen(request) as answer:
            assert json.load(answer)["session"]["steps"] == 9
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{base}api/steps")
        refused.value.close()
        assert refused.value.code == 401
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert (process.wait(), process.stdout.read(), process.stderr.read()) == (0, "", "")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_a_host_that_others_reach_needs_a_flag(wink: Wink, tmp_path: Path, host: str) -> None:
    done = wink("debug", record(tmp_path), "--host", host)
    assert done.code == 1
    assert "--allow-remote" in done.err


def test_remote_access_still_needs_the_token(tmp_path: Path) -> None:
    with running(record(tmp_path), "--json", "--host", "0.0.0.0", "--allow-remote") as process:
        assert process.stdout is not None
        base = json.loads(process.stdout.readline())["url"].partition("?")[0]
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{base.replace('0.0.0.0', '127.0.0.1')}api/steps")
        refused.value.close()
        assert refused.value.code == 401


def test_an_export_masks_keys_and_replaces_nothing(wink: Wink, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    done = wink("export", record(tmp_path), "--to", target)
    assert done.code == 0
    assert "masked" in done.err
    assert target.stat().st_size > 10_000
    assert KEY not in target.read_text()
    again = wink("export", tmp_path / "run.timeline", "--to", target)
    assert again.code == 1
    assert "exists" in again.err


def test_show_secrets_is_for_pages(wink: Wink, tmp_path: Path) -> None:
    done = wink("export", record(tmp_path), "--to", tmp_path / "dump", "--show-secrets")
    assert done.code == 2
    assert "--show-secrets needs --to FILE.html" in done.err


@pytest.mark.parametrize(
    ("name", "fix"),
    [("missing.jsonl", "with the suffix .timeline"), (".", "files with the suffix")],
)
def test_a_path_without_sessions_is_an_error_in_a_line(
    wink: Wink, tmp_path: Path, name: str, fix: str
) -> None:
    done = wink("debug", tmp_path / name)
    assert done.code == 1
    assert fix in done.err


def test_without_a_run_the_newest_is_shown(wink: Wink, tmp_path: Path) -> None:
    recorded = record(tmp_path / "elsewhere")
    with new_run(new_session_id(), tmp_path) as run:
        shutil.copytree(recorded.with_suffix(".timeline"), steps_path(run))
    done = wink("export", "--to", tmp_path / "page.html")
    assert done.code == 0
    assert (tmp_path / "page.html").exists()


def test_a_missing_extra_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['uvicorn'] = None\n"
        "from weakincentives.cli.main import main\n"
        "main(['debug', 'x'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert install_command("debug") in done.stderr
    assert done.stderr.count("\n") == 1
