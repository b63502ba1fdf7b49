"""The commit log: a commit is on the disk with one sync, and complete after a power failure."""

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gitstore.gitcommand import git
from tests.gitstore.kill_repository import MOMENT, ROOT, snapshot
from tests.gitstore.power import lose, restart
from weakincentives.gitstore import commit_log
from weakincentives.gitstore.commit_log import LOG, CommitLog, LoggedCommit
from weakincentives.gitstore.directory import MAIN, PINS
from weakincentives.gitstore.repository import Repository
from weakincentives.posix import fault_hook

FILES = ("pack", "idx", "pin", "main")
SOME = [each for n in range(1, 5) for each in itertools.combinations(FILES, n)]
WAYS = ("missing", "empty", "half", "zeros")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    found = Repository.create(tmp_path / "git", root=ROOT)
    snapshot(found, "first", b"first")
    return found


class Disk:
    """What is synced and named from now on, in order."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.steps: list[tuple[str, str]] = []
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, self._syncing(getattr(os, name)))
        rename = os.rename

        def renamed(path: str, target: str) -> None:
            self.steps.append(("name", Path(target).name))
            rename(path, target)

        patch.setattr(os, "rename", renamed)

    def _syncing(self, function: Callable[[int], None]) -> Callable[[int], None]:
        def call(descriptor: int) -> None:
            function(descriptor)
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            self.steps.append(("sync", path.name))

        return call


def ids(repository: Repository) -> list[str]:
    return [commit.snapshot_id for commit in repository.commits()]


def files_of(repository: Repository, commit: str, name: str) -> dict[str, Path]:
    """Return the files of a snapshot, which is alone in its pack."""
    packs = repository.git_dir / "objects" / "pack"
    found = [index for index in packs.glob("*.idx") if bytes.fromhex(commit) in index.read_bytes()]
    return {
        "pack": found[0].with_suffix(".pack"),
        "idx": found[0],
        "pin": repository.git_dir / PINS / name,
        "main": repository.git_dir / MAIN,
    }


def check_complete(git_dir: Path, names: list[str]) -> Repository:
    """Check that exactly these snapshots are there, undamaged, for us and for git."""
    found = Repository.open(git_dir)
    assert ids(found) == names
    assert found.verify() == []
    assert git(git_dir, "fsck", "--strict", "--no-dangling") == ""
    assert git(git_dir, "rev-parse", "main").strip() == found.commits()[-1].ref
    return found


def test_a_small_commit_waits_for_the_disk_once(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        disk = Disk(patch)
        snapshot(repository, "second", b"second")
    assert [step for step in disk.steps if step[0] == "sync"] == [("sync", LOG)]
    assert disk.steps[0] == ("sync", LOG)  # before anything gets its name
    assert "second" in {name for _, name in disk.steps[1:]}


def test_a_commit_that_need_not_wait_is_in_the_log_all_the_same(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        disk = Disk(patch)
        commit = snapshot(repository, "second", b"second", wait=False)
    assert not [step for step in disk.steps if step[0] == "sync"]
    for path in files_of(repository, commit, "second").values():
        lose(path, "empty")
    restart(repository.git_dir)
    check_complete(repository.git_dir, ["first", "second"])


@pytest.mark.parametrize("lost", SOME)
@pytest.mark.parametrize("how", WAYS)
def test_files_that_a_power_failure_lost_are_written_again(
    repository: Repository, lost: tuple[str, ...], how: str
) -> None:
    commit = snapshot(repository, "second", b"second")
    files = files_of(repository, commit, "second")
    for each in lost:
        lose(files[each], how)
    restart(repository.git_dir)
    check_complete(repository.git_dir, ["first", "second"])


@pytest.mark.parametrize("how", WAYS[1:])
def test_another_name_of_a_commit_that_was_lost_with_its_ref_is_dropped(
    repository: Repository, how: str
) -> None:
    commit = snapshot(repository, "second", b"second")
    assert repository.name_again("second", commit, MOMENT) is not None
    lose(files_of(repository, commit, "second")["pin"], how)
    restart(repository.git_dir)
    check_complete(repository.git_dir, ["first", "second"]).gc()


def test_without_a_restart_nothing_is_written_again(repository: Repository) -> None:
    commit = snapshot(repository, "second", b"second")
    lose(files_of(repository, commit, "second")["pack"], "zeros")
    assert Repository.open(repository.git_dir).verify() != []


def test_an_old_main_branch_moves_on(repository: Repository) -> None:
    before = (repository.git_dir / MAIN).read_bytes()
    snapshot(repository, "second", b"second")
    (repository.git_dir / MAIN).write_bytes(before)
    restart(repository.git_dir)
    found = check_complete(repository.git_dir, ["first", "second"])
    snapshot(found, "third", b"third")
    assert [commit.sequence for commit in found.commits()] == [1, 2, 3]


def test_a_main_branch_that_a_person_moved_stays(repository: Repository) -> None:
    snapshot(repository, "second", b"second")
    tree = git(repository.git_dir, "rev-parse", "main^{tree}").strip()
    own = git(repository.git_dir, "commit-tree", "-m", "mine", tree).strip()
    git(repository.git_dir, "update-ref", MAIN, own)
    restart(repository.git_dir)
    Repository.open(repository.git_dir)
    assert (repository.git_dir / MAIN).read_text().strip() == own


def test_a_record_that_is_incomplete_was_never_there(tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "git", root=ROOT)
    snapshot(repository, "first", b"first")
    before = (repository.git_dir / LOG).read_bytes()
    kept = {path: path.read_bytes() for path in repository.git_dir.rglob("*") if path.is_file()}
    snapshot(repository, "second", b"second")
    after = (repository.git_dir / LOG).read_bytes()
    size = len(after.rstrip(b"\0")) - len(before.rstrip(b"\0"))
    start = len(before.rstrip(b"\0"))
    for path in repository.git_dir.rglob("*"):
        if path.is_file() and path not in kept:
            path.unlink()
    for path, data in kept.items():
        path.write_bytes(data)
    for cut in (1, 3, 5, 35, 40, size // 2, size - 1):
        (repository.git_dir / LOG).write_bytes(after[: start + cut].ljust(len(after), b"\0"))
        restart(repository.git_dir)
        check_complete(repository.git_dir, ["first"])


def test_a_full_log_is_emptied_once_its_files_are_on_the_disk(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "_CAPACITY", 8 * 1024)
    names = ["first"]
    with monkeypatch.context() as patch:
        disk = Disk(patch)
        for number in range(20):
            if not any(name.endswith(".pack") for kind, name in disk.steps if kind == "sync"):
                names.append(f"s{number}")
                snapshot(repository, names[-1], names[-1].encode())
    synced = [name for kind, name in disk.steps if kind == "sync"]
    last = len(synced) - 1 - synced[::-1].index(LOG)
    done = set(synced[:last])
    assert done >= {*names[:-1], "main", "pack", "wink"}  # all but the one that did not fit
    assert len([name for name in done if name.endswith(".idx")]) == len(names) - 1
    restart(repository.git_dir)
    check_complete(repository.git_dir, names)


def test_a_closed_repository_keeps_its_log_and_frees_the_rest(repository: Repository) -> None:
    snapshot(repository, "second", b"second")
    repository.close()
    assert (repository.git_dir / LOG).stat().st_size < 4096
    again = Repository.open(repository.git_dir)
    snapshot(again, "third", b"third")
    assert (repository.git_dir / LOG).stat().st_size == commit_log._CAPACITY
    again.close()
    restart(repository.git_dir)
    check_complete(repository.git_dir, ["first", "second", "third"])


def test_pruned_snapshots_stay_pruned(repository: Repository) -> None:
    for name in ("second", "third"):
        snapshot(repository, name, name.encode())
    repository.prune(["second"])
    repository.gc()
    restart(repository.git_dir)
    check_complete(repository.git_dir, ["first", "third"])


def test_pruned_snapshots_stay_pruned_even_if_the_log_was_not_emptied(
    repository: Repository,
) -> None:
    snapshot(repository, "second", b"second")
    log = (repository.git_dir / LOG).read_bytes()
    repository.prune(["first"])
    (repository.git_dir / LOG).write_bytes(log)  # emptying it is not synced
    restart(repository.git_dir)
    check_complete(repository.git_dir, ["second"])


@pytest.mark.parametrize(
    "point", ["log.appended", "objects.named", "objects.visible", "commit.stored", "commit.moved"]
)
def test_a_commit_that_fails_is_withdrawn(repository: Repository, point: str) -> None:
    def hook(name: str) -> None:
        if name == point:
            raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input"), fault_hook(hook):
        snapshot(repository, "second", b"second")
    snapshot(repository, "third", b"third")
    restart(repository.git_dir)
    check_complete(repository.git_dir, ["first", "third"])


def test_a_commit_that_is_too_large_for_the_log_is_synced_itself(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        disk = Disk(patch)
        snapshot(repository, "large", os.urandom(200_000))
    synced = [name for kind, name in disk.steps if kind == "sync"]
    assert LOG not in synced
    assert {"pack", "wink"} <= set(synced)
    restart(repository.git_dir)
    check_complete(repository.git_dir, ["first", "large"])


def test_without_an_id_of_the_boot_every_file_is_synced(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "boot_id", lambda: None)
    with monkeypatch.context() as patch:
        disk = Disk(patch)
        snapshot(repository, "second", b"second")
    synced = [name for kind, name in disk.steps if kind == "sync"]
    assert LOG not in synced
    assert {"pack", "wink"} <= set(synced)


def test_a_small_disk_has_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = os.statvfs(tmp_path)
    monkeypatch.setattr(commit_log, "_MIN_ROOM", 2 * room.f_blocks * room.f_frsize)
    repository = Repository.create(tmp_path / "git", root=ROOT)
    snapshot(repository, "first", b"first")
    assert not (repository.git_dir / LOG).exists()
    check_complete(repository.git_dir, ["first"])


def test_two_writers_share_the_log(repository: Repository) -> None:
    other = Repository.open(repository.git_dir)
    names = ["first"]
    for number in range(6):
        names.append(f"s{number}")
        commit = snapshot((repository, other)[number % 2], names[-1], names[-1].encode())
        for path in files_of(repository, commit, names[-1]).values():
            if path.name != "main":
                assert path.exists()
    for path in (repository.git_dir / "objects" / "pack").iterdir():
        path.unlink()
    restart(repository.git_dir)
    check_complete(repository.git_dir, names)


def test_merged_packs_are_not_written_again(repository: Repository) -> None:
    names = ["first", *(f"s{number}" for number in range(80))]
    for name in names[1:]:
        snapshot(repository, name, name.encode())
    packs = repository.size().packs
    assert packs < 66
    restart(repository.git_dir)
    found = check_complete(repository.git_dir, names)
    assert found.size().packs == packs


def test_a_replay_that_is_cut_off_is_repeated(repository: Repository) -> None:
    commits = {name: snapshot(repository, name, name.encode()) for name in ("second", "third")}
    for name, commit in commits.items():
        files = files_of(repository, commit, name)
        for kind in ("pack", "idx", "pin"):
            lose(files[kind], "missing")
    restart(repository.git_dir)
    for point in ("log.replayed", "objects.named", "log.synced"):

        def hook(name: str, point: str = point) -> None:
            if name == point:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt), fault_hook(hook):
            Repository.open(repository.git_dir)
    check_complete(repository.git_dir, ["first", "second", "third"])


@pytest.mark.parametrize("damage", [b"", b"nonsense", b"winklog1" + bytes(300_000)])
def test_a_log_that_is_none_is_no_obstacle(repository: Repository, damage: bytes) -> None:
    (repository.git_dir / LOG).write_bytes(damage)
    snapshot(repository, "second", b"second")
    snapshot(Repository.open(repository.git_dir), "third", b"third")
    assert ids(repository) == ["first", "second", "third"]


@pytest.mark.parametrize("pin", ["{}", "../planted", f"{PINS}../../../planted", f"{PINS}x"])
def test_a_forged_log_writes_nothing_outside_the_store(
    repository: Repository, tmp_path: Path, pin: str
) -> None:
    planted = tmp_path / "planted"
    index = next((repository.git_dir / "objects" / "pack").glob("*.idx"))
    pack = index.with_suffix(".pack").read_bytes()
    log: CommitLog = vars(repository)["_log"]
    forged = LoggedCommit("any text", pin.format(planted), pack, index.read_bytes())
    assert log.append(forged)
    restart(repository.git_dir)
    check_complete(repository.git_dir, ["first"])
    assert not planted.exists()


def test_an_index_that_is_none_ends_the_log(repository: Repository) -> None:
    log: CommitLog = vars(repository)["_log"]
    for index in (b"", bytes(8 + 255 * 4) + b"\xff" * 4):
        assert log.append(LoggedCommit("0" * 40, f"{PINS}x", b"", index))
    restart(repository.git_dir)
    check_complete(repository.git_dir, ["first"])
