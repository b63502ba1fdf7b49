"""The repository: snapshots survive git's gc, and git can show them."""

import json
import logging
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.gitstore.gitcommand import git, git_hash_object
from tests.gitstore.kill_repository import MOMENT, ROOT, snapshot
from weakincentives.errors import SnapshotError
from weakincentives.gitstore import objects
from weakincentives.gitstore.directory import Refs
from weakincentives.gitstore.repository import Repository, StoreSize, default_git_dir
from weakincentives.gitstore.trees import DIRECTORY, FILE, LINK, TreeEntry, encode_tree
from weakincentives.gitstore.verify import SnapshotProblem
from weakincentives.posix import fault_hook


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository.create(tmp_path / "git", root=ROOT)


def ids(repository: Repository) -> list[str]:
    return [commit.snapshot_id for commit in repository.commits()]


def fsck(repository: Repository) -> str:
    return git(repository.git_dir, "fsck", "--strict", "--no-dangling")


def content(repository: Repository, ref: str) -> bytes:
    """Return the one file of a snapshot, read by git."""
    return git(repository.git_dir, "cat-file", "blob", f"{ref}:f").encode()


def test_a_snapshot_says_what_was_said_about_it(repository: Repository) -> None:
    first = snapshot(repository, "one", b"1")
    second = snapshot(repository, "two", b"2")
    commit = repository.read_commit(second)
    assert (commit.ref, commit.snapshot_id, commit.tag) == (second, "two", "tag two")
    assert (commit.root, commit.created_at) == (str(ROOT), MOMENT)
    assert (commit.parents, commit.sequence) == ((first,), 2)
    assert ids(repository) == ["one", "two"]


def test_every_commit_is_new_and_40_hex(repository: Repository) -> None:
    refs = {snapshot(repository, f"s{number}", b"same") for number in range(5)}
    assert len(refs) == 5
    assert all(re.fullmatch("[0-9a-f]{40}", ref) for ref in refs)


def test_git_shows_the_snapshots_to_a_person(repository: Repository) -> None:
    snapshot(repository, "one", b"old\n")
    snapshot(repository, "two", b"new\n")
    log = git(repository.git_dir, "log", "--stat")
    assert log.index("tag two") < log.index("tag one")
    for part in ('id: "two"', 'root: "/workspace"', "Fri Jan 2 03:04:05 2026 +0000", "f | 2 +-"):
        assert part in log
    assert "-old\n+new\n" in git(repository.git_dir, "diff", "main~1", "main")
    assert "+new\n" in git(repository.git_dir, "show")
    assert git(repository.git_dir, "fsck", "--strict") == ""


def test_snapshots_survive_the_gc_of_git(repository: Repository) -> None:
    refs = [snapshot(repository, f"s{number}", b"%d" % number) for number in range(5)]
    git(repository.git_dir, "gc", "--aggressive", "--prune=now")
    git(repository.git_dir, "reflog", "expire", "--expire=now", "--all")
    git(repository.git_dir, "gc", "--prune=now")
    assert (repository.git_dir / "packed-refs").exists()
    assert [commit.ref for commit in repository.commits()] == refs
    assert repository.verify() == []
    new = snapshot(repository, "new", b"new")
    assert repository.read_commit(new).parents == (refs[-1],)
    repository.prune(["s1"])
    repository.gc()
    assert ids(repository) == ["s0", "s2", "s3", "s4", "new"]
    assert (fsck(repository), repository.verify()) == ("", [])


@pytest.mark.parametrize(
    "ref",
    ["", "HEAD", "main", "-q", "HEAD~1", "refs/heads/main", "0" * 40, "a" * 39, "é" * 40],
)
def test_what_is_no_commit_of_ours_is_unknown(repository: Repository, ref: str) -> None:
    good = snapshot(repository, "one", b"1")
    for wrong in (ref, good + "\n", good.upper(), good[:39], f" {good}"):
        if wrong != good:
            with pytest.raises(SnapshotError, match="Unknown snapshot"):
                repository.read_commit(wrong)


def test_other_objects_and_other_commits_are_no_snapshots(repository: Repository) -> None:
    commit = repository.read_commit(snapshot(repository, "one", b"1"))
    with pytest.raises(SnapshotError, match="is a tree"):
        repository.read_commit(commit.tree)
    foreign = git(repository.git_dir, "commit-tree", "-m", "mine", commit.tree).strip()
    with pytest.raises(SnapshotError, match="not made by this package"):
        repository.read_commit(foreign)


