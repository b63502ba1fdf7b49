"""Timeouts: everything is killed, and what was printed is returned, in every sandbox."""

from pathlib import Path

from tests.sandbox.conftest import MakeSandbox
from tests.sandbox.process_trees import Mark, TimeIsUpWith

# a daemon as daemons are made: two forks, a session of its own, deaf to signals; it prints without
# end, and so does a child in the foreground
DAEMONS = """
echo first
echo kept > file
deaf='trap "" TERM HUP INT QUIT PIPE; while :; do echo flood || :; done'
(setsid sh -c "(trap '' TERM HUP INT QUIT; sh -c '$deaf' {mark} & exec sleep {mark}) & exit") &
(trap '' TERM HUP INT QUIT; exec sleep {mark}) &
sh -c "$deaf" {mark} &
trap '' TERM
i=0
while [ $i -lt 20000 ]; do i=$((i + 1)); echo "line $i"; done
: > ready
while :; do echo more; done
"""


def test_a_timeout_kills_everything_and_returns_what_was_printed(
    make_sandbox: MakeSandbox, tmp_path: Path
) -> None:
    mark = Mark()
    clock = TimeIsUpWith(tmp_path / "workspace" / "ready")
    sandbox = make_sandbox(clock=clock, grace=0.2)
    done = sandbox.exec(mark.script(DAEMONS), timeout=1000, max_output=10_000)
    assert (done.timed_out, done.exit_code, done.signal) == (True, 124, "SIGKILL")
    assert done.out.head.startswith(b"first\n")
    assert done.stdout_dropped > 100_000
    assert len(done.out.data) <= 10_000
    mark.wait_for_killed()
    assert mark.processes() == []
    assert sandbox.filesystem.read("file").content == "kept\n"


def test_the_next_command_runs_as_if_nothing_had_happened(
    make_sandbox: MakeSandbox, tmp_path: Path
) -> None:
    mark = Mark()
    ready = tmp_path / "workspace" / "ready"
    sandbox = make_sandbox(clock=TimeIsUpWith(ready), grace=0.2)
    assert sandbox.exec(mark.script(DAEMONS), timeout=1000, max_output=0).timed_out
    ready.unlink()
    done = sandbox.exec(["echo", "hello"])
    assert (done.exit_code, done.stdout, done.stopped_processes) == (0, "hello\n", 0)
