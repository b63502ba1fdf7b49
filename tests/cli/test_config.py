"""Settings of a run: files, environment variables and options, and which one wins."""

import os
from pathlib import Path

import pytest

from weakincentives.adapters import EFFORTS, PROVIDERS
from weakincentives.cli import config
from weakincentives.cli.config import KEYS, ConfigError, Settings, load_settings, unknown_variables
from weakincentives.contrib.evaluation import ENGINES
from weakincentives.contrib.tools.dialects import DIALECTS
from weakincentives.sandbox import SANDBOXES


def settings(
    workspace: Path,
    text: str | None = None,
    *,
    environment: dict[str, str] | None = None,
    **options: object,
) -> Settings:
    if text is not None:
        (workspace / "wink.toml").write_text(text)
    return load_settings(workspace, environment=environment or {}, options=options)


def test_the_file_gives_way_to_the_environment_and_that_to_options(tmp_path: Path):
    text = 'model = "openai:file"\nmax_steps = 5\ndeadline = "10m"\n'
    environment = {"WINK_MODEL": "openai:environment", "WINK_MAX_STEPS": "6"}
    found = settings(tmp_path, text, environment=environment, model="openai:option", dialect=None)
    assert [found[key] for key in ("model", "max_steps", "deadline", "dialect")] == [
        "openai:option",
        6,
        600,
        None,
    ]
    assert found.given["model"].source == "--model"
    assert found.given["max_steps"].source == "WINK_MAX_STEPS"
    assert found.given["deadline"].source == str(tmp_path / "wink.toml")


def test_keys_may_stand_in_a_table_called_run(tmp_path: Path):
    found = settings(tmp_path, 'model = "openai:a"\n[run]\nmodel = "openai:b"\nmax_tokens = "2k"\n')
    assert (found["model"], found["max_tokens"]) == ("openai:b", 2000)


def test_an_unknown_key_is_an_error_that_says_which_was_meant(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"unknown key 'modle'; did you mean 'model'\?"):
        settings(tmp_path, 'modle = "openai:a"')
    with pytest.raises(ConfigError, match="'max-tokens'; did you mean 'max_tokens'"):
        settings(tmp_path, "[run]\nmax-tokens = 5")
    with pytest.raises(ConfigError, match="unknown key 'xyzzy'; known keys: model, "):
        settings(tmp_path, "xyzzy = 1")


@pytest.mark.parametrize("key", sorted(KEYS))
def test_a_value_of_the_wrong_kind_is_refused_where_it_stands(key: str, tmp_path: Path):
    (tmp_path / "mine.toml").write_text(f"{key} = {{}}\n")
    with pytest.raises(ConfigError, match=f"mine.toml: {key} must be"):
        load_settings(tmp_path, file=str(tmp_path / "mine.toml"), environment={}, options={})


def test_a_wrong_value_is_refused_even_where_another_would_win(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"WINK_DEADLINE must be a duration like .*: 'soon'"):
        settings(tmp_path, environment={"WINK_DEADLINE": "soon"}, deadline="5m")
    with pytest.raises(ConfigError, match=r"--dialect must be one of .* did you mean 'claude'"):
        settings(tmp_path, dialect="cluade")


def test_hosts_are_a_list_or_a_text_with_commas(tmp_path: Path):
    assert settings(tmp_path, allow_host=("B.example", "a.example:80"))["allow_host"] == (
        "b.example",
        "a.example:80",
    )
    found = settings(tmp_path, environment={"WINK_ALLOW_HOST": "a.example, *.b.example"})
    assert found["allow_host"] == ("a.example", "*.b.example")
    with pytest.raises(ConfigError, match="WINK_ALLOW_HOST is invalid: Not a host name: 'a b'"):
        settings(tmp_path, environment={"WINK_ALLOW_HOST": "a b"})


def test_an_empty_variable_is_none(tmp_path: Path):
    assert settings(tmp_path, environment={"WINK_MODEL": ""})["model"] is None


@pytest.mark.parametrize(
    "line",
    [
        'sandbox = "local"',
        'allow_host = ["evil.example"]',
        'api_key_env = "AWS_SECRET_ACCESS_KEY"',
        'base_url = "https://evil.example/v1"',
        'base_url = "http://127.0.0.1.evil.example/v1"',
        'base_url = "http://localhost@evil.example/v1"',
        'base_url = "http://["',
        'base_url = "http://localhost:8080/v1"',
        'base_url = "http://127.0.0.1:8080/v1"',
        '[run]\nbase_url = "http://[::1]:8080/v1"',
        'dump = "/somewhere"',
    ],
)
def test_a_workspace_cannot_decide_what_runs_or_where_a_key_goes(line: str, tmp_path: Path):
    key = line.removeprefix("[run]\n").partition(" ")[0]
    with pytest.raises(ConfigError, match=f"{key} cannot be set by a workspace"):
        settings(tmp_path, line)
    named = load_settings(tmp_path, file=str(tmp_path / "wink.toml"), environment={}, options={})
    assert named[key]


@pytest.mark.parametrize("model", ["claude-agent:m", "litellm:huggingface/https://evil.example"])
def test_a_workspace_cannot_start_a_program_or_find_a_server_by_the_name_of_a_model(
    model: str, tmp_path: Path
):
    with pytest.raises(ConfigError, match="model cannot be set by a workspace"):
        settings(tmp_path, f'model = "{model}"')
    assert settings(tmp_path, environment={"WINK_MODEL": model})["model"] == model