@pytest.mark.parametrize("name", ["", "-x", "a/b", "..", "a.lock", "a b", "a\n", "é", "a" * 65])
def test_ids_that_are_no_plain_names_are_refused(repository: Repository, name: str) -> None:
    with pytest.raises(SnapshotError, match="must be 1 to 64 letters"):
        snapshot(repository, name, b"1")
    with pytest.raises(SnapshotError, match="must be 1 to 64 letters"):
        repository.prune([name])
    assert repository.commits() == []


def test_an_id_is_used_once_and_a_tree_must_be_there(repository: Repository) -> None:
    first = snapshot(repository, "one", b"1")
    with pytest.raises(SnapshotError, match="exists already"):
        snapshot(repository, "one", b"2")
    with pytest.raises(SnapshotError, match="Tree is missing"):
        repository.commit("0" * 40, snapshot_id="two", created_at=MOMENT)
    assert [commit.ref for commit in repository.commits()] == [first]


def test_a_tree_that_is_stored_already_needs_no_batch(repository: Repository) -> None:
    tree = repository.read_commit(snapshot(repository, "one", b"1")).tree
    ref = repository.commit(tree, snapshot_id="two", created_at=MOMENT)
    assert repository.read_commit(ref).tag is None
    assert git(repository.git_dir, "log", "-1", "--format=%s").strip() == "snapshot"


def test_order_is_that_of_making_whatever_the_clock_says(repository: Repository) -> None:
    tree = repository.read_commit(snapshot(repository, "s0", b"1")).tree
    for number, year in enumerate((2030, 1969, 2001), start=1):
        moment = datetime(year, 1, 1, tzinfo=UTC)
        repository.commit(tree, snapshot_id=f"s{number}", created_at=moment)
    assert ids(repository) == ["s0", "s1", "s2", "s3"]
    assert repository.commits()[2].created_at == datetime(1969, 1, 1, tzinfo=UTC)
    assert fsck(repository) == ""


def test_files_that_come_and_go_meanwhile_do_not_disturb_the_size(repository: Repository) -> None:
    snapshot(repository, "one", b"1")
    done = threading.Event()

    def come_and_go() -> None:
        while not done.is_set():
            for number in range(50):
                (repository.git_dir / f".wink-tmp-{number}").touch()
            for number in range(50):
                (repository.git_dir / f".wink-tmp-{number}").unlink()

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        assert {repository.size().snapshots for _ in range(100)} == {1}
    finally:
        done.set()
        other.join()


def test_pruned_snapshots_are_gone_and_history_stays_readable(repository: Repository) -> None:
    refs = [snapshot(repository, f"s{number}", b"%d" % number) for number in range(6)]
    repository.prune(["s1", "s3", "s5", "never"])
    assert ids(repository) == ["s0", "s2", "s4"]
    assert fsck(repository) == ""
    before = repository.size()
    repository.gc()
    assert repository.size().objects == before.objects - 9
    assert repository.size().packs == 1
    assert (fsck(repository), repository.verify()) == ("", [])
    assert git(repository.git_dir, "log", "--format=%s").split("\n")[0] == "tag s4"
    assert [content(repository, refs[number]) for number in (0, 2, 4)] == [b"0", b"2", b"4"]
    with pytest.raises(SnapshotError, match="Unknown snapshot"):
        repository.read_commit(refs[1])
    assert repository.read_commit(snapshot(repository, "new", b"new")).parents == (refs[4],)
    assert fsck(repository) == ""


def test_without_snapshots_nothing_is_left(repository: Repository) -> None:
    for number in range(3):
        snapshot(repository, f"s{number}", b"%d" % number)
    repository.prune(["s0", "s1", "s2"])
    repository.gc()
    assert repository.commits() == []
    assert repository.size().objects == repository.size().packs == 0
    git(repository.git_dir, "fsck", "--strict")
    assert repository.read_commit(snapshot(repository, "new", b"1")).parents == ()
    assert fsck(repository) == ""


