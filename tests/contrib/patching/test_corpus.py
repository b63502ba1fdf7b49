"""The corpus of edits, each as a patch: it applies in the same place, or is rejected as well."""

import json
from collections.abc import Iterator
from typing import Any

from tests.contrib.corpus import generate
from weakincentives.contrib.tools.patching import PatchError, plan_patch

# hunks are whole lines, and nobody numbers the lines of a patch
_NOT_FOR_PATCHES = {"gutters", "part of a line"}


def cases() -> Iterator[tuple[dict[str, Any], str]]:
    stored = json.loads(generate.OUTPUT.read_text(encoding="utf-8"))
    for case in stored["cases"]:
        if case["category"] not in _NOT_FOR_PATCHES:
            yield case, stored["texts"][case["text"]]


def patch_of(old: str, new: str) -> str:
    old, new = old.replace("\r\n", "\n"), new.replace("\r\n", "\n")
    if old.endswith("\n"):
        old, new = old[:-1], new.removesuffix("\n")
    lines = [f"-{line}" for line in old.split("\n")] + [f"+{line}" for line in new.split("\n")]
    return "\n".join(["*** Begin Patch", "*** Update File: f", "@@", *lines, "*** End Patch"])


def content_of(text: str, patch: str) -> str | None:
    try:
        return plan_patch(patch, {"f": text}.get)[0].content
    except PatchError as error:
        assert "'f'" in str(error) or "placeholder" in str(error)
        return None


def test_solvable_patches_are_applied_in_their_place():
    solvable = [(case, text) for case, text in cases() if "span" in case]
    other: list[str] = []
    for case, text in solvable:
        start, end = case["span"]
        expected = text[:start] + case["put"] + text[end:]
        if content_of(text, patch_of(case["old"], case["new"])) != expected:
            other.append(f"{case['category']} {case['text']}: {case['old']!r}")
    assert other == []
    assert len(solvable) > 300


def test_what_must_be_refused_is_refused():
    refused = [(case, text) for case, text in cases() if "span" not in case]
    landed = [
        case["category"]
        for case, text in refused
        if content_of(text, patch_of(case["old"], case["new"])) is not None
    ]
    assert landed == []
    assert len(refused) > 100
