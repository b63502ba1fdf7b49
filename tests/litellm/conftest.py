"""LiteLLM wants an older openai than the rest of the project, so its tests have an environment of
their own: `make test` makes it and runs them there. Elsewhere there is nothing to collect."""

from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("litellm") else ["test_*.py"]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave nothing in the environment that changes a request to a provider."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
