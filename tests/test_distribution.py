"""The wheel in an environment of its own, alone and beside a stranger with the same names."""

import os
import shlex
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path

import pytest

from weakincentives.extras import DISTRIBUTION, OTHER_DISTRIBUTION

ROOT = Path(__file__).parents[1]


def run(*command: str | Path, environment: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def build_stranger(directory: Path) -> Path:
    """Write a wheel of another project that has our import package and our old name."""
    info = f"{OTHER_DISTRIBUTION}-9.9.dist-info"
    files = {
        "weakincentives/stranger.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {OTHER_DISTRIBUTION}\nVersion: 9.9\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    wheel = directory / f"{OTHER_DISTRIBUTION}-9.9-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return wheel


def build_environment(place: Path) -> None:
    """Make an environment with our own pip in it; to install one takes most of what it costs."""
    venv.create(place)
    [packages] = place.glob("lib/python3*/site-packages")
    pip = distribution("pip")
    for name in {each.parts[0] for each in pip.files or () if each.parts[0] != ".."}:
        shutil.copytree(str(pip.locate_file(name)), packages / name)
    program = place / "bin" / "pip"
    start = "from pip._internal.cli.main import main\nraise SystemExit(main())\n"
    program.write_text(f"#!{place}/bin/python\n{start}")
    program.chmod(0o755)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_wheel_works_alone_and_refuses_to_work_beside_a_stranger(tmp_path: Path):
    kept = ("PIP_", "UV_", "HTTP", "http", "SSL_", "LANG", "TMPDIR")
    environment = {name: value for name, value in os.environ.items() if name.startswith(kept)}
    programs = tmp_path / "alone" / "bin"
    environment |= {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(tmp_path)}
    config = Path.home() / ".config" / "pip" / "pip.conf"
    if config.is_file() and "PIP_CONFIG_FILE" not in environment:
        environment["PIP_CONFIG_FILE"] = str(config)
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path))
    subprocess.run([*pip, str(ROOT)], check=True)
    [wheel] = tmp_path.glob("*.whl")
    assert wheel.name.startswith("wink_workspace-")
    build_environment(programs.parent)
    install = (programs / "pip", "install", "--quiet")
    assert run(*install, wheel, environment=environment).returncode == 0

    # alone: the demo, the doctor, and the hint of a missing extra, typed as it is
    wink = programs / "wink"
    demo = run(wink, "demo", environment=environment)
    assert demo.returncode == 0, demo.stderr
    assert run(programs / DISTRIBUTION, "doctor", environment=environment).returncode == 0
    missing = run(wink, "debug", environment=environment)
    sentence, _, command = missing.stderr.strip().rpartition(": ")
    assert sentence.endswith("Packages for wink debug are missing")
    assert run("sh", "-c", command, environment=environment).returncode == 0
    assert "are missing" not in run(wink, "debug", environment=environment).stderr

    # beside the stranger: one sentence, whose commands work
    assert run(*install, build_stranger(tmp_path), environment=environment).returncode == 0
    refused = run(wink, "demo", environment=environment)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"'{OTHER_DISTRIBUTION}' is installed here" in refused.stderr
    doctor = run(wink, "doctor", environment=environment)
    fix = refused.stderr.strip().rpartition("install wink again: ")[2]
    assert (doctor.returncode, fix in doctor.stdout) == (1, True)
    assert str(wheel) in shlex.split(fix)
    assert run("sh", "-c", fix, environment=environment).returncode == 0
    assert run(wink, "--version", environment=environment).returncode == 0
    assert run(wink, "review", environment=environment).returncode == 0