def test_gc_keeps_what_a_person_keeps(repository: Repository) -> None:
    git_dir = repository.git_dir
    first = snapshot(repository, "one", b"1")
    snapshot(repository, "two", b"2")
    loose = git_hash_object(git_dir, b"by hand")
    tree = git(git_dir, "mktree", given=f"100644 blob {loose}\tx\n".encode()).strip()
    below = git(git_dir, "commit-tree", "-m", "below", "-p", first, tree).strip()
    mine = git(git_dir, "commit-tree", "-m", "mine", "-p", below, tree).strip()
    git(git_dir, "tag", "-a", "-m", "annotated", "v1", mine)
    repository.prune(["one"])
    repository.gc()
    assert ids(repository) == ["two"]
    assert git(git_dir, "log", "--format=%s", "v1").split() == ["mine", "below", "tag", "one"]
    assert git(git_dir, "cat-file", "blob", loose) == "by hand"
    assert fsck(repository) == ""
    git(git_dir, "tag", "-d", "v1")
    repository.gc()
    assert loose not in repository.objects
    assert fsck(repository) == ""


def test_gc_keeps_whatever_a_ref_of_a_person_is_for(repository: Repository) -> None:
    git_dir = repository.git_dir
    snapshot(repository, "one", b"1")
    blob = git_hash_object(git_dir, b"by hand")
    below = git_hash_object(git_dir, b"below")
    tree = git(git_dir, "mktree", given=f"100644 blob {below}\tx\n".encode()).strip()
    top = git(git_dir, "mktree", given=f"040000 tree {tree}\td\n".encode()).strip()
    git(git_dir, "update-ref", "refs/tags/blob", blob)
    git(git_dir, "update-ref", "refs/tags/tree", top)
    repository.gc()
    assert all(each in repository.objects for each in (blob, below, tree, top))
    assert repository.size().objects == 3 + 4
    assert fsck(repository) == ""


def test_a_commit_of_something_else_than_a_tree_stops_gc(repository: Repository) -> None:
    snapshot(repository, "one", b"1")
    blob = git_hash_object(repository.git_dir, b"no tree")
    repository.commit(blob, snapshot_id="two", created_at=MOMENT)
    with pytest.raises(SnapshotError, match="is a blob, not a tree"):
        repository.gc()
    assert [problem.snapshot_id for problem in repository.verify()] == ["two"]


