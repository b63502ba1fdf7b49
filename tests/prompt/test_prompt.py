"""Prompts: sections, numbering, parameters, tools, workspaces."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptError,
    PromptTemplate,
    Section,
    Tool,
    ToolContext,
    ToolResult,
    WorkspaceSection,
)
from weakincentives.runtime import Deadline
from weakincentives.runtime.session import Session


@dataclass(frozen=True)
class Task:
    goal: str
    hint: str = "none"


@dataclass(frozen=True)
class Style:
    loud: bool = False


@dataclass(frozen=True)
class Answer:
    text: str


def nothing(params: None, *, context: ToolContext) -> ToolResult[str]:
    return ToolResult("done", "nothing")


def tool(name: str) -> Tool[Any, Any]:
    return Tool(name, f"Does {name}.", nothing)


def section(title: str, template: str = "Text.", **given: Any) -> MarkdownSection[Any]:
    return MarkdownSection(title=title, template=template, **given)


def prompt(*sections: Section[Any], **given: Any) -> Prompt[Any]:
    return Prompt(ns="agents/test", key="one", sections=sections, **given)


class Workspace(MarkdownSection[Any]):
    """A section with a workspace that counts how often it was asked for."""

    def __init__(self, title: str = "Workspace") -> None:
        super().__init__(title=title, template="Files.")
        self.made: list[Filesystem] = []
        self.closed = 0

    @property
    def filesystem(self) -> Filesystem:
        if not self.made:
            self.made.append(InMemoryFilesystem())
        return self.made[0]

    def clone(self, *, session: Any = None, bus: Any = None) -> "Workspace":
        return Workspace(self.title)

    def close(self) -> None:
        self.closed += 1


def test_sections_are_numbered_and_nested():
    made = prompt(
        section("Role", "You help."),
        section("Rules", children=[section("Style", "Be brief."), section("Tone", "Be kind.")]),
    )
    assert made.render().text == (
        "## 1. Role\n\nYou help.\n\n## 2. Rules\n\nText.\n\n"
        "### 2.1. Style\n\nBe brief.\n\n### 2.2. Tone\n\nBe kind."
    )


def test_parameters_fill_their_places():
    made = prompt(MarkdownSection[Task](title="Task", template="Do ${goal}, hint: $hint."))
    assert made.render(Task("it")).text == "## 1. Task\n\nDo it, hint: none."
    assert made.bind(Task("this")).render().text.endswith("Do this, hint: none.")
    assert made.bind(Task("this")).render(Task("that")).text.endswith("Do that, hint: none.")


def test_a_template_may_be_indented_and_have_dollars():
    made = prompt(section("Prices", "\n    It costs $$5.\n      Indented.\n    "))
    assert made.render(None).text == "## 1. Prices\n\nIt costs $5.\n  Indented."


def test_values_with_dollars_are_not_filled_in_again():
    made = prompt(MarkdownSection[Task](title="Task", template="$goal"))
    assert made.render(Task("${hint} $goal")).text.endswith("${hint} $goal")


def test_defaults_are_used_when_nothing_is_given():
    made = prompt(
        section("A", "$goal", default_params=Task("by default")),
        MarkdownSection[Style](title="B", template="loud: $loud"),
    )
    assert made.render().text.endswith("by default\n\n## 2. B\n\nloud: False")


def test_missing_parameters_name_the_section_and_the_fields():
    made = prompt(section("Top", children=[MarkdownSection[Task](title="Task", template="$goal")]))
    with pytest.raises(PromptError, match="agents/test:one > top > task: needs a Task with goal"):
        made.render()


def test_parameters_that_nobody_takes_are_refused():
    with pytest.raises(PromptError, match="no section takes a Task"):
        prompt(section("A")).render(Task("x"))


def test_what_is_not_enabled_is_left_out_with_its_tools_and_children():
    made = prompt(
        MarkdownSection[Style](
            title="Loud",
            template="Shout.",
            enabled=lambda style: style.loud,
            tools=[tool("shout")],
            children=[section("More", tools=[tool("more")])],
        ),
        section("Never", enabled=lambda: False, tools=[tool("never")]),
        section("Always", tools=[tool("always")]),
    )
    quiet, loud = made.render(Style(False)), made.render(Style(True))
    assert quiet.text == "## 1. Always\n\nText."
    assert [each.name for each in quiet.tools] == ["always"]
    assert [each.name for each in loud.tools] == ["shout", "more", "always"]


def test_a_predicate_that_fails_is_named():
    def broken() -> bool:
        raise RuntimeError("oops")

    with pytest.raises(
        PromptError, match="agents/test:one > a: its enabled predicate failed: oops"
    ):
        prompt(section("A", enabled=broken)).render()


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ([], "needs at least one section"),
        ([section("A"), section("A")], "agents/test:one > a: two sections have this key"),
        (
            [
                section("A", tools=[tool("x")]),
                section("B", children=[section("C", tools=[tool("x")])]),
            ],
            "agents/test:one > b > c: tool 'x' is already defined in agents/test:one > a",
        ),
        ([section("A", "$goal")], r"agents/test:one > a: Template uses \$\{goal\}"),
        ([section("A", "costs $5")], "write '\\$\\$'"),
        ([Workspace("One"), Workspace("Two")], "a prompt can have only one workspace"),
        ([section("A", params_type=str)], "must be a dataclass"),
    ],
)
def test_what_can_never_be_rendered_is_refused_when_it_is_made(
    sections: Sequence[Section[Any]], message: str
):
    with pytest.raises(PromptError, match=message):
        prompt(*sections)


@pytest.mark.parametrize("key", ["", "Has Blanks", "../up", "x" * 65])
def test_names_are_plain(key: str):
    with pytest.raises(PromptError):
        Prompt(ns="agents", key=key, sections=[section("A")])
    with pytest.raises(PromptError):
        section("A", key=key)


def test_the_key_of_a_section_comes_from_its_title():
    assert section("What to do, & why?").key == "what-to-do-why"
    assert section("  ÄÖ ").key == "section"


def test_siblings_in_different_places_may_share_a_key():
    made = prompt(section("A", children=[section("X")]), section("B", children=[section("X")]))
    headings = [line for line in made.render().text.split("\n") if line.startswith("#")]
    assert headings == ["## 1. A", "### 1.1. X", "## 2. B", "### 2.1. X"]


def test_a_prompt_is_made_of_a_template_or_of_sections_but_not_both():
    template = PromptTemplate[Answer](ns="agents/test", key="one", sections=[section("A")])
    assert Prompt(template).render().output_type is Answer
    with pytest.raises(PromptError, match="not both"):
        Prompt(template, ns="agents", key="two")


def test_the_answer_is_declared_by_a_dataclass():
    plain = prompt(section("A")).render()
    assert (plain.output_type, plain.output_schema) == (None, None)
    one = prompt(section("A"), output_type=Answer).render()
    assert one.output_type is Answer
    assert one.output_schema is not None
    assert one.output_schema["required"] == ["text"]
    many = Prompt(
        PromptTemplate[list[Answer]](ns="agents/test", key="one", sections=[section("A")])
    ).render()
    assert many.is_array
    assert many.output_schema is not None
    assert many.output_schema["type"] == "array"
    with pytest.raises(PromptError, match="must be a dataclass"):
        prompt(section("A"), output_type=str).render()


def test_the_filesystem_is_that_of_the_workspace_section():
    inner = Workspace()
    made = prompt(section("A", children=[inner]))
    assert made.filesystem() is inner.filesystem
    assert prompt(section("A")).filesystem() is None


def test_a_workspace_is_not_made_before_somebody_asks():
    inner = Workspace()
    made = prompt(inner)
    made.render()
    assert inner.made == []
    assert isinstance(made.filesystem(), InMemoryFilesystem)
    assert isinstance(inner, WorkspaceSection)


def test_the_deadline_travels_with_the_rendered_prompt():
    deadline = Deadline.after(60)
    assert prompt(section("A")).render(deadline=deadline).deadline is deadline


def test_a_clone_has_sections_of_its_own_and_keeps_parameters():
    workspace = Workspace()
    made = prompt(MarkdownSection[Task](title="Task", template="$goal"), workspace).bind(Task("x"))
    other = made.clone(session=Session())
    assert other.render().text == made.render().text
    assert other.filesystem() is not made.filesystem()


def test_closing_closes_every_section_once():
    workspace = Workspace()
    with prompt(section("A", children=[workspace])):
        pass
    assert workspace.closed == 1


def test_two_sections_with_the_same_parameters_share_them():
    made = prompt(
        MarkdownSection[Task](title="A", template="$goal"),
        MarkdownSection[Task](title="B", template="$hint"),
    )
    assert made.render(Task("g", "h")).text == "## 1. A\n\ng\n\n## 2. B\n\nh"


def test_closing_a_prompt_closes_every_section_whatever_one_of_them_does():
    closed: list[str] = []

    class Closing(MarkdownSection[Any]):
        def close(self) -> None:
            closed.append(self.key)
            if self.key == "b":
                raise OSError("cannot be closed")

    children = [Closing(title="C", template="c")]
    made = [Closing(title="A", template="a"), Closing(title="B", template="b", children=children)]
    prompt = Prompt(ns="a", key="b", sections=made)
    with pytest.raises(OSError, match="cannot be closed"), prompt:
        assert closed == []
    assert closed == ["c", "b", "a"]


@dataclass(frozen=True)
class Typed:
    word: str


class OfTyped(MarkdownSection[Typed]):
    """A class that says what its parameters are."""


class OfTypedOnceMore(OfTyped):
    """One that derives from it."""


@pytest.mark.parametrize("kind", [OfTyped, OfTypedOnceMore])
def test_a_class_of_sections_can_say_what_its_parameters_are(kind: type[OfTyped]):
    section = kind(title="A", template="Say ${word}.")
    assert section.params_type is Typed
    assert Prompt(ns="a", key="b", sections=[section]).render(Typed("it")).text.endswith("Say it.")


def test_a_prompt_can_say_what_the_answer_is():
    sections = [MarkdownSection(title="A", template="a")]
    prompt = Prompt[Typed](ns="a", key="b", sections=sections)
    for each in (prompt, prompt.bind(), prompt.clone()):
        assert each.render().output_type is Typed
    assert Prompt[list[Typed]](PromptTemplate(ns="a", key="b", sections=sections)).render().is_array
    assert Prompt[Any](ns="a", key="b", sections=sections).render().output_type is None
    with pytest.raises(PromptError, match="a:b: the output type must be a dataclass"):
        Prompt[int](ns="a", key="b", sections=sections).render()
