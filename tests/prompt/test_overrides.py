"""Overrides: stored texts that replace those in the code, until these change."""

import logging
from pathlib import Path
from typing import Any

import pytest

from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.prompt import (
    LocalPromptOverridesStore,
    MarkdownSection,
    Prompt,
    PromptError,
    PromptOverride,
    TextOverride,
    Tool,
    ToolContext,
    ToolResult,
    text_hash,
)


def nothing(params: None, *, context: ToolContext) -> ToolResult[str]:
    return ToolResult("done", "nothing")


def prompt(store: Any, text: str = "Be kind.", tag: str = "latest") -> Prompt[Any]:
    inner = MarkdownSection(title="Style", template=text, tools=[Tool("go", "Goes.", nothing)])
    fixed = MarkdownSection(title="Fixed", template="As is.", accepts_overrides=False)
    outer = MarkdownSection(title="Rules", template="Rules.", children=[inner, fixed])
    return Prompt(
        ns="agents/test", key="one", sections=[outer], overrides_store=store, overrides_tag=tag
    )


def override(text: str = "Be blunt.", tag: str = "latest", **given: Any) -> PromptOverride:
    sections = {"rules/style": TextOverride(text_hash("Be kind."), text)}
    return PromptOverride("agents/test", "one", tag, **({"sections": sections} | given))


@pytest.fixture(params=["memory", "directory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> LocalPromptOverridesStore:
    return LocalPromptOverridesStore(
        InMemoryFilesystem() if request.param == "memory" else tmp_path
    )


def test_a_stored_text_takes_the_place_of_the_original(store: LocalPromptOverridesStore):
    made = prompt(store)
    assert "Be kind." in made.render().text
    store.upsert(made.template.descriptor, override())
    rendered = made.render()
    assert "Be blunt." in rendered.text
    assert "Be kind." not in rendered.text
    assert rendered.stale_overrides == ()


def test_a_stale_text_is_reported_and_never_used(
    store: LocalPromptOverridesStore, caplog: pytest.LogCaptureFixture
):
    store.upsert(prompt(store).template.descriptor, override())
    with caplog.at_level(logging.WARNING):
        rendered = prompt(store, "Be very kind.").render()
    assert "Be very kind." in rendered.text
    (stale,) = rendered.stale_overrides
    assert (stale.name, stale.found_hash) == ("rules/style", text_hash("Be very kind."))
    assert "has changed" in caplog.text


def test_an_override_of_what_is_gone_is_stale(store: LocalPromptOverridesStore):
    store.upsert(prompt(store).template.descriptor, override())
    other = Prompt(
        ns="agents/test",
        key="one",
        sections=[MarkdownSection(title="New", template="New.")],
        overrides_store=store,
    )
    (stale,) = other.render().stale_overrides
    assert str(stale).endswith("is gone")


def test_descriptions_of_tools_are_replaced_too(store: LocalPromptOverridesStore):
    tools = {"go": TextOverride(text_hash("Goes."), "Goes far.")}
    made = prompt(store)
    store.upsert(made.template.descriptor, override(sections={}, tools=tools))
    assert [each.description for each in made.render().tools] == ["Goes far."]


def test_each_tag_is_its_own(store: LocalPromptOverridesStore):
    descriptor = prompt(store).template.descriptor
    store.upsert(descriptor, override("One.", "v1"))
    store.upsert(descriptor, override("Two.", "v2"))
    assert "One." in prompt(store, tag="v1").render().text
    assert "Two." in prompt(store, tag="v2").render().text
    assert "Be kind." in prompt(store).render().text
    assert list(store.list("agents/test", "one")) == ["v1", "v2"]
    assert store.delete("agents/test", "one", "v1")
    assert not store.delete("agents/test", "one", "v1")
    assert list(store.list("agents/test", "one")) == ["v2"]


def test_what_is_stale_already_is_not_stored(store: LocalPromptOverridesStore):
    with pytest.raises(PromptError, match="has changed"):
        store.upsert(prompt(store, "Other.").template.descriptor, override())
    assert list(store.list("agents/test", "one")) == []


def test_a_section_may_refuse_overrides(store: LocalPromptOverridesStore):
    sections = {"rules/fixed": TextOverride(text_hash("As is."), "Changed.")}
    with pytest.raises(PromptError, match="is gone"):
        store.upsert(prompt(store).template.descriptor, override(sections=sections))


@pytest.mark.parametrize("tag", ["..", "../up", "a/b", "", ".hidden", "a\0b", "x" * 65])
def test_names_that_lead_elsewhere_are_refused(store: LocalPromptOverridesStore, tag: str):
    descriptor = prompt(store).template.descriptor
    with pytest.raises(PromptError):
        store.resolve(descriptor, tag)
    with pytest.raises(PromptError):
        store.upsert(descriptor, override(tag=tag))


def test_a_damaged_file_is_named(tmp_path: Path):
    store = LocalPromptOverridesStore(tmp_path)
    made = prompt(store)
    store.upsert(made.template.descriptor, override())
    path = tmp_path / "agents" / "test" / "one" / "latest.json"
    path.write_text(path.read_text()[:20])
    with pytest.raises(PromptError, match=r"latest\.json"):
        made.render()


def test_an_override_with_a_place_that_no_parameter_fills_is_named(
    store: LocalPromptOverridesStore,
):
    made = prompt(store)
    store.upsert(made.template.descriptor, override("Do $this."))
    with pytest.raises(PromptError, match="rules > style"):
        made.render()