def test_a_ref_that_goes_while_all_are_listed_is_skipped(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    snapshot(repository, "one", b"1")
    snapshot(repository, "two", b"2")
    listed = Refs._iter_loose

    def late(self: Refs, prefix: str) -> Iterator[str]:
        for name in listed(self, prefix):
            if name.endswith("one"):
                (repository.git_dir / name).unlink()
            yield name

    monkeypatch.setattr(Refs, "_iter_loose", late)
    assert ids(repository) == ["two"]
    assert caplog.text == ""


def test_gc_of_a_tidy_repository_changes_nothing(repository: Repository) -> None:
    snapshot(repository, "one", b"1")
    repository.gc()
    packs = repository.objects.packs()
    repository.gc()
    assert repository.objects.packs() == packs
    assert repository.verify() == []


def test_what_is_remembered_of_the_store_is_void_when_objects_may_be_gone(
    repository: Repository,
) -> None:
    snapshot(repository, "one", b"1")
    seen = [repository.epoch()]
    snapshot(repository, "two", b"1")
    assert repository.epoch() == seen[0]
    for change in (lambda: repository.prune(["one"]), repository.gc):
        change()
        seen.append(repository.epoch())
    (repository.git_dir / "wink.epoch").unlink()
    seen += [repository.epoch(), repository.epoch()]
    assert len(set(seen)) == 5


def test_gc_refuses_to_remove_anything_when_something_is_missing(repository: Repository) -> None:
    snapshot(repository, "one", b"1")
    ref = snapshot(repository, "two", b"2")
    [path] = [
        path
        for path in (repository.git_dir / "objects" / "pack").glob("*.pack")
        if holds(path, ref)
    ]
    path.unlink()
    before = sorted(each for each in repository.git_dir.rglob("*.pack"))
    with pytest.raises(SnapshotError, match="damaged: Object is missing"):
        Repository.open(repository.git_dir).gc()
    assert sorted(each for each in repository.git_dir.rglob("*.pack")) == before
    problems = Repository.open(repository.git_dir).verify()
    assert [problem.snapshot_id for problem in problems] == ["two"]


def holds(pack: Path, ref: str) -> bool:
    return bytes.fromhex(ref) in pack.with_suffix(".idx").read_bytes()


@pytest.mark.parametrize("data", [b"", b"x", b"ref: refs/heads/main\n", b"0" * 39 + b"\n"])
def test_a_damaged_ref_is_told_and_can_be_pruned(
    repository: Repository, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    snapshot(repository, "one", b"1")
    snapshot(repository, "two", b"2")
    (repository.git_dir / "refs" / "wink" / "one").write_bytes(data)
    assert ids(repository) == ["two"]
    assert "refs/wink/one" in caplog.text
    assert repository.verify() == [SnapshotProblem("one", "Ref is damaged")]
    with pytest.raises(SnapshotError, match="Ref is damaged: 'refs/wink/one'"):
        repository.gc()
    snapshot(repository, "three", b"3")
    repository.prune(["one"])
    repository.gc()
    assert (ids(repository), repository.verify(), fsck(repository)) == (["two", "three"], [], "")


def test_another_name_keeps_a_snapshot_and_has_its_own_date(repository: Repository) -> None:
    ref = snapshot(repository, "first", b"first")
    later = MOMENT + timedelta(hours=1, microseconds=7)
    name = str(repository.name_again("first", ref, later))
    (first, again) = repository.commits()
    assert (again.ref, again.tree, again.snapshot_id) == (ref, first.tree, name)
    assert (again.created_at, again.tag) == (later, None)
    assert repository.verify() == []
    repository.prune(["first"])
    repository.gc()
    assert [each.snapshot_id for each in repository.commits()] == [name]
    assert content(repository, ref) == b"first"
    repository.prune([name])
    repository.gc()
    assert ref not in repository.objects


def test_only_the_latest_snapshot_gets_another_name(repository: Repository) -> None:
    first = snapshot(repository, "first", b"first")
    second = snapshot(repository, "second", b"second")
    assert repository.name_again("first", first, MOMENT) is None
    repository.prune(["second"])
    assert repository.name_again("second", second, MOMENT) is None
    assert repository.name_again("first", first, MOMENT) is not None


def test_a_ref_to_another_snapshot_is_reported(repository: Repository) -> None:
    first, second = snapshot(repository, "one", b"1"), snapshot(repository, "two", b"2")
    (repository.git_dir / "refs" / "wink" / "one").write_text(second)
    [problem] = repository.verify()
    assert problem == SnapshotProblem("one", f"Commit belongs to another snapshot: {second!r}")
    assert first != second


@pytest.mark.parametrize("data", [b"", b"ref: refs/wink/one\n", b"0" * 40 + b"\n", None])
def test_a_damaged_main_branch_is_told_and_starts_again(
    repository: Repository, data: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    snapshot(repository, "one", b"1")
    last = snapshot(repository, "two", b"2")
    main = repository.git_dir / "refs" / "heads" / "main"
    main.unlink()
    if data is not None:
        main.write_bytes(data)
    if data != b"0" * 40 + b"\n":
        assert [problem.snapshot_id for problem in repository.verify()] == [None]
    with caplog.at_level(logging.ERROR):
        new = snapshot(repository, "new", b"new")
    assert repository.read_commit(new).parents == (last,)
    assert (repository.verify(), fsck(repository)) == ([], "")


def test_a_head_that_leads_elsewhere_is_told_and_not_followed(
    repository: Repository, tmp_path: Path
) -> None:
    ref = snapshot(repository, "one", b"1")
    (tmp_path / "secret").write_text(ref)
    (repository.git_dir / "HEAD").write_text("ref: ../secret\n")
    assert [problem.text for problem in repository.verify()] == [
        "HEAD does not point to the main branch"
    ]
    link = repository.git_dir / "refs" / "wink" / "two"
    link.symlink_to(tmp_path / "secret")
    assert ids(repository) == ["one"]
    assert SnapshotProblem("two", "Ref is damaged") in repository.verify()


def test_a_detached_head_is_kept(repository: Repository) -> None:
    ref = snapshot(repository, "one", b"1")
    snapshot(repository, "two", b"2")
    (repository.git_dir / "HEAD").write_text(ref + "\n")
    repository.prune(["one"])
    repository.gc()
    assert content(repository, ref) == b"1"


@pytest.mark.parametrize("data", [b"nonsense\n", b"\xff\n", b"0" * 40 + b" refs/wink/a b\n"])
def test_a_damaged_file_of_refs_is_reported(repository: Repository, data: bytes) -> None:
    snapshot(repository, "one", b"1")
    (repository.git_dir / "packed-refs").write_bytes(data)
    with pytest.raises(SnapshotError, match="Refs file is damaged"):
        repository.commits()
    with pytest.raises(SnapshotError, match="Refs file is damaged"):
        repository.gc()


def test_verify_finds_what_is_damaged_and_names_it(repository: Repository) -> None:
    with repository.lock(), repository.objects.begin_pack() as batch:
        blob = batch.add("blob", os.urandom(5_000))
        below = batch.add("tree", encode_tree([TreeEntry("bad.bin", FILE, blob)]))
        link = batch.add("blob", b"target")
        entries = [TreeEntry("d", DIRECTORY, below), TreeEntry("l", LINK, link)]
        tree = batch.add("tree", encode_tree(entries))
        repository.commit(tree, snapshot_id="one", created_at=MOMENT, batch=batch)
    [pack] = (repository.git_dir / "objects" / "pack").glob("*.pack")
    data = bytearray(pack.read_bytes())
    data[2_000] ^= 1
    pack.write_bytes(data)
    [problem] = Repository.open(repository.git_dir).verify()
    assert problem.snapshot_id == "one"
    assert problem.text.startswith(f"File is damaged: 'd/bad.bin': Object is damaged: {blob!r}")


def test_verify_finds_trees_that_are_not_ours(repository: Repository) -> None:
    with repository.lock(), repository.objects.begin_pack() as batch:
        blob = batch.add("blob", b"")
        tree = batch.add("tree", b"100644 .git\0" + bytes.fromhex(blob))
        repository.commit(tree, snapshot_id="one", created_at=MOMENT, batch=batch)
        wrong = batch_tree(
            repository, [TreeEntry("x", FILE, tree), TreeEntry("d", DIRECTORY, blob)]
        )
        repository.commit(wrong, snapshot_id="two", created_at=MOMENT)
    texts = [problem.text for problem in repository.verify()]
    assert len(texts) == 3
    assert all("damaged" in text for text in texts)


def batch_tree(repository: Repository, entries: list[TreeEntry]) -> str:
    with repository.objects.begin_pack() as batch:
        tree = batch.add("tree", encode_tree(entries))
        batch.finish()
    return tree


def test_verify_finds_damaged_packs(repository: Repository) -> None:
    snapshot(repository, "one", b"1")
    [index] = (repository.git_dir / "objects" / "pack").glob("*.idx")
    index.write_bytes(b"")
    texts = [problem.text for problem in Repository.open(repository.git_dir).verify()]
    assert texts[0].startswith(f"Pack cannot be read: {index.stem!r}")
    assert texts[1].startswith("Object is missing")


def test_the_size_is_that_of_what_is_there(repository: Repository) -> None:
    assert repository.size() == StoreSize(repository.size().bytes, 0, 0, 0)
    snapshot(repository, "one", os.urandom(100_000))
    snapshot(repository, "two", b"2")
    size = repository.size()
    assert (size.objects, size.packs, size.snapshots) == (6, 2, 2)
    log = (repository.git_dir / "wink-log").stat().st_size
    assert 100_000 < size.bytes - log < 110_000


def test_many_snapshots_make_few_packs(repository: Repository) -> None:
    refs = [snapshot(repository, f"s{number}", b"%d" % number) for number in range(150)]
    assert repository.size().packs <= 66
    assert [commit.ref for commit in repository.commits()] == refs
    assert (repository.verify(), fsck(repository)) == ([], "")


def test_a_merge_that_fails_does_not_fail_the_snapshot(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(objects, "_MAX_SMALL_PACKS", 2)

    def hook(point: str) -> None:
        if point == "objects.rewritten":
            raise OSError(28, "No space left on device")

    with fault_hook(hook):
        for number in range(5):
            snapshot(repository, f"s{number}", b"%d" % number)
    assert "could not be merged" in caplog.text
    assert (len(ids(repository)), repository.verify(), fsck(repository)) == (5, [], "")


def test_room_can_be_made_on_a_full_disk(repository: Repository) -> None:
    for number in range(4):
        snapshot(repository, f"s{number}", b"%d" % number)

    freed = repository.git_dir / "refs" / "wink" / "s0"

    def full(point: str) -> None:
        if point == "objects.packed" or (point == "gitdir.written" and freed.exists()):
            raise OSError(28, "No space left on device")

    with fault_hook(full):
        with pytest.raises(OSError, match="No space"):
            snapshot(repository, "new", b"new")
        repository.prune(["s0", "s1"])
        assert repository.size().packs == 4
        with pytest.raises(OSError, match="No space"):
            repository.gc()
    assert repository.size().packs == 2
    assert (repository.verify(), fsck(repository)) == ([], "")
    repository.gc()
    snapshot(repository, "new", b"new")
    assert (ids(repository), repository.verify()) == (["s2", "s3", "new"], [])


def test_history_that_cannot_be_cut_at_once_is_cut_later(
    repository: Repository, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        snapshot(repository, f"s{number}", b"%d" % number)

    def full(point: str) -> None:
        if point == "gitdir.written":
            raise OSError(28, "No space left on device")

    with fault_hook(full):
        repository.prune(["s1"])
    assert "Could not update the file 'shallow'" in caplog.text
    assert (ids(repository), fsck(repository)) == (["s0", "s2"], "")
    repository.gc()
    assert (repository.size().objects, repository.verify(), fsck(repository)) == (6, [], "")


def test_threads_take_turns(repository: Repository) -> None:
    other = Repository.open(repository.git_dir)
    failures: list[Exception] = []

    def work(name: str, mine: Repository) -> None:
        try:
            for number in range(10):
                snapshot(mine, f"{name}-{number}", f"{name} {number}".encode())
        except Exception as error:  # noqa: BLE001 # the test tells it
            failures.append(error)

    threads = [
        threading.Thread(target=work, args=(f"t{number}", [repository, other][number % 2]))
        for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    check_one_history(repository, 40)


def take(git_dir: Path, name: str) -> None:
    """Make ten snapshots, and remove one's own odd ones."""
    mine = Repository.open(git_dir)
    for number in range(10):
        snapshot(mine, f"{name}-{number}", f"{name} {number}".encode())
    mine.prune([f"{name}-{number}" for number in range(1, 10, 2)])
    mine.gc()


def test_processes_take_turns(repository: Repository) -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(3, mp_context=context) as pool:
        for done in [pool.submit(take, repository.git_dir, f"p{number}") for number in range(3)]:
            done.result()
    assert len(ids(repository)) == 15
    assert (repository.verify(), fsck(repository)) == ([], "")


def check_one_history(repository: Repository, count: int) -> None:
    commits = repository.commits()
    assert [commit.sequence for commit in commits] == list(range(1, count + 1))
    assert [commit.parents for commit in commits[1:]] == [(each.ref,) for each in commits[:-1]]
    assert (repository.verify(), fsck(repository)) == ([], "")


def test_the_default_place_depends_on_the_real_root(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "link").symlink_to("a")
    place = default_git_dir(tmp_path / "a")
    assert place.parent == Path(tempfile.gettempdir())
    assert place.name.startswith(f"wink-git-{os.getuid()}-")
    assert default_git_dir(tmp_path / "link") == place
    assert default_git_dir(tmp_path / "b" / ".." / "a") == place
    assert default_git_dir(tmp_path / "b") != place


def killed(operation: str, git_dir: Path, copies: Path) -> list[Path]:
    """Return copies of a repository in each of which an operation was killed, and one done."""
    copies.mkdir()
    arguments = ["-m", "tests.gitstore.kill_repository", operation, git_dir, copies]
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [copies / str(number) for number in range(int(done.stdout) + 1)]


def check_next_steps(git_dir: Path) -> None:
    """See that a repository works, and that nothing is left in it."""
    repository = Repository.create(git_dir, root=ROOT)
    before = ids(repository)
    ref = snapshot(repository, "after", b"after")
    assert ids(repository) == [*before, "after"]
    assert content(repository, ref) == b"after"
    repository.prune(["after"])
    repository.gc()
    assert ids(repository) == before
    assert (repository.verify(), fsck(repository)) in [([], ""), ([], HEAD_UNBORN)]
    assert len(repository.objects.packs()) == (1 if before else 0)
    names = [path.name for path in repository.git_dir.rglob("*")]
    assert not [name for name in names if name.startswith(".wink-tmp-")]
    assert len([name for name in names if name.startswith("pack-")]) == (2 if before else 0)


HEAD_UNBORN = "notice: HEAD points to an unborn branch (main)\nnotice: No default references\n"


@pytest.mark.parametrize(
    ("operation", "points", "outcomes"),
    [
        ("commit", 8, ["s0 s1 s2 s3", "s0 s1 s2 s3 new"]),
        ("prune", 6, ["s0 s1 s2 s3", "s0 s2 s3", "s0 s1 s2", "s0 s2"]),
        ("gc", 12, ["s0 s1 s2 s3"]),
    ],
)
def test_a_killed_operation_leaves_the_old_or_the_new_and_the_next_works(
    repository: Repository, tmp_path: Path, operation: str, points: int, outcomes: list[str]
) -> None:
    for number in range(4):
        snapshot(repository, f"s{number}", b"%d" % number)
    git_hash_object(repository.git_dir, b"by hand")
    copies = killed(operation, repository.git_dir, tmp_path / "copies")
    assert len(copies) > points
    for copy in copies:
        again = Repository.open(copy)
        assert " ".join(ids(again)) in outcomes
        assert (again.verify(), fsck(again)) == ([], "")
        for commit in again.commits():
            expected = commit.snapshot_id.removeprefix("s").encode()
            assert content(again, commit.ref) == expected
        check_next_steps(copy)


def test_a_killed_creation_is_finished_by_the_next(tmp_path: Path) -> None:
    copies = killed("create", tmp_path / "not-there", tmp_path / "copies")
    assert len(copies) > 8
    for copy in copies:
        check_next_steps(copy)


def test_a_killed_removal_is_finished_by_the_next(repository: Repository, tmp_path: Path) -> None:
    snapshot(repository, "one", b"1")
    copies = killed("remove", repository.git_dir, tmp_path / "copies")
    assert not copies.pop().exists()
    assert len(copies) >= 8
    for number, copy in enumerate(copies):
        if number % 2:
            check_next_steps(copy)
        again = Repository.create(copy, root=ROOT)
        assert again.remove()
        assert not copy.exists() or list(copy.iterdir()) == []


def test_a_repository_is_removed_when_nobody_uses_it(repository: Repository) -> None:
    snapshot(repository, "one", b"1")
    other = Repository.open(repository.git_dir)
    with other.prevent_removal():
        assert not repository.remove()
        assert ids(repository) == ["one"]
    assert repository.remove()
    assert not repository.git_dir.exists()
    assert repository.remove()


USER = """
import sys
from pathlib import Path
from weakincentives.gitstore.directory import Refs
from weakincentives.gitstore.repository import Repository
with Repository.open(Path(sys.argv[1])).prevent_removal():
    print("in use", flush=True)
    sys.stdin.read()
"""


def test_a_user_in_another_process_counts_until_it_dies(repository: Repository) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", USER, repository.git_dir],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"in use\n"
        assert not repository.remove()
        child.kill()
        child.wait()
        assert repository.remove()


def test_who_made_a_repository_makes_it_again_and_who_opened_it_does_not(
    repository: Repository,
) -> None:
    snapshot(repository, "one", b"1")
    opened = Repository.open(repository.git_dir)
    assert Repository.open(repository.git_dir).remove()
    with pytest.raises(SnapshotError, match="Snapshot store is missing"):
        snapshot(opened, "two", b"2")
    assert not repository.git_dir.exists()
    with repository.prevent_removal():
        assert ids(repository) == []
        new = snapshot(repository, "one", b"1")
    assert repository.read_commit(new).parents == ()
    assert (repository.verify(), fsck(repository)) == ([], "")


def test_the_configuration_keeps_git_from_doing_anything_by_itself(
    repository: Repository,
) -> None:
    def option(name: str) -> str:
        return git(repository.git_dir, "config", "--local", name).strip()

    assert option("core.bare") == "true"
    assert option("gc.auto") == "0"
    assert not (repository.git_dir / option("core.hooksPath")).exists()
    assert json.loads((repository.git_dir / "wink.json").read_text())["root"] == str(ROOT)
