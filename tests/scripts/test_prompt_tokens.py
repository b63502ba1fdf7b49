"""The tokens of the prompt and of the tools do not grow unnoticed."""

from scripts.prompt_tokens import DIALECTS, EXTRAS, Texts, count, texts

LIMITS = {
    "wink": 4_700,
    "classic": 3_300,
    "claude": 2_750,
    "anthropic-editor": 2_250,
    "openai": 1_800,
    "gemini": 3_000,
    "mcp": 4_400,
}
"""Estimated tokens of all tools of a run; a tokenizer counts a third less."""


def test_the_tools_of_each_dialect_stay_within_their_limit():
    found = {(each.dialect, each.extras): each for each in texts()}
    assert list(found) == [(dialect, extras) for dialect in DIALECTS for extras in EXTRAS]
    for dialect in DIALECTS:
        prompt, chat, anthropic = count(_sent(found[dialect, EXTRAS[-1]]), None)
        assert prompt < 900
        assert anthropic <= chat < LIMITS[dialect]


def _sent(each: Texts) -> tuple[str, str, str]:
    sent = each.sent()
    assert all(sent)
    assert each.prompt in each.readable()
    return sent
