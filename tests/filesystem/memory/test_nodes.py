"""Copy-on-write dictionaries."""

from hypothesis import given
from hypothesis import strategies as st

from weakincentives.filesystem.memory.nodes import CopyOnWriteDict

NAMES = st.integers(0, 150).map(str)
STEPS = st.lists(
    st.tuples(st.sampled_from(["set", "remove", "copy"]), NAMES, st.integers()), max_size=400
)


@given(st.integers(0, 200), STEPS)
def test_every_copy_is_what_a_plain_dictionary_would_be(
    size: int, steps: list[tuple[str, str, int]]
) -> None:
    layered: CopyOnWriteDict[int] = CopyOnWriteDict()
    model: dict[str, int] = {}
    for number in range(size):
        layered[str(number)] = model[str(number)] = number
    kept: list[tuple[CopyOnWriteDict[int], dict[str, int]]] = []
    for step, name, value in steps:
        if step == "set":
            layered[name] = model[name] = value
        elif step == "remove" and name in model:
            del layered[name], model[name]
        elif step == "copy":
            kept.append((layered, model.copy()))
            layered = layered.copy()
        assert layered.get(name) == model.get(name)
    for copy, expected in [*kept, (layered, model)]:
        assert dict(copy.items()) == expected


def test_a_copy_of_a_large_one_holds_only_the_changes() -> None:
    layered: CopyOnWriteDict[int] = CopyOnWriteDict()
    for number in range(1_000):
        layered[str(number)] = number
    copy = layered.copy()
    copy["7"] = -7
    del copy["8"]
    assert (layered.get("7"), layered.get("8")) == (7, 8)
    assert (copy.get("7"), copy.get("8"), copy.get("9")) == (-7, None, 9)
    assert copy._base is layered._base  # pyright: ignore[reportPrivateUsage] # that is the claim
