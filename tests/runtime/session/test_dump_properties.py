"""Dump, load, dump: the same bytes, whatever is in the session and in the workspace."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.filesystem.generated_trees import (
    DIRECTORY_MODES,
    FILE_MODES,
    ODD,
    PLAIN,
    RESERVED,
    TEXTS,
    Children,
    Directory,
    File,
    Link,
)
from tests.filesystem.trees_on_disk import clear, lay_out, state_of
from weakincentives.filesystem import BaseFilesystem, HostFilesystem, InMemoryFilesystem
from weakincentives.runtime import ToolInvoked
from weakincentives.runtime.session import Session, dump_session_tree, load_dump, load_session

# a busy machine is no fault of the code
shared_fixture = settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
DATE = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Step:
    text: str
    data: bytes = b""
    score: float = 0.0
    when: datetime | None = None


@dataclass(frozen=True)
class Plan:
    steps: tuple[Step, ...] = ()
    labels: dict[str, int | None] | None = None


TYPES = (Step, Plan)
# lone surrogates too
TEXT = st.text(st.characters(exclude_categories=()), max_size=5)
ZONES = st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))])
STEPS = st.lists(
    st.builds(
        Step,
        TEXT,
        st.binary(max_size=4),
        st.floats(allow_nan=False, allow_infinity=False),
        st.none() | st.datetimes(timezones=ZONES),
    ),
    max_size=4,
)
LABELS = st.none() | st.dictionaries(TEXT, st.none() | st.integers(-(2**63), 2**63 - 1), max_size=3)
PLANS = st.lists(st.builds(Plan, STEPS.map(tuple), LABELS), max_size=3)


@st.composite
def trees(draw: st.DrawFn) -> Session:
    """Sessions in a tree of any shape."""
    made: list[Session] = []
    for _ in range(draw(st.integers(1, 4))):
        session = Session(
            parent=draw(st.sampled_from(made)) if made else None,
            session_id=draw(st.uuids()),
            created_at=draw(st.datetimes(timezones=ZONES)),
            tags=draw(st.dictionaries(TEXT.filter("session_id".__ne__), TEXT, max_size=2)),
        )
        for kind, items in ((Step, draw(STEPS)), (Plan, draw(PLANS))):
            if draw(st.booleans()):
                session.install(kind, log=draw(st.booleans()))
            session[kind].seed(items)
        made.append(session)
    made[0].dispatch(ToolInvoked(tool="ls", params={"path": draw(TEXT)}))
    return made[0]


def dumped(session: Session, target: Path, filesystem: BaseFilesystem | None = None) -> Path:
    path = dump_session_tree(session, target, filesystem, created_at=DATE)
    assert path is not None
    return path


@shared_fixture
@given(trees())
def test_a_tree_of_sessions_gives_the_same_bytes_again(tmp_path: Path, session: Session):
    path = dumped(session, tmp_path)
    before = path.read_bytes()
    loaded = load_session(path, TYPES)
    assert loaded[Step].all() == session[Step].all()
    assert loaded[Plan].all() == session[Plan].all()
    path.unlink()
    assert dumped(loaded, tmp_path).read_bytes() == before


# --- files ---


@contextmanager
def workspace(kind: str, directory: Path) -> Iterator[BaseFilesystem]:
    if kind == "memory":
        yield InMemoryFilesystem()
        return
    root = directory / "workspace"
    root.mkdir()
    with HostFilesystem(root, git_dir=directory / "store") as host:
        yield host
    clear(root)


def some_tree(choice: random.Random, depth: int = 2) -> Children:
    """Return entries of odd names and kinds, all of which their owner may read."""
    made: Children = {}
    for name in choice.sample([*PLAIN, *RESERVED, *ODD], choice.randint(1, 6)):
        kind = choice.random()
        if depth and kind < 0.4:
            below = some_tree(choice, depth - 1) if kind < 0.3 else {}
            made[name] = Directory(below, choice.choice(DIRECTORY_MODES) & 0o777 | 0o500)
        elif kind < 0.55:
            made[name] = Link(choice.choice([b"a", b"../..", b"/etc/passwd", b"\xff", b"no/where"]))
        else:
            made[name] = File(choice.choice(TEXTS), choice.choice(FILE_MODES) & 0o777 | 0o400)
    return made


@pytest.mark.parametrize("kind", ["memory", "host"])
@pytest.mark.parametrize("seed", range(12))
def test_files_of_every_kind_give_the_same_bytes_again(tmp_path: Path, kind: str, seed: int):
    target, root = tmp_path / "dumps", tmp_path / "source"
    root.mkdir()
    lay_out(root, some_tree(random.Random(seed)))
    session = Session(tags={"session_id": "x"})
    with HostFilesystem(root, git_dir=tmp_path / "kept") as source:
        path = dumped(session, target, source)
    before = path.read_bytes(), path.with_suffix(".fs.zip").read_bytes()
    with workspace(kind, tmp_path) as fs:
        loaded = load_dump(path, TYPES, filesystem=fs)
        if kind == "host":
            assert state_of(Path(fs.root)) == state_of(root)
        for each in target.iterdir():
            each.unlink()
        dumped(loaded.session, target, fs)
    assert (path.read_bytes(), path.with_suffix(".fs.zip").read_bytes()) == before
    clear(root)


def test_a_second_dump_gives_the_bytes_that_a_first_one_would(tmp_path: Path):
    fs = InMemoryFilesystem()
    fs.write("kept", "the same" * 100)
    fs.write("changed", "before")
    session = Session(tags={"session_id": "x"})
    dumped(session, tmp_path / "again", fs)
    fs.write("changed", "after")
    again, once = dumped(session, tmp_path / "again", fs), dumped(session, tmp_path / "once", fs)
    assert again.read_bytes() == once.read_bytes()
    assert again.with_suffix(".fs.zip").read_bytes() == once.with_suffix(".fs.zip").read_bytes()
