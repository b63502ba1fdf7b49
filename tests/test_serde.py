import enum
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Annotated, Any, Generic, Literal, TypeVar
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.errors import WinkError
from weakincentives.filesystem import FileEntry, FilesystemSnapshot, FileWritten
from weakincentives.serde import SerdeError, convert, decode, encode, json_schema, to_builtins
from weakincentives.serde.codec import MAX_NESTING

# a busy machine is no fault of the code

T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Inner:
    """A thing inside."""

    size: int
    name: str = "inner"


@dataclass(frozen=True, slots=True)
class Everything:
    number: int
    real: float
    text: str
    flag: bool
    raw: bytes
    when: datetime
    took: timedelta
    key: UUID
    where: PurePosixPath
    colour: Colour
    mode: Literal["create", "append"]
    maybe: Inner | None
    several: tuple[Inner, ...]
    pair: tuple[int, Inner]
    named: dict[str, Inner]
    counted: dict[int, str]
    group: frozenset[int]
    either: int | str


@dataclass(frozen=True, slots=True)
class Tree:
    value: int
    below: "tuple[Tree, ...]" = ()


@dataclass(frozen=True)
class Positive:
    value: int

    def __post_init__(self) -> None:
        if self.value <= 0:
            raise ValueError(f"value must be positive: {self.value!r}")


@dataclass(frozen=True)
class Box(Generic[T]):
    content: T


TEXT = st.text(st.characters(exclude_categories=()), max_size=8)  # lone surrogates too
INNER = st.builds(Inner, size=st.integers(), name=TEXT)
EVERYTHING = st.builds(
    Everything,
    number=st.integers(),
    real=st.floats(allow_nan=False, allow_infinity=False),
    text=TEXT,
    flag=st.booleans(),
    raw=st.binary(),
    when=st.datetimes(timezones=st.just(UTC)),
    took=st.timedeltas(),
    key=st.uuids(),
    where=st.sampled_from([PurePosixPath("a/b"), PurePosixPath("."), PurePosixPath("/x y")]),
    colour=st.sampled_from(Colour),
    mode=st.sampled_from(["create", "append"]),
    maybe=st.none() | INNER,
    several=st.lists(INNER, max_size=3).map(tuple),
    pair=st.tuples(st.integers(), INNER),
    named=st.dictionaries(TEXT, INNER, max_size=3),
    counted=st.dictionaries(st.integers(-(2**63), 2**63 - 1), TEXT, max_size=3),
    group=st.frozensets(st.integers(-(2**63), 2**63 - 1), max_size=3),
    either=st.integers(-(2**63), 2**63 - 1) | TEXT,
)


@given(EVERYTHING)
def test_what_is_encoded_is_decoded_unchanged(value: Everything):
    assert decode(encode(value), Everything) == value


@given(EVERYTHING)
def test_what_is_encoded_is_json_that_others_read(value: Everything):
    # with escapes, two halves of a character in a row would be read as the character
    expected = json.dumps(to_builtins(value), ensure_ascii=False)
    assert json.loads(encode(value)) == json.loads(expected)


@given(EVERYTHING)
def test_builtins_convert_back(value: Everything):
    assert convert(to_builtins(value), Everything) == value


HALVES = st.text(st.sampled_from('a"\\u\ud800\udbff\udc00\udfff\U0001f600'), max_size=6)


@given(st.recursive(HALVES, lambda inner: st.lists(inner) | st.dictionaries(HALVES, inner)))
def test_halves_of_characters_are_read_back_wherever_they_stand(value: object):
    data = encode(value)
    assert decode(data, object) == value
    assert decode(data.decode("utf-8", "surrogatepass"), object) == value


@pytest.mark.parametrize("data", [r'"\ud800"', r'"\udc00"', r'["\ud800"]', r'{"\uD800": 1}'])
def test_half_a_character_at_the_end_is_not_the_end_of_the_data(data: str):
    assert decode(data, object) == json.loads(data)
    assert decode(data.encode(), object) == json.loads(data)


def test_containers_of_dataclasses_are_types_too():
    assert decode(b'[{"size": 1}]', tuple[Inner, ...]) == (Inner(1),)
    assert convert({"a": {"size": 1}}, dict[str, Inner]) == {"a": Inner(1)}


