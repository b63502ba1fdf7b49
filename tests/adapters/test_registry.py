import subprocess
import sys
from pathlib import Path

import pytest

from tests.adapters.chat_server import REQUEST, says, serving
from tests.adapters.workers import prompt
from weakincentives.adapters import (
    AuthenticationError,
    MissingExtraError,
    RecordingAdapter,
    ScriptedAdapter,
    UnknownModelError,
    create_adapter,
)
from weakincentives.adapters.registry import PROVIDERS
from weakincentives.extras import install_command
from weakincentives.runtime.session import Session

pytestmark = pytest.mark.usefixtures("clean_environment")


def test_a_name_says_who_is_asked_for_which_model():
    with serving(says("hi")) as server:
        adapter = create_adapter("openai:ft:gpt:x", api_key="sk-1", base_url=server.url)
        assert adapter.complete(REQUEST).text == "hi"
    assert (adapter.name, adapter.model) == ("openai", "ft:gpt:x")
    assert server.last["model"] == "ft:gpt:x"
    assert server.requests[0].headers["authorization"] == "Bearer sk-1"


def test_options_are_the_adapters_own():
    adapter = create_adapter("openai:m", base_url="http://localhost:1/v1", native_output=False)
    assert not adapter.native_output


def test_a_recording_is_played_back(tmp_path: Path):
    path = tmp_path / "talk: one.jsonl"
    RecordingAdapter(ScriptedAdapter(["hello"]), path).evaluate(prompt(), session=Session())
    assert create_adapter(f"scripted:{path}").evaluate(prompt(), session=Session()).text == "hello"


@pytest.mark.parametrize("model", ["gpt-5", "nobody:gpt-5", "openai:", ":gpt-5", "", "OpenAI:x"])
def test_a_name_without_a_known_prefix_is_told_which_there_are(model: str):
    with pytest.raises(UnknownModelError, match=r"openai:NAME.* or scripted:PATH") as caught:
        create_adapter(model)
    assert repr(model) in str(caught.value)


def test_without_a_key_it_is_said_at_once():
    with pytest.raises(AuthenticationError, match="OPENAI_API_KEY"):
        create_adapter("openai:gpt-5")


@pytest.mark.parametrize("prefix", sorted(PROVIDERS))
@pytest.mark.parametrize("is_alone", [False, True])
def test_a_missing_extra_is_named_with_the_command(
    prefix: str, is_alone: bool, monkeypatch: pytest.MonkeyPatch
):
    source = PROVIDERS[prefix]
    missing = [source.package] if is_alone else [source.package, "httpx2"]
    for loaded in [each for each in sys.modules if each.startswith(source.module)]:
        monkeypatch.delitem(sys.modules, loaded)
    for package in missing:
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError) as caught:
        create_adapter(f"{prefix}:m")
    assert str(caught.value).endswith(install_command(source.extra))
    assert "\n" not in str(caught.value)


def test_no_provider_is_imported_before_it_is_asked():
    packages = [each.package for each in PROVIDERS.values()]
    code = f"import sys, weakincentives.adapters; print(sorted({packages} & sys.modules.keys()))"
    code = code.replace("[", "{", 1).replace("]", "}", 1)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_module_of_ours_that_is_not_there_is_a_bug(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, PROVIDERS["openai"].module, None)
    with pytest.raises(ModuleNotFoundError, match=PROVIDERS["openai"].module):
        create_adapter("openai:m")
