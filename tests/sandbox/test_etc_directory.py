"""The `/etc` of bubblewrap: what is copied, what is mounted, and what never gets in."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from weakincentives.sandbox import BubblewrapSandbox
from weakincentives.sandbox.system_paths import EtcDirectory


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A directory in the place of the host's `/etc`."""
    path = tmp_path / "host"
    path.mkdir()
    return path


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    path = tmp_path / "copy"
    path.mkdir()
    return path


def test_small_files_and_directories_are_copied(host: Path, copy: Path) -> None:
    (host / "real").write_text("UTC")
    (host / "localtime").symlink_to("real")
    (host / "ssl").mkdir()
    (host / "ssl" / "openssl.cnf").write_text("x")
    (host / "perl" / "Net").mkdir(parents=True)
    (host / "perl" / "Net" / "libnet.cfg").write_text("y")
    (host / "perl" / "link").symlink_to("/nowhere")
    etc = EtcDirectory(copy, {"passwd": "user"}, source=str(host))
    assert etc.mounts == []
    assert (copy / "localtime").read_text() == "UTC"
    assert not (copy / "localtime").is_symlink()
    assert (copy / "ssl" / "openssl.cnf").read_text() == "x"
    assert (copy / "perl" / "Net" / "libnet.cfg").read_text() == "y"
    assert str((copy / "perl" / "link").readlink()) == "/nowhere"
    assert (copy / "passwd").read_text() == "user"


def test_only_listed_names_are_taken(host: Path, copy: Path) -> None:
    for name in ("shadow", "passwd", "hosts"):
        (host / name).write_text(f"{name} of the host")
    EtcDirectory(copy, {"passwd": "user"}, source=str(host))
    assert {each.name: each.read_text() for each in copy.iterdir()} == {
        "passwd": "user",
        "hosts": "hosts of the host",
    }


def test_a_large_directory_is_mounted(host: Path, copy: Path) -> None:
    (host / "alternatives").mkdir()
    for number in range(100):
        (host / "alternatives" / str(number)).symlink_to("/usr/bin/true")
    (host / "magic").write_bytes(bytes(1024 * 1024))
    etc = EtcDirectory(copy, {}, source=str(host))
    assert etc.mounts == [f"{host}/alternatives", f"{host}/magic"]
    assert list((copy / "alternatives").iterdir()) == []
    assert (copy / "magic").read_bytes() == b""


def test_what_is_not_for_everybody_is_never_copied(host: Path, copy: Path) -> None:
    """The copy would belong to this user, and may have been made with root's privileges."""
    (host / "hosts").write_text("secret")
    (host / "hosts").chmod(0o640)
    (host / "fonts").mkdir()
    (host / "fonts" / "key").write_text("secret")
    (host / "fonts" / "key").chmod(0o600)
    (host / "perl").mkdir(mode=0o700)
    (host / "perl" / "key").write_text("secret")
    etc = EtcDirectory(copy, {}, source=str(host))
    assert etc.mounts == [f"{host}/{name}" for name in ("fonts", "hosts", "perl")]
    assert "secret" not in [each.read_text() for each in copy.rglob("*") if each.is_file()]


def test_a_special_file_is_not_read(host: Path, copy: Path) -> None:
    os.mkfifo(host / "hosts", mode=0o644)
    assert EtcDirectory(copy, {}, source=str(host)).mounts == [f"{host}/hosts"]


@pytest.fixture
def below_etc() -> Iterator[str]:
    """A directory of our own in `/etc`, with a file."""
    path = tempfile.mkdtemp(prefix="wink-test-", dir="/etc")
    Path(path, "file").write_text("here")
    yield path
    shutil.rmtree(path)


@pytest.mark.root
def test_a_path_in_etc_can_be_made_readable(tmp_path: Path, below_etc: str) -> None:
    with BubblewrapSandbox(tmp_path, readable=[below_etc, f"{below_etc}/file"]) as sandbox:
        done = sandbox.exec(["cat", f"{below_etc}/file"])
        assert (done.stdout, done.stderr) == ("here", "")


def test_commands_cannot_change_it(tmp_path: Path) -> None:
    with BubblewrapSandbox(tmp_path) as sandbox:
        script = "echo x > /etc/passwd; echo x > /etc/new; rm /etc/group; chmod 777 /etc/passwd"
        done = sandbox.exec(["sh", "-c", f"{script}; cat /etc/passwd; ls /etc/shadow"])
        assert done.stdout == "user:x:1000:1000:user:/home/user:/bin/sh\n"
        assert done.stderr.count("Read-only file system") == 4
        assert "/etc/shadow" in done.stderr
