"""`wink completion`: scripts for shells."""

import shutil
import subprocess

import pytest

from tests.cli.workplace import Wink


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_that_asks_wink(shell: str, wink: Wink):
    done = wink("completion", shell)
    assert done.code == 0
    assert f"_WINK_COMPLETE={shell}_complete" in done.out


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_takes_the_script(wink: Wink):
    script = wink("completion", "bash").out
    asked = subprocess.run(
        ["bash", "-c", f"{script}\ncomplete -p wink"], capture_output=True, text=True, check=True
    )
    assert "_wink_completion" in asked.stdout


def test_another_shell_is_refused_in_one_line(wink: Wink):
    done = wink("completion", "tcsh")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "bash" in done.err