def test_a_generic_dataclass_is_read_with_its_parameter():
    assert decode(b'{"content": {"size": 1}}', Box[Inner]) == Box(Inner(1))


def test_a_path_of_the_host_is_its_text():
    assert encode(Path("a/b.txt")) == b'"a/b.txt"'
    assert decode(b'"a/b.txt"', Path) == Path("a/b.txt")


def test_a_read_only_mapping_is_an_object():
    assert encode(MappingProxyType({"a": 1})) == b'{"a":1}'
    assert decode(b'{"a": 1}', Mapping[str, int]) == {"a": 1}


@pytest.mark.parametrize(
    "value",
    [
        FileWritten("caf\udce9.txt", 3, before_hash="00"),
        FileEntry("a", "x/a", is_file=True, is_directory=False),
        FilesystemSnapshot(UUID(int=1), datetime(2026, 1, 2, tzinfo=UTC), "mem-1", "/", tag="t"),
    ],
)
def test_what_the_filesystem_returns_can_be_stored(value: object):
    assert decode(encode(value), type(value)) == value


def test_a_field_that_the_type_does_not_have_is_refused_with_a_hint():
    with pytest.raises(SerdeError, match=r"Unknown field 'nme', did you mean 'name'\?"):
        decode(b'{"size": 1, "nme": "x"}', Inner)


@pytest.mark.parametrize(
    ("kind", "data", "place"),
    [
        (Tree, {"value": 1, "below": [{"value": 2}, {"value": 3, "x": 4}]}, "below[1].x"),
        (dict[str, Inner], {"k": {"size": 1, "x": 2}}, "['k'].x"),
        (tuple[int, Inner], [1, {"size": 1, "x": 2}], "[1].x"),
        (Inner | None, {"size": 1, "x": 2}, "x"),
        (Annotated[Inner, msgspec.Meta(description="d")], {"size": 1, "x": 2}, "x"),
        (Box[Inner], {"content": {"size": 1, "x": 2}}, "content.x"),
        (dict[str, Inner] | list[Inner], [{"size": 1, "x": 2}], "[0].x"),
    ],
)
def test_an_unknown_field_is_found_at_any_depth(kind: Any, data: object, place: str):
    with pytest.raises(SerdeError) as caught:
        convert(data, kind)
    assert caught.value.problems == (f"Unknown field {place!r}",)


def test_a_field_whose_name_is_no_text_is_refused():
    with pytest.raises(SerdeError, match=r"^Field '\[0\]': expected str$"):
        convert([{"size": 1, 3: 4}], list[Inner])
    with pytest.raises(SerdeError, match="Unknown field '3'"):
        convert({"size": 1, 3: 4}, Inner)


def test_every_wrong_field_has_its_sentence():
    with pytest.raises(SerdeError) as caught:
        convert({"name": 3, "extra": 1}, Inner)
    assert caught.value.problems == (
        "Unknown field 'extra'",
        "Missing field 'size'",
        "Field 'name': expected str, got int: 3",
    )
    assert str(caught.value) == "; ".join(caught.value.problems)
    assert isinstance(caught.value, WinkError)
    assert isinstance(caught.value, ValueError)


def test_a_wrong_value_inside_a_field_names_its_path():
    with pytest.raises(SerdeError, match=r"^Field 'below\[1\].value': expected int, got str$"):
        convert({"value": 1, "below": [{"value": 1}, {"value": "x"}]}, Tree)


def test_a_wrong_choice_lists_the_right_ones():
    @dataclass
    class Choice:
        mode: Literal["a", "b"] | None = None
        colour: Colour = Colour.RED

    with pytest.raises(SerdeError) as caught:
        convert({"mode": "c", "colour": "green"}, Choice)
    assert caught.value.problems == (
        "Field 'mode': invalid value 'c', expected 'a', 'b'",
        "Field 'colour': invalid value 'green', expected 'red', 'blue'",
    )


def test_what_a_dataclass_refuses_is_told_in_its_own_words():
    with pytest.raises(SerdeError, match="value must be positive: -1"):
        decode(b'{"value": -1}', Positive)
    with pytest.raises(SerdeError, match=r"'\[0\]'.*value must be positive: -1"):
        decode(b'[{"value": -1}]', list[Positive])


