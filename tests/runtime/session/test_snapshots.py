import json
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.errors import WinkError
from weakincentives.filesystem import FilesystemSnapshot, InMemoryFilesystem
from weakincentives.runtime import ManualClock, ToolInvoked
from weakincentives.runtime.session import (
    Session,
    Snapshot,
    SnapshotFormatError,
    append_all,
    replace_latest,
)
from weakincentives.serde import SerdeError

# a busy machine is no fault of the code

HERE = __name__


@dataclass(frozen=True)
class Step:
    text: str
    data: bytes = b""
    done: bool = False


@dataclass(frozen=True)
class Plan:
    steps: tuple[Step, ...] = ()
    when: datetime | None = None


@dataclass(frozen=True)
class LongStep(Step):
    more: str = ""


@dataclass(frozen=True)
class Odd:
    value: Any


TYPES = (Step, Plan)
TEXT = st.text(st.characters(exclude_categories=()), max_size=5)
STEPS = st.lists(st.builds(Step, TEXT, st.binary(max_size=4), st.booleans()), max_size=5)
PLANS = st.builds(Plan, STEPS.map(tuple), st.none() | st.datetimes(timezones=st.just(UTC)))


@pytest.fixture
def snapshot() -> Snapshot:
    session = Session(session_id=UUID(int=2), clock=ManualClock())
    session[Step].seed([Step("a"), Step("b", b"\xff", done=True)])
    session.install(Plan, initial=Plan)
    return session.snapshot("turn-1", snapshot_id=UUID(int=1))


def document(snapshot: Snapshot) -> dict[str, Any]:
    return json.loads(snapshot.to_json())


@given(STEPS, st.lists(PLANS, max_size=3), st.none() | TEXT)
def test_a_snapshot_comes_back_from_json_unchanged(
    steps: list[Step], plans: list[Plan], tag: str | None
):
    session = Session()
    session[Step].seed(steps)
    session[Plan].seed(plans)
    session.dispatch(ToolInvoked(tool="ls", params={"path": "."}))
    snapshot = session.snapshot(tag)
    assert Snapshot.from_json(snapshot.to_json(), TYPES) == snapshot
    assert Snapshot.from_json(snapshot.to_json().encode(), TYPES) == snapshot


def test_the_json_is_as_the_format_says(snapshot: Snapshot):
    assert document(snapshot) == {
        "format": "wink-session",
        "version": 1,
        "snapshot_id": "00000000-0000-0000-0000-000000000001",
        "session_id": "00000000-0000-0000-0000-000000000002",
        "created_at": "2026-01-01T00:00:00Z",
        "tag": "turn-1",
        "slices": [
            {
                "type": f"{HERE}:Plan",
                "log": False,
                "items": [{"steps": [], "when": None}],
            },
            {
                "type": f"{HERE}:Step",
                "log": False,
                "items": [
                    {"text": "a", "data": "", "done": False},
                    {"text": "b", "data": "/w==", "done": True},
                ],
            },
        ],
    }


def test_a_session_goes_on_from_what_was_loaded(snapshot: Snapshot):
    session = Session()
    session[Step].register(Step, append_all)
    session[Plan].register(Plan, replace_latest)
    session.restore(Snapshot.from_json(snapshot.to_json(), TYPES))
    session.dispatch(Step("c"))
    assert [each.text for each in session[Step].all()] == ["a", "b", "c"]
    assert session[Plan].all() == (Plan(),)


def test_logs_are_stored_and_stay_logs_when_they_are_loaded():
    session = Session()
    event = ToolInvoked(tool="ls", params={"path": "."})
    session.dispatch(event)
    loaded = Snapshot.from_json(session.snapshot().to_json())
    assert loaded.logs == {ToolInvoked}
    fresh = Session()
    fresh.restore(loaded)
    assert fresh[ToolInvoked].all() == ()
    fresh.restore(loaded, preserve_logs=False)
    assert fresh[ToolInvoked].all() == (event,)


def test_the_types_of_this_package_need_not_be_given():
    session = Session()
    session[FilesystemSnapshot].append(InMemoryFilesystem().snapshot(tag="a"))
    session.dispatch(ToolInvoked(tool="ls"))
    snapshot = session.snapshot()
    assert Snapshot.from_json(snapshot.to_json()) == snapshot


def test_a_type_that_was_not_given_is_refused(snapshot: Snapshot):
    with pytest.raises(SnapshotFormatError) as caught:
        Snapshot.from_json(snapshot.to_json(), [Plan])
    assert str(caught.value) == f"Slice type is not among those given: '{HERE}:Step'"
    assert isinstance(caught.value, WinkError)
    assert isinstance(caught.value, ValueError)


def test_a_type_that_has_moved_is_found_by_its_old_name(snapshot: Snapshot):
    old = snapshot.to_json().replace(f"{HERE}:", "old.place:")
    loaded = Snapshot.from_json(old, {"old.place:Step": Step, "old.place:Plan": Plan})
    assert loaded == snapshot


def test_two_types_cannot_have_one_name(snapshot: Snapshot):
    twin = dataclass(frozen=True)(type("Step", (), {"__module__": HERE, "__qualname__": "Step"}))
    with pytest.raises(ValueError, match="Two types have the same name"):
        Snapshot.from_json(snapshot.to_json(), [Step, twin])


def test_the_same_type_may_be_given_twice(snapshot: Snapshot):
    assert Snapshot.from_json(snapshot.to_json(), [*TYPES, Step, ToolInvoked]) == snapshot


