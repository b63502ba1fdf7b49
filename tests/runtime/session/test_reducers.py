from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.runtime.session import (
    EventReducer,
    Session,
    append_all,
    replace_latest,
    replace_latest_by,
    upsert_by,
)

# a busy machine is no fault of the code


@dataclass(frozen=True)
class Note:
    key: int
    text: str = ""


def key(note: Note) -> int:
    return note.key


NOTES = st.lists(st.builds(Note, st.integers(0, 4), st.text(max_size=2)))


def upsert_model(notes: list[Note]) -> tuple[Note, ...]:
    found: dict[int, Note] = {}
    for each in notes:
        found[each.key] = each
    return tuple(found.values())


def replace_model(notes: list[Note]) -> tuple[Note, ...]:
    found: dict[int, Note] = {}
    for each in notes:
        found.pop(each.key, None)
        found[each.key] = each
    return tuple(found.values())


MODELS = [
    (append_all, tuple[Note, ...]),
    (replace_latest, lambda notes: tuple(notes[-1:])),
    (upsert_by(key), upsert_model),
    (replace_latest_by(key), replace_model),
]


@pytest.mark.parametrize(("reducer", "model"), MODELS, ids=lambda each: repr(each)[:20])
@given(notes=NOTES)
def test_a_reducer_in_a_session_is_the_reducer_called_by_hand(reducer, model, notes):
    session = Session()
    session[Note].register(Note, reducer)
    by_hand: tuple[Note, ...] = ()
    for each in notes:
        assert session.dispatch(each).ok
        by_hand = reducer(by_hand, each)
        assert session[Note].all() == by_hand
    assert by_hand == model(notes)


@given(notes=NOTES, more=NOTES)
def test_keys_are_found_after_a_restore_too(notes: list[Note], more: list[Note]):
    session = Session()
    session[Note].register(Note, upsert_by(key))
    for each in notes:
        session.dispatch(each)
    savepoint = session.savepoint()
    for each in more:
        session.dispatch(each)
    session.restore_savepoint(savepoint)
    for each in more:
        session.dispatch(each)
    assert session[Note].all() == upsert_model([*notes, *more])


def test_of_two_seeded_items_with_one_key_the_last_is_replaced():
    session = Session()
    session[Note].register(Note, upsert_by(key))
    session[Note].seed([Note(1, "a"), Note(2), Note(1, "b")])
    session.dispatch(Note(1, "c"))
    assert session[Note].all() == (Note(1, "a"), Note(2), Note(1, "c"))


def test_the_names_are_shown():
    assert [repr(each) for each, _ in MODELS] == [
        "append_all",
        "replace_latest",
        "upsert_by",
        "replace_latest_by",
    ]
    assert isinstance(append_all, EventReducer)


@pytest.mark.parametrize("reducer", [append_all, replace_latest, upsert_by(key)])
def test_a_reducer_that_stores_events_refuses_a_slice_of_another_type(reducer: Any):
    @dataclass(frozen=True)
    class Other:
        pass

    with pytest.raises(
        TypeError, match=r"stores events, so a slice of Note cannot take: '.*Other'"
    ):
        Session()[Note].register(Other, reducer)