@pytest.mark.parametrize(
    "text",
    ["", "{", "nul", "[1,]", '{"size": 01}', "NaN", '{"size": NaN, "name": "\\udcff"}', "\xff"],
)
def test_what_is_not_json_is_refused(text: str):
    with pytest.raises(SerdeError, match="Not JSON"):
        decode(text, object)
    with pytest.raises(SerdeError, match="Not JSON"):
        decode(text.encode("latin-1"), object)


@pytest.mark.parametrize("kind", [object, Inner, Tree, list[Any]])
@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        "[" * 200_000 + "]" * 200_000,
        '{"below":[' * 100_000 + "]}" * 100_000,
        '{"value":1,"below":[' * 100_000 + "]}" * 100_000,
        '["\\udcff",' + "[" * 100_000,
        "9" * 1_000_000,
        '{"size": 1e999999}',
        '{"size": ' + "9" * 10_000 + "}",
    ],
)
def test_absurd_json_is_an_error_of_ours(text: str, kind: Any):
    with pytest.raises(SerdeError):
        decode(text, kind)


@given(st.binary(max_size=40) | st.text(max_size=40))
def test_any_input_decodes_or_raises_an_error_of_ours(data: bytes | str):
    try:
        decode(data, Tree)
    except SerdeError as error:
        assert error.problems


@pytest.mark.parametrize("text", ["a", "\udcff"])
def test_a_value_nested_too_deeply_is_an_error_of_ours(text: str):
    value: dict[str, object] = {"value": 1, "below": [], "text": text}
    for _ in range(100_000):
        value = {"value": 1, "below": [value]}
    for call in (encode, to_builtins, lambda each: convert(each, Tree)):
        with pytest.raises(SerdeError, match="Nested too deeply"):
            call(value)
    while value.get("below"):  # taken apart by hand: Python 3.11 recurses to free it
        value = value.pop("below").pop()  # type: ignore[attr-defined] # a list of these


@pytest.mark.parametrize("text", ["", "[" * 300, '\\"{{' * 300, "\udcff"])
def test_as_many_levels_are_encoded_as_are_decoded(text: str):
    """The bound does not depend on the depth of the stack."""
    value: object = text
    for _ in range(MAX_NESTING):
        value = [value]
    assert decode(encode(value), list[object]) == value
    for call in (encode, lambda each: decode(json.dumps(each), list[object])):
        with pytest.raises(SerdeError, match="Nested too deeply, at most 200 levels"):
            call([value])


def test_every_field_counts_also_one_that_the_constructor_does_not_take():
    @dataclass
    class Derived:
        value: int
        double: int = field(init=False)

        def __post_init__(self) -> None:
            self.double = 2 * self.value

    assert decode(encode(Derived(2)), Derived) == Derived(2)
    with pytest.raises(SerdeError, match=r"^Missing field 'double'$"):
        convert({"value": 2}, Derived)


def test_a_value_that_contains_itself_is_refused():
    loop: list[object] = []
    loop.append(loop)
    for call in (encode, to_builtins):
        with pytest.raises(SerdeError, match="Nested too deeply"):
            call(loop)


def test_a_value_without_json_is_refused_by_its_type():
    for call in (encode, to_builtins):
        with pytest.raises(SerdeError, match="Type 'object' cannot be encoded as JSON"):
            call({"a": object()})


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_lacks_is_refused_and_not_lost(number: float):
    with pytest.raises(SerdeError, match="NaN and infinity cannot be encoded"):
        encode({"a": [1.5, None, (number,)]})
    with pytest.raises(SerdeError, match="NaN and infinity cannot be encoded"):
        encode(["\udcff", number])


@pytest.mark.parametrize(
    "other", [b"\xcb\x7f\xf0", 0xCB7FF0, 2**63, "NaN", "\u02ff", {1: 2.5}, 1e308]
)
def test_what_only_looks_like_an_infinity_is_encoded(other: object):
    assert encode([None, other]) == b"[null," + encode(other) + b"]"


def test_a_type_that_cannot_be_read_is_refused():
    with pytest.raises(SerdeError, match="Type cannot be read"):
        convert({}, Inner | Tree)  # pyright: ignore[reportArgumentType] # a union is what is tested