HOSTILE_NAMES = [
    "os:system",
    "subprocess:Popen",
    "builtins:eval",
    "antigravity:fly",
    "this:s",
    "",
    ":",
    "\u0000",
    "../../x",
    "weakincentives.runtime.session.session:Session",
    "weakincentives.runtime.events:InProcessEventBus",
]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_name_in_the_data_is_only_looked_up(snapshot: Snapshot, name: str):
    data = document(snapshot)
    data["slices"][0] = {"type": name, "log": False, "items": [["rm -rf /"]]}
    with pytest.raises(SnapshotFormatError, match="not among those given"):
        Snapshot.from_json(json.dumps(data), TYPES)


LOADING = """
import sys
from dataclasses import dataclass
from typing import Any
from weakincentives.runtime.session import Session, Snapshot, SnapshotFormatError

@dataclass(frozen=True)
class Bag:
    value: Any

session = Session()
session[Bag].append(Bag({"__class__": "os.system", "py/object": "antigravity.x", "$type": "this"}))
text = session.snapshot().to_json()
Snapshot.from_json(text, [Bag])  # whatever is imported for a first time has been

happened = []
watching = True
sys.addaudithook(lambda name, _: watching and happened.append(name))
Snapshot.from_json(text, [Bag])
for name in ("os:system", "antigravity:fly", "__main__:Session", "this:s"):
    try:
        Snapshot.from_json(text.replace("__main__:Bag", name), [Bag])
        raise AssertionError(name)
    except SnapshotFormatError:
        pass
watching = False
assert "antigravity" not in sys.modules
print(sorted(set(happened) - {"object.__getattr__", "sys._getframe"}))
"""


def test_loading_imports_opens_compiles_and_runs_nothing():
    done = subprocess.run(
        [sys.executable, "-c", LOADING], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("version", [0, 2, 10**30, -1])
def test_another_version_is_refused_by_its_number(snapshot: Snapshot, version: int):
    text = json.dumps(document(snapshot) | {"version": version, "new": "field"})
    with pytest.raises(SnapshotFormatError, match=f"has version {version}, this program reads 1"):
        Snapshot.from_json(text, TYPES)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "null",
        "3",
        '{"format": "wink-session"}',
        '{"format": "wink-session", "version": "1"}',
        '{"format": "wink-session", "version": true}',
        '{"format": "other", "version": 1}',
        '{"format": "wink-session", "version": 1}',
        "\ud800",
        "[" * 100_000,
        '{"a":' * 100_000,
        "9" * 100_000,
        '{"format": "wink-session", "version": ' + "9" * 100_000 + "}",
    ],
)
def test_what_is_not_a_snapshot_is_refused(text: str):
    with pytest.raises(SnapshotFormatError):
        Snapshot.from_json(text, TYPES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slices": None}, "Field 'slices': expected array, got null"),
        ({"slices": [{"type": "x"}]}, "missing required field"),
        ({"extra": 1}, "Unknown field 'extra'"),
        ({"snapshot_id": "not an id"}, "Field 'snapshot_id'"),
        ({"created_at": "yesterday"}, "Field 'created_at'"),
        ({"created_at": "2026-01-01T00:00:00"}, "no time zone"),
        ({"tag": 3}, "Field 'tag'"),
    ],
)
def test_a_damaged_snapshot_says_where(snapshot: Snapshot, change: dict[str, Any], message: str):
    with pytest.raises(SnapshotFormatError, match=message):
        Snapshot.from_json(json.dumps(document(snapshot) | change), TYPES)


def test_a_damaged_item_says_where(snapshot: Snapshot):
    data = document(snapshot)
    data["slices"][1]["items"][1]["done"] = "yes"
    with pytest.raises(SnapshotFormatError) as caught:
        Snapshot.from_json(json.dumps(data), TYPES)
    assert str(caught.value) == f"Slice '{HERE}:Step': Field '[1].done': expected bool, got str"
    data["slices"][1]["items"] = [{"text": "a", "donne": True}]
    with pytest.raises(
        SnapshotFormatError, match=r"Unknown field '\[0\].donne', did you mean 'done'"
    ):
        Snapshot.from_json(json.dumps(data), TYPES)


def test_a_slice_cannot_appear_twice(snapshot: Snapshot):
    data = document(snapshot)
    data["slices"].append(data["slices"][0])
    with pytest.raises(SnapshotFormatError, match="appears twice"):
        Snapshot.from_json(json.dumps(data), TYPES)


@given(st.data())
def test_any_damage_is_an_error_of_ours_or_another_snapshot(data: st.DataObject):
    session = Session(clock=ManualClock())
    session[Step].seed([Step("a"), Step("b")])
    text = session.snapshot("t").to_json()
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 8)))
    broken = text[:start] + data.draw(st.text(max_size=6)) + text[end:]
    try:
        assert isinstance(Snapshot.from_json(broken, TYPES), Snapshot)
    except SnapshotFormatError as error:
        assert str(error)


@given(st.integers(0, 10_000))
def test_a_snapshot_that_was_cut_off_is_refused(length: int):
    session = Session(clock=ManualClock())
    session[Step].seed([Step("a"), Step("b")])
    text = session.snapshot("t").to_json()
    with pytest.raises(SnapshotFormatError):
        Snapshot.from_json(text[: length % len(text)], TYPES)


def test_an_item_that_json_cannot_say_is_refused_when_it_is_stored():
    session = Session()
    session[Odd].append(Odd(object()))
    with pytest.raises(SerdeError, match="Type 'object' cannot be encoded as JSON"):
        session.snapshot().to_json()


def test_an_item_of_a_subclass_would_lose_fields_and_is_refused_when_it_is_stored():
    session = Session()
    session[Step].append(LongStep("a", more="b"))
    with pytest.raises(SerdeError, match=r"A slice of Step cannot store a subclass: LongStep"):
        session.snapshot().to_json()
