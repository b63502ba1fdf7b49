"""One HTML file of a session."""

import gzip
import re
import stat
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from tests.debug.recordings import KEY
from weakincentives.debug import SnapshotStore, export_page
from weakincentives.debug.export import MODULES, PAGE, bundle
from weakincentives.serde import decode


def _data(path: Path) -> Any:
    found = re.search(
        r'<script type="text/plain" id="data">([A-Za-z0-9+/=]+)</script>', path.read_text()
    )
    assert found is not None
    return decode(gzip.decompress(b64decode(found[1])), object)


def _export(recorded: Path, target: Path, *, show_secrets: bool = False) -> Path:
    size = export_page(SnapshotStore(recorded).session(), target, show_secrets=show_secrets)
    assert size == target.stat().st_size
    return target


def test_an_export_has_every_step_and_every_version_of_a_file(recorded: Path, tmp_path: Path):
    data = _data(_export(recorded, tmp_path / "a.html"))
    assert [each["n"] for each in data["steps"]] == list(range(1, 10))
    assert set(data["details"]) == set(data["diffs"]) == set(data["changes"])
    texts = [str(each.get("lines")) for each in data["contents"].values()]
    assert any("dear " in each for each in texts)
    assert any("hello " in each for each in texts)


def test_keys_are_masked_unless_they_are_wanted(recorded: Path, tmp_path: Path):
    masked = str(_data(_export(recorded, tmp_path / "a.html")))
    assert KEY not in masked
    assert "sk-proj-***" in masked
    shown = str(_data(_export(recorded, tmp_path / "b.html", show_secrets=True)))
    assert KEY in shown


def test_an_export_names_no_directory_of_the_machine(recorded: Path, tmp_path: Path):
    assert str(recorded.parent) not in str(_data(_export(recorded, tmp_path / "a.html")))


def test_an_export_loads_nothing_from_elsewhere(recorded: Path, tmp_path: Path):
    page = _export(recorded, tmp_path / "a.html").read_text()
    assert re.findall(r"(?:src|href)=[\"'](?!data:)", page.partition("<style>")[0]) == []
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]


def test_an_export_is_for_its_owner_and_replaces_nothing(recorded: Path, tmp_path: Path):
    target = _export(recorded, tmp_path / "a.html")
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        _export(recorded, target)


def test_the_scripts_are_bundled_completely_and_in_order():
    assert {f"{name}.js" for name in MODULES} == {each.name for each in PAGE.glob("*.js")}
    seen: set[str] = set()
    for name in MODULES:
        text = (PAGE / f"{name}.js").read_text()
        assert set(re.findall(r'from "\./(\w+)\.js"', text)) <= seen
        seen.add(name)
    script = bundle()
    assert not re.search(r"^(import|export) ", script, re.MULTILINE)
    names = re.findall(r"^(?:async )?(?:function|const|let|class) (\w+)", script, re.MULTILINE)
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("path", sorted(PAGE.glob("*.js")), ids=lambda each: each.name)
def test_the_page_never_makes_markup_of_text(path: Path):
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|Function\(|DOMParser"
        r"|createContextualFragment|srcdoc"
    )
    assert re.findall(forbidden, path.read_text()) == []