def test_a_workspace_cannot_decide_who_is_sent_a_key_that_the_user_names(tmp_path: Path):
    text, key = 'model = "anthropic:m"', {"WINK_API_KEY_ENV": "MY_KEY"}
    with pytest.raises(ConfigError, match="WINK_API_KEY_ENV names; choose the model with --model"):
        settings(tmp_path, text, environment=key)
    assert settings(tmp_path, text, environment=key, model="openai:m")["model"] == "openai:m"
    mine = settings(tmp_path, text, environment=key, base_url="http://localhost/v1")
    assert mine["model"] == "anthropic:m"


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_workspace_does_not_choose_the_key_that_my_server_gets(tmp_path: Path, provider: str):
    text, url = f'model = "{provider}:m"', "http://localhost/v1"
    key = {f"{provider.upper()}_API_KEY": "sk-1"}
    with pytest.raises(ConfigError, match=r"model cannot send [A-Z]+_API_KEY to the server"):
        settings(tmp_path, text, environment=key, base_url=url)
    for mine in (
        settings(tmp_path, text, base_url=url),
        settings(tmp_path, text, environment=key, base_url=url, model=f"{provider}:m"),
    ):
        assert mine["model"] == f"{provider}:m"


@pytest.mark.parametrize("variable", ["XDG_CONFIG_HOME", "HOME"])
def test_the_user_has_a_file_that_may_say_everything_and_wins_over_the_workspace(
    variable: str, tmp_path: Path
):
    home, workspace = tmp_path / "home", tmp_path / "workspace"
    own = home / ("wink" if variable == "XDG_CONFIG_HOME" else ".config/wink") / "wink.toml"
    own.parent.mkdir(parents=True)
    workspace.mkdir()
    own.write_text('base_url = "http://mine/v1"\nsandbox = "local"\nmax_steps = 7\n')
    text = 'max_steps = 8\ndeadline = "5m"\n'
    found = settings(workspace, text, environment={variable: str(home)})
    assert (found["base_url"], found["sandbox"]) == ("http://mine/v1", "local")
    assert (found["max_steps"], found["deadline"]) == (7, 300)
    assert found.given["max_steps"].source == str(own)
    environment = {variable: str(home), "WINK_MAX_STEPS": "9"}
    assert settings(workspace, environment=environment)["max_steps"] == 9
    at_home = settings(own.parent, environment={variable: str(home)})
    assert at_home["base_url"] == "http://mine/v1"


def test_a_link_to_the_file_of_the_user_is_the_file_of_the_user(tmp_path: Path):
    own = tmp_path / "wink" / "wink.toml"
    own.parent.mkdir()
    own.write_text('base_url = "http://mine/v1"\n')
    (tmp_path / "wink.toml").symlink_to(own)
    found = settings(tmp_path, environment={"XDG_CONFIG_HOME": str(tmp_path)})
    assert found["base_url"] == "http://mine/v1"


def test_a_file_that_was_named_must_be_there(tmp_path: Path):
    missing = str(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match=r"none.toml cannot be read: No such file"):
        load_settings(tmp_path, file=missing, environment={}, options={})
    with pytest.raises(ConfigError, match=r"none.toml cannot be read"):
        load_settings(tmp_path, environment={"WINK_CONFIG": missing}, options={})
    assert load_settings(tmp_path, environment={}, options={}) == Settings({})


def test_a_pipe_in_the_place_of_the_file_is_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "wink.toml")
    with pytest.raises(ConfigError, match="Not a regular file"):
        load_settings(tmp_path, environment={}, options={})


def test_what_is_not_toml_says_where_it_breaks(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"wink.toml is not TOML: .*line 1"):
        settings(tmp_path, "model = \nmax_steps = 1")


def test_globs_are_a_list_or_a_text_with_commas(tmp_path: Path):
    assert settings(tmp_path, 'exclude = ["a", "b"]')["exclude"] == ("a", "b")
    found = settings(tmp_path, environment={"WINK_EXCLUDE": "x, y"}, exclude=())
    assert found["exclude"] == ("x", "y")


def test_variables_that_nothing_reads_are_found():
    environment = {"WINK_MODLE": "x", "WINK_MODEL": "y", "WINK_TRACEBACK": "1", "OTHER": "z"}
    assert list(unknown_variables(environment)) == [("WINK_MODLE", "WINK_MODEL")]


def test_the_choices_are_those_of_what_they_name() -> None:
    assert set(config.PROVIDER_NAMES) == set(PROVIDERS)
    assert config.EFFORT_CHOICES == EFFORTS
    assert (config.AUTO, *DIALECTS) == config.DIALECT_CHOICES
    assert (config.NO_SANDBOX, *SANDBOXES) == config.SANDBOX_CHOICES
    assert (config.NO_ENGINE, config.AUTO, *ENGINES) == config.ENGINE_CHOICES


@pytest.mark.parametrize(
    ("environment", "model"),
    [
        ({"OPENAI_API_KEY": "k"}, "openai:gpt-5"),
        ({"ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": ""}, "anthropic:claude-sonnet-4-5"),
        ({"ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": "k"}, None),
        ({"OPENAI_API_KEY": "k", "WINK_MODEL": "openai:gpt-5-mini"}, "openai:gpt-5-mini"),
        ({"OPENAI_API_KEY": "k", "WINK_BASE_URL": "http://localhost/v1"}, None),
        ({}, None),
    ],
)
def test_the_one_key_in_the_environment_chooses_a_model(
    environment: dict[str, str], model: str | None
) -> None:
    settings = load_settings(None, environment={"HOME": "/nowhere", **environment}, options={})
    assert settings["model"] == model
    is_default = model is not None and "WINK_MODEL" not in environment
    assert bool(settings.model_variable) == is_default
