"""What a sandbox makes readable of the host, and where commands look for programs."""

import os
import shutil
import sys
import tempfile
import venv
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from weakincentives.sandbox import (
    BubblewrapSandbox,
    LandlockSandbox,
    PodmanSandbox,
    SandboxUnavailableError,
    system_paths,
)
from weakincentives.sandbox.probe import create_sandbox
from weakincentives.sandbox.system_paths import (
    check_workspace,
    find_environment,
    readable_paths,
    search_path,
)

isolated = pytest.mark.parametrize("name", ["bubblewrap", "landlock"])


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    made.mkdir()
    return made


def put_on_path(monkeypatch: pytest.MonkeyPatch, *directories: Path) -> None:
    before = os.environ["PATH"]
    monkeypatch.setenv("PATH", os.pathsep.join([*map(str, directories), before]))


def make_environment(path: Path) -> Path:
    venv.create(path, symlinks=True, with_pip=False)
    return path


# --- nothing that a command can replace ---


@isolated
def test_a_command_cannot_replace_a_readable_directory_by_a_link(
    name: str, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside"
    (outside / "bin").mkdir(parents=True)
    (outside / "key").write_text("secret")
    make_environment(workspace / "env")
    put_on_path(monkeypatch, workspace / "env" / "bin")
    with create_sandbox(name, workspace, readable=[workspace / "env"]) as sandbox:
        sandbox.exec(["sh", "-c", f"mv env moved; ln -s {outside} env"])
        done = sandbox.exec(["sh", "-c", f"cat {workspace}/env/key {outside}/key env/key"])
    assert (done.stdout, done.exit_code != 0) == ("", True)


@isolated
def test_a_link_into_the_workspace_is_not_readable_either(
    name: str, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside"
    (outside / "bin").mkdir(parents=True)
    (outside / "key").write_text("secret")
    (workspace / "env" / "bin").mkdir(parents=True)
    (tmp_path / "link").symlink_to(workspace / "env")
    put_on_path(monkeypatch, tmp_path / "link" / "bin")
    with create_sandbox(name, workspace) as sandbox:
        sandbox.exec(["sh", "-c", f"mv env moved; ln -s {outside} env"])
        done = sandbox.exec(["sh", "-c", f"cat {tmp_path}/link/key"])
    assert (done.stdout, done.exit_code != 0) == ("", True)


def test_the_interpreter_of_a_strangers_environment_must_be_an_installation(
    workspace: Path, tmp_path: Path
) -> None:
    private = tmp_path / "private"
    (private / "bin").mkdir(parents=True)
    (workspace / ".venv" / "bin").mkdir(parents=True)
    (workspace / ".venv" / "pyvenv.cfg").write_text(f"home = {private}/bin\n")
    link = workspace / ".venv" / "bin" / "python"
    for target in (private / "bin" / "python", Path.home() / "python", Path("/python")):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        found = readable_paths(workspace=str(workspace))
        assert not {str(private), str(Path.home()), "/"} & set(found)


def test_a_circle_of_links_is_no_interpreter(workspace: Path) -> None:
    (workspace / ".venv" / "bin").mkdir(parents=True)
    (workspace / ".venv" / "pyvenv.cfg").touch()
    (workspace / ".venv" / "bin" / "python").symlink_to("python")
    assert str(workspace) not in readable_paths(workspace=str(workspace))


# --- nothing of a home ---


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home that is not `$HOME`, with a directory of programs in `PATH` and a Python."""
    made = tmp_path / "ci"
    for each in (".local", "notes", "tools/lib", "tools/share", "tools/bin", "lib/python3.9"):
        (made / each).mkdir(parents=True)
    for each in ("key", "notes/key", "tools/key", "lib/key", "tools/share/text"):
        (made / each).write_text("secret" if each.endswith("key") else "known")
    (made / "bin").mkdir()
    (made / "bin" / "python3.9").touch(mode=0o755)
    (made / "lib" / "python3.9" / "os.py").write_text("known")
    put_on_path(monkeypatch, made / "bin", made / "tools" / "bin")
    return made


def add_user(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passwd = home.parent / "passwd"
    passwd.write_text(f"root:x:0:0:root:/root:/bin/sh\nbroken\nci:x:1:1::{home}:/bin/sh\n")
    monkeypatch.setattr(system_paths, "_PASSWD", passwd)


def printed(name: str, workspace: Path, *paths: Path) -> str:
    with create_sandbox(name, workspace) as sandbox:
        return sandbox.exec(["cat", *map(str, paths)]).stdout


@isolated
@pytest.mark.parametrize("mark", ["passwd", ".ssh", ".gnupg", ".aws", ".config", ".profile"])
def test_a_prefix_in_path_never_makes_a_home_readable(
    name: str, mark: str, workspace: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_user(home, monkeypatch) if mark == "passwd" else (home / mark).mkdir()
    keys = [home / each for each in ("key", "notes/key", "lib/key", "tools/key")]
    assert printed(name, workspace, *keys, home / "lib/python3.9/os.py") == ""
    assert printed(name, workspace, home / "tools/share/text") == "known"


@isolated
def test_a_home_is_not_readable_as_the_prefix_of_a_python(
    name: str, workspace: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_user(home, monkeypatch)
    (workspace / ".venv" / "bin").mkdir(parents=True)
    (workspace / ".venv" / "pyvenv.cfg").touch()
    (workspace / ".venv" / "bin" / "python").symlink_to(home / "bin" / "python3.9")
    keys = [home / each for each in ("key", "notes/key", "lib/key")]
    assert printed(name, workspace, *keys, home / "lib/python3.9/os.py") == "known"


@isolated
def test_a_directory_beside_programs_is_no_way_into_a_home(
    name: str, workspace: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_user(home, monkeypatch)
    (tmp_path / "prefix" / "bin").mkdir(parents=True)
    (home / ".ssh").mkdir()
    (home / ".ssh" / "key").write_text("secret")
    for link, target in {"lib": ".", "share": ".ssh", "include": "notes", "libexec": "lib"}.items():
        (tmp_path / "prefix" / link).symlink_to(home / target)
    put_on_path(monkeypatch, tmp_path / "prefix" / "bin")
    links = [tmp_path / "prefix" / each / "key" for each in ("lib", "share", "include", "libexec")]
    keys = [home / each / "key" for each in (".ssh", "notes", "lib")]
    assert printed(name, workspace, *links, *keys) == ""


@isolated
def test_links_of_a_prefix_to_another_prefix_are_followed(
    name: str, workspace: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_user(home, monkeypatch)
    for each in ("store/lib", "prefix/bin"):
        (tmp_path / each).mkdir(parents=True)
    (tmp_path / "store" / "lib" / "text").write_text("known")
    (tmp_path / "prefix" / "lib").symlink_to(tmp_path / "store" / "lib")
    put_on_path(monkeypatch, tmp_path / "prefix" / "bin")
    assert printed(name, workspace, tmp_path / "prefix/lib/text") == "known"


@isolated
@pytest.mark.parametrize(("user_id", "is_hidden"), [(1001, True), (1, False)])
def test_the_home_of_a_person_in_a_directory_of_the_system_is_hidden(
    name: str,
    user_id: int,
    is_hidden: bool,
    workspace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    filled = sorted(
        each for each in Path("/usr/share").iterdir() if each.is_dir() and any(each.iterdir())
    )
    home, beside = [each for each in filled if not each.is_symlink()][:2]
    (tmp_path / "passwd").write_text(f"ci:x:{user_id}:1::{home}:/bin/sh\n")
    monkeypatch.setattr(system_paths, "_PASSWD", tmp_path / "passwd")
    with create_sandbox(name, workspace) as sandbox:
        found = {each: sandbox.exec(["ls", str(each)]).stdout for each in (home, beside)}
        assert sandbox.exec(["sh", "-c", f"touch {home}/new"]).exit_code != 0
    assert not found[home] if is_hidden else found[home]
    assert found[beside]


def test_a_user_without_a_home_is_no_error(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # as for any user ID in a container
    monkeypatch.setattr(system_paths, "_PASSWD", tmp_path / "missing")
    assert readable_paths(workspace=str(workspace))


@isolated
def test_of_a_prefix_only_what_programs_need_is_readable(
    name: str, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = tmp_path / "prefix"
    for each in ("bin", "lib", "share", "data"):
        (prefix / each).mkdir(parents=True)
        (prefix / each / "text").write_text(f"{each} ")
    (prefix / ".env").write_text("secret")
    put_on_path(monkeypatch, prefix / "bin")
    found = [prefix / each / "text" for each in ("bin", "lib", "share", "data")]
    assert printed(name, workspace, *found, prefix / ".env") == "bin lib share "


# --- programs that commands find ---


@isolated
@pytest.mark.parametrize("directory", [".venv", "venv"])
def test_the_environment_of_the_workspace_comes_first(
    name: str, directory: str, workspace: Path
) -> None:
    make_environment(workspace / directory)
    with create_sandbox(name, workspace) as sandbox:
        done = sandbox.exec(["python", "-c", "import sys; print(sys.prefix)"])
    seen_at = "/workspace" if name == "bubblewrap" else str(workspace)
    assert (done.stdout, done.stderr) == (f"{seen_at}/{directory}\n", "")


@isolated
def test_an_active_environment_outside_is_used_even_if_its_name_is_hidden(
    name: str, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    active = make_environment(tmp_path / "elsewhere" / ".venv")
    put_on_path(monkeypatch, active / "bin")
    with create_sandbox(name, workspace) as sandbox:
        done = sandbox.exec(["python", "-c", "import sys; print(sys.prefix)"])
    assert (done.stdout, done.stderr) == (f"{active}\n", "")


@isolated
def test_this_python_stands_in_for_a_shim_that_cannot_be_read(
    name: str, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shims = tmp_path / "shims"
    shims.mkdir()
    (shims / "python3").touch(mode=0o755)
    put_on_path(monkeypatch, shims)
    with create_sandbox(name, workspace) as sandbox:
        done = sandbox.exec(["python3", "-c", "import sys; print(sys.executable)"])
    assert (done.stdout, done.stderr) == (f"{Path(sys.executable).parent}/python3\n", "")


def test_hidden_directories_and_homes_are_not_readable(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    for each in (".cargo", ".local", "."):
        (home / each / "bin").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    put_on_path(monkeypatch, *(home / each / "bin" for each in (".cargo", ".local", ".")))
    found = readable_paths(workspace=str(workspace))
    assert not [each for each in found if each.startswith(str(home))]
    path = search_path(found, workspace=str(workspace), seen_at="/workspace")
    assert not [each for each in path if each.startswith(str(home))]


def test_a_directory_with_the_name_of_an_environment_is_none(workspace: Path) -> None:
    (workspace / "venv" / "bin").mkdir(parents=True)
    assert find_environment(str(workspace)) is None


# --- a workspace that is a copy ---


@pytest.fixture
def original() -> Generator[Path, None, None]:
    """Yield a directory that is not below `/tmp`, which commands have a private one of."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        yield Path(directory).resolve()


def test_a_copy_is_found_at_the_path_of_its_original_too(workspace: Path, original: Path) -> None:
    (original / "file").write_text("original")
    (workspace / "file").write_text("copy")
    with create_sandbox("bubblewrap", workspace, original=original) as sandbox:
        line = f"pwd; cat {original}/file; echo changed > {original}/file; cat file"
        done = sandbox.exec(["sh", "-c", line])
    assert (done.stdout, done.stderr) == ("/workspace\ncopychanged\n", "")
    assert (original / "file").read_text() == "original"


def test_the_scripts_of_a_copied_environment_use_the_copy(
    workspace: Path, original: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_environment(original / ".venv")
    script = original / ".venv" / "bin" / "where"
    script.write_text(f"#!{original}/.venv/bin/python\nimport app\nprint(app.place)\n")
    script.chmod(0o755)
    [packages] = (original / ".venv").glob("lib/python3*/site-packages")
    (packages / "editable.pth").write_text(f"{original}/src\n")
    (original / "src").mkdir()
    (original / "src" / "app.py").write_text("place = 'original'\n")
    shutil.copytree(original, workspace, symlinks=True, dirs_exist_ok=True)
    (workspace / "src" / "app.py").write_text("place = 'copy'\n")
    put_on_path(monkeypatch, original / ".venv" / "bin")  # as in the shell of a person
    with create_sandbox("bubblewrap", workspace, original=original) as sandbox:
        done = sandbox.exec(["where"])
    assert (done.stdout, done.stderr) == ("copy\n", "")


def test_an_original_does_not_hide_the_environment_that_was_not_copied(
    workspace: Path, original: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_environment(original / ".venv")
    put_on_path(monkeypatch, original / ".venv" / "bin")
    with create_sandbox("bubblewrap", workspace, original=original) as sandbox:
        done = sandbox.exec(["python", "-c", "import sys; print(sys.prefix)"])
    assert (done.stdout, done.stderr) == (f"{original}/.venv\n", "")
    assert list(workspace.iterdir()) == []


@pytest.mark.parametrize("path", ["/", "/usr", "/home", "/tmp", "/tmp/x", "/workspace", "/etc"])
def test_an_original_never_hides_what_commands_need(path: str, workspace: Path) -> None:
    (workspace / "file").touch()
    with create_sandbox("bubblewrap", workspace, original=path) as sandbox:
        assert sandbox.exec(["ls"]).stdout == "file\n"
        assert sandbox.exec(["ls", path]).stdout != "file\n" or path == "/workspace"


@pytest.mark.parametrize(
    "path", ["/", "/usr", "/lib", "/etc", "/dev", "/proc", "/proc/self", "/sys"]
)
@pytest.mark.parametrize("kind", [BubblewrapSandbox, LandlockSandbox, PodmanSandbox])
def test_the_system_itself_is_not_a_workspace(
    kind: Callable[[str], object], path: str, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(path)
    for each in (path, str(link)):
        with pytest.raises(SandboxUnavailableError, match="choose a project's directory"):
            kind(each)


@pytest.mark.parametrize("path", ["/usr/src/app", "/var/lib/project", "/dev/shm/project", "/srv"])
def test_a_directory_within_the_system_can_be_a_workspace(path: str) -> None:
    check_workspace(path)
