"""Images without a registry: the mirror that apt uses, a bootstrap, and its import."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sandbox.container_image import require_engine, require_program
from tests.sizes import size
from weakincentives.sandbox import (
    PackageMirror,
    PodmanSandbox,
    PodmanSandboxConfig,
    SandboxUnavailableError,
    build_image,
    pull_image,
)
from weakincentives.sandbox.container import DEFAULT_PACKAGES, engine_error, find_mirror
from weakincentives.sandbox.container.image import find_pin, pin_image

TAG = "localhost/weakincentives-built:test"
SOURCES = """\
Types: deb-src
URIs: http://source.example/debian
Suites: trixie

Types: deb
# URIs: http://old.example/debian
URIs: http://mirror.example/debian
Suites: bookworm-updates bookworm
Components: main
"""
LIST = """\
# deb http://commented.example/debian sid main
deb [arch=amd64 signed-by=/key.gpg] http://list.example/debian trixie main contrib
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep pins out of the cache of the person who runs the tests."""
    monkeypatch.setenv("WEAKINCENTIVES_CACHE", str(tmp_path / "cache"))


def write_sources(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_mirror_is_the_one_that_apt_uses(tmp_path: Path) -> None:
    write_sources(tmp_path, "sources.list.d/debian.sources", SOURCES)
    assert find_mirror(tmp_path) == PackageMirror("http://mirror.example/debian", "bookworm")
    write_sources(tmp_path, "sources.list", LIST)
    assert find_mirror(tmp_path) == PackageMirror("http://list.example/debian", "trixie")


def test_a_machine_without_a_mirror_has_to_be_told_one(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailableError, match=r"pass mirror=PackageMirror\(url, release\)"):
        find_mirror(tmp_path)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a directory in front of `PATH`."""
    found = tmp_path / "bin"
    found.mkdir()
    monkeypatch.setenv("PATH", str(found), prepend=os.pathsep)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return found


def make_program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_what_a_bootstrap_makes_becomes_an_image(programs: Path) -> None:
    require_engine()
    make_program(programs / "debootstrap", 'echo "I: $*"; mkdir -p "$4/bin"; : > "$4/bin/program"')
    lines: list[str] = []
    found = build_image(
        TAG,
        mirror=PackageMirror("http://m.example", "sid"),
        on_progress=lines.append,
        packages=["a", "b"],
    )
    try:
        assert lines[0].startswith("I: --variant=minbase --include=a,b sid /")
        assert lines[0].endswith("/root http://m.example")
        assert lines[-1] == f"I: Importing {TAG}"
        done = subprocess.run(["podman", "image", "exists", found], check=False)
        assert done.returncode == 0
        assert find_pin(PodmanSandboxConfig().with_environment(), TAG) == found
    finally:
        subprocess.run(["podman", "rmi", "--force", TAG], check=True, capture_output=True)


def test_a_failed_bootstrap_is_shown(programs: Path) -> None:
    make_program(programs / "debootstrap", "echo 'E: no such release'; exit 1")
    with pytest.raises(SandboxUnavailableError, match="code 1:\nE: no such release"):
        build_image(TAG, mirror=PackageMirror("http://m.example", "sid"))


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(SandboxUnavailableError, match="apt install debootstrap"):
        build_image(TAG, mirror=PackageMirror("http://m.example", "sid"))


def test_an_image_is_pulled_with_progress(podman: PodmanSandboxConfig, tmp_path: Path) -> None:
    saved = f"oci:{tmp_path / 'image'}:latest"
    subprocess.run(["podman", "push", podman.image, saved], check=True, capture_output=True)
    lines: list[str] = []
    found = pull_image(saved, on_progress=lines.append)
    try:
        assert found == lines[-1] == find_pin(PodmanSandboxConfig().with_environment(), saved)
        assert len(lines) > 1
        with PodmanSandbox(tmp_path, config=replace(podman, image=found)) as sandbox:
            assert sandbox.exec(["echo", "works"]).stdout == "works\n"
    finally:  # remove the name that podman made of the path, and not the image of other tests
        name = f"localhost{tmp_path}/image:latest"
        subprocess.run(["podman", "untag", found, name], check=True, capture_output=True)


