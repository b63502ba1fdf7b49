from collections.abc import Hashable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from weakincentives.runtime.session.reducers import Items, create_items

# a busy machine is no fault of the code

ME, OTHER = "me", "other"


@dataclass
class Version:
    """A value that was made at some time, and what must be in it for ever."""

    items: Items[Any]
    expected: tuple[Any, ...]

    def check(self) -> None:
        assert self.items.as_tuple() == self.expected
        assert tuple(self.items) == self.expected
        assert len(self.items) == len(self.expected)
        assert self.items.latest() == (self.expected[-1] if self.expected else None)


def last_with(expected: tuple[Any, ...], key: Hashable) -> int | None:
    found = [position for position, each in enumerate(expected) if each[0] == key]
    return found[-1] if found else None


key_of = itemgetter(0)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["append", "replace", "without"]),
        st.integers(0, 100),  # which of the versions so far
        st.integers(0, 3),  # key
        st.sampled_from([ME, ME, ME, OTHER]),
    ),
    max_size=40,
)


@settings(max_examples=300)
@given(STEPS)
def test_every_version_keeps_its_items_whatever_is_made_from_it(
    steps: list[tuple[str, int, int, str]],
):
    versions = [Version(create_items(()), ())]
    for number, (step, which, key, owner) in enumerate(steps):
        # mostly the newest, as a session does
        old = versions[-1 if which > 30 else which % len(versions)]
        item = (key, number)
        position = old.items.position(key_of, key, owner)
        assert position == last_with(old.expected, key)
        if step == "append" or position is None:
            made = Version(old.items.with_item(item, owner), (*old.expected, item))
        elif step == "replace":
            expected = (*old.expected[:position], item, *old.expected[position + 1 :])
            made = Version(old.items.with_item_at(position, item, key_of, owner), expected)
        else:
            expected = (*old.expected[:position], *old.expected[position + 1 :])
            made = Version(old.items.without(position, owner), expected)
        versions.append(made)
    for version in versions:
        version.check()


def test_the_tuple_is_made_once():
    items = create_items([1, 2])
    assert items.as_tuple() is items.as_tuple()


def test_what_it_was_made_of_may_change_afterwards():
    source = [1, 2]
    items = create_items(source, ME)
    source.append(3)
    assert items.as_tuple() == (1, 2)
    items.with_item(4, ME)
    assert source == [1, 2, 3]


def test_two_owners_never_append_to_one_list():
    # each owner has a lock of its own, so nothing would keep the two apart
    mine = create_items([1, 2], ME)
    theirs = mine.with_item(3, OTHER)
    assert theirs._list is not mine._list
    assert mine.with_item(4, ME)._list is mine._list
    assert theirs.with_item(5, OTHER)._list is theirs._list