def test_a_type_whose_annotations_lead_nowhere_is_refused():
    @dataclass
    class Lost:
        value: "Nowhere"  # type: ignore[name-defined] # noqa: F821 # what is tested

    with pytest.raises(SerdeError, match="name 'Nowhere' is not defined"):
        convert({"value": 1}, Lost)
    with pytest.raises(SerdeError, match="name 'Nowhere' is not defined"):
        json_schema(Lost)


def test_data_cannot_make_what_the_type_does_not_ask_for():
    with pytest.raises(SerdeError, match="Expected type, got str"):
        decode(b'"os.system"', type)


def test_the_schema_of_a_dataclass_stands_on_its_own():
    @dataclass
    class Params:
        """Write a file.

        It may be
        a new one.

        Attributes:
            path: Where, relative
                to the root.
            mode: How.
        """

        path: str
        mode: Literal["create", "append"] = "create"
        inner: Inner = field(default_factory=lambda: Inner(1), metadata={"description": "Inside."})
        sizes: tuple[int, ...] = ()
        target: Path | None = None

    assert json_schema(Params) == {
        "type": "object",
        "description": "Write a file.\n\nIt may be a new one.",
        "properties": {
            "path": {"type": "string", "description": "Where, relative to the root."},
            "mode": {"enum": ["append", "create"], "default": "create", "description": "How."},
            "inner": {
                "type": "object",
                "description": "Inside.",
                "properties": {
                    "size": {"type": "integer"},
                    "name": {"type": "string", "default": "inner"},
                },
                "required": ["size"],
                "additionalProperties": False,
            },
            "sizes": {"type": "array", "items": {"type": "integer"}, "default": []},
            "target": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        },
        "required": ["path"],
        "additionalProperties": False,
    }


def test_a_type_that_contains_itself_is_referred_to():
    schema = json_schema(Tree)
    below = {"type": "array", "items": {"$ref": "#/$defs/Tree"}, "default": []}
    assert schema["properties"] == {"value": {"type": "integer"}, "below": below}
    assert "$ref" not in schema
    definitions: Any = schema["$defs"]
    assert definitions["Tree"]["properties"] == schema["properties"]
    assert definitions["Tree"]["additionalProperties"] is False


class First:
    @dataclass
    class Twin:
        value: int = field(metadata={"description": "one"})


class Second:
    @dataclass
    class Twin:
        value: int = field(metadata={"description": "two"})


def test_two_classes_with_one_name_keep_their_own_descriptions():
    @dataclass
    class Both:
        a: First.Twin
        b: Second.Twin

    properties: Any = json_schema(Both)["properties"]
    assert properties["a"]["properties"]["value"]["description"] == "one"
    assert properties["b"]["properties"]["value"]["description"] == "two"


def test_an_inherited_field_keeps_its_description():
    @dataclass
    class Base:
        """Base.

        Args:
            a (int): The a.
            b: The b.
        """

        a: int
        b: int

    @dataclass
    class Derived(Base):
        """Derived.

        Args:
            b: Another b.

        Raises:
            a: not a field
        """

    properties: Any = json_schema(Derived)["properties"]
    assert [properties[name]["description"] for name in "ab"] == ["The a.", "Another b."]


def test_a_class_without_a_docstring_has_no_description():
    assert "description" not in json_schema(Box[int])


def test_anything_at_all_is_any_json():
    properties: Any = json_schema(Box[object])["properties"]
    kinds = ["array", "boolean", "null", "number", "object", "string"]
    assert properties == {"content": {"type": kinds}}


def test_a_description_may_have_lines_between_its_entries():
    @dataclass
    class Params:
        """Look.

        Attributes:

            path:
                Where.

            depth: How deep,

                at most.
        """

        path: str
        depth: int

    properties: Any = json_schema(Params)["properties"]
    assert properties["path"]["description"] == "Where."
    assert properties["depth"]["description"] == "How deep, at most."


def test_a_schema_is_plain_json():
    schema = json_schema(Everything)
    assert json.loads(json.dumps(schema)) == schema


def test_a_type_without_a_schema_is_refused():
    with pytest.raises(SerdeError, match="No JSON schema: type 'type' is not supported"):
        json_schema(Box[type])