def make_empty_image(tag: str) -> None:
    archive = subprocess.run(
        ["tar", "-cf", "-", "-T", "/dev/null"], check=True, capture_output=True
    )
    command = ["podman", "import", "--quiet", "-", tag]
    subprocess.run(command, input=archive.stdout, check=True, capture_output=True)


def test_a_container_starts_from_what_was_pulled_although_the_tag_has_moved(
    podman: PodmanSandboxConfig, tmp_path: Path
) -> None:
    tag = f"{TAG}-moved"
    config = replace(podman, image=tag, cache=str(tmp_path / "cache"))
    found = subprocess.run(
        ["podman", "image", "inspect", "--format", "{{.Id}}", podman.image],
        check=True,
        capture_output=True,
        text=True,
    )
    pin_image(config, tag, found.stdout.strip())
    make_empty_image(tag)
    try:
        with PodmanSandbox(tmp_path, config=config) as sandbox:
            assert sandbox.exec(["echo", "works"]).stdout == "works\n"
        other = replace(config, cache=str(tmp_path / "other"))
        with (
            PodmanSandbox(tmp_path, config=other) as sandbox,
            pytest.raises(SandboxUnavailableError, match=r"Python 3\.10"),
        ):
            sandbox.exec(["echo", "works"])  # the tag by itself
    finally:
        subprocess.run(["podman", "rmi", "--force", tag], check=True, capture_output=True)


def test_an_image_that_was_pulled_and_removed_has_to_be_pulled_again(
    podman: PodmanSandboxConfig, tmp_path: Path
) -> None:
    config = replace(podman, cache=str(tmp_path / "cache"))
    pin_image(config, podman.image, "0" * 64)
    with (
        PodmanSandbox(tmp_path, config=config) as sandbox,
        pytest.raises(SandboxUnavailableError, match=f"sandbox pull-image {podman.image}`"),
    ):
        sandbox.exec(["echo", "works"])


def test_what_was_pulled_is_pinned_and_foreign_pins_are_ignored(tmp_path: Path) -> None:
    config = PodmanSandboxConfig(cache=str(tmp_path / "cache"))
    pin_image(config, "a", "1")
    pin_image(config, "b", "2")
    assert (find_pin(config, "a"), find_pin(config, "b")) == ("1", "2")
    assert find_pin(replace(config, connection="other"), "a") is None
    (tmp_path / "cache" / "images.json").write_text('["a"]')
    assert find_pin(config, "a") is None


def test_an_image_that_cannot_be_pulled_is_an_error(tmp_path: Path) -> None:
    require_engine()
    with pytest.raises(SandboxUnavailableError, match="podman failed with code 125:\n"):
        pull_image(f"oci:{tmp_path}:latest")


@pytest.mark.slow
@pytest.mark.root
def test_an_image_of_packages_runs_commands(tmp_path: Path) -> None:
    if not size(short=False, long=True):
        pytest.skip("downloads and installs 110 packages of Debian: make test-long")
    require_engine()
    require_program("debootstrap")
    build_image(TAG, packages=[*DEFAULT_PACKAGES, "python3-pytest"])
    (tmp_path / "test_it.py").write_text("def test_it():\n    import ssl\n")
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'it'\nversion = '1'\n")
    steps = (
        "git init -q && git add . && git -c user.name=a -c user.email=b commit -qm c",
        "python -m venv --system-site-packages .venv",
        ".venv/bin/python -m pip --version",
        ".venv/bin/python -m pytest -q",
    )
    try:
        config = PodmanSandboxConfig(image=TAG)
        with PodmanSandbox(tmp_path, config=config) as sandbox:
            done = sandbox.exec(["sh", "-c", " && ".join(steps)], timeout=120)
            assert "1 passed" in done.stdout, done.stderr
    finally:
        subprocess.run(["podman", "rmi", "--force", TAG], check=True, capture_output=True)


def test_an_engine_that_lacks_hybrid_control_groups_is_told_the_runtime_that_has_them() -> None:
    """The text is that of crun 1.8 on a machine with both versions."""
    error = engine_error(
        "Error: OCI runtime error: crun: cgroups in hybrid mode not supported, drop all"
        " controllers from cgroupv2"
    )
    assert "install runc" in str(error)
    assert "limits" not in str(error)
