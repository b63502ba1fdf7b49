"""Hostile names and contents are shown as text, by the server's page and in an exported file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.debug.page.conftest import OpenPage
from tests.debug.recordings import Recorded
from weakincentives.debug import SnapshotStore, export_page
from weakincentives.filesystem import InMemoryFilesystem, Limits

_CODE = "window.hacked=1"
_TEMPLATES = [
    "<script>{}</script>",
    "</script><script>{}</script>",
    "<img src=x onerror={}>",
    '"><img src=x onerror={}>',
    "'><img src=x onerror={}>",
    "<svg onload={}>",
    "<svg><script>{}</script></svg>",
    "<svg><animate onbegin={} attributeName=x dur=1s>",
    "<body onload={}>",
    "<iframe srcdoc='<script>parent.{}</script>'>",
    "<iframe src=javascript:parent.{}>",
    "<object data=javascript:{}>",
    "<embed src=javascript:{}>",
    "<a href=javascript:{}>x</a>",
    "<form action=javascript:{}><button>x</button></form>",
    "<details open ontoggle={}>",
    "<input autofocus onfocus={}>",
    "<video><source onerror={}></video>",
    "<math><mtext><style><img src=x onerror={}></style></mtext></math>",
    "<meta http-equiv=refresh content='0;url=javascript:{}'>",
    "<base href=javascript:{}//>",
    "<link rel=stylesheet href=data:text/css,*{{}}><!--{}",
    "<style>@import 'data:text/css,{}';</style>",
    "<template><script>{}</script></template>",
    "<marquee onstart={}>",
    "javascript:{}",
    "data:text/html,<script>{}</script>",
    "${{{}}}",
    "{{{{{}}}}}",
    "`${{{}}}`",
    "\\u003cscript\\u003e{}\\u003c/script\\u003e",
    "&lt;script&gt;{}&lt;/script&gt;",
    "<!--><script>{}</script>-->",
    "]]><script>{}</script>",
    "<xmp><script>{}</script></xmp>",
    "<noscript><p title='</noscript><img src=x onerror={}>'>",
    "__proto__",
    "constructor",
    "hasOwnProperty",
    "#step=1&view={}",
]
# what a renderer of Markdown may turn into a link, a picture or an element
_MARKDOWN = [
    "[x](javascript:{})",
    "[x](JaVaScRiPt:{})",
    "[x]( &#106;avascript:{})",
    "[x](data:text/html,<script>{}</script>)",
    "[x](vbscript:{})",
    "[x](file:///etc/passwd)",
    "[x](//example.org/{})",
    "<javascript:{}>",
    "![x](javascript:{})",
    "![x](https://example.org/x.png?{})",
    "[x]: javascript:{}\n[x]",
    '[x](https://example.org/"onmouseover={})',
    '[x](https://example.org ""onmouseover={}")',
    "```<img src=x onerror={}>\n<img src=x onerror={}>\n```",
    '```"onmouseover={}\n```',
    "|<img src=x onerror={}>|\n|-|\n|<img src=x onerror={}>|",
    "# <script>{}</script>",
    "> <iframe src=javascript:{}>",
    "\x1b[31;1m<img src=x onerror={}>\x1b[0m",
    "\x1b]8;;javascript:{}\x07x\x1b]8;;\x07",
]
_VARIANTS = [
    lambda text: text,
    str.upper,
    lambda text: text.replace("<", "<\x0c"),
    lambda text: text.replace(" ", "\t"),
    lambda text: f"a\n{text}\n",
]
CORPUS = [vary(each.format(_CODE)) for each in _TEMPLATES for vary in _VARIANTS]


def _record(path: Path) -> None:
    files = InMemoryFilesystem(limits=Limits(max_segment_length=250))
    for number, text in enumerate(CORPUS):
        files.write(f"content/{number}.html", text)
    for each in _TEMPLATES:
        files.write(f"names/{each.format(_CODE)}", "x")
    files.write("all.md", "\n".join(CORPUS))
    files.write(
        "picture.svg", f"<svg xmlns='http://www.w3.org/2000/svg'><script>{_CODE}</script></svg>"
    )
    recorded = Recorded(path, files)
    recorded.begin("\n".join(CORPUS))
    for number, text in enumerate(CORPUS):
        if number % 10 == 0:
            files.write("all.md", "\n".join(CORPUS[: number + 1]))
        recorded.call(text, text, success=number % 3 != 0, result=text, **{text: text})
    recorded.answer("\n".join(CORPUS), *CORPUS[:10])
    recorded.answer("\n\n".join(each.replace("{}", _CODE) for each in _MARKDOWN))
    recorded.end("\n".join(CORPUS))
    recorded.recorder.close()


_COUNT = r"""() => {
    const all = [...document.querySelectorAll("#app *")];
    const active = "script,iframe,object,embed,base,meta,link,style,form,video,math,template"
        + ",marquee,body,animate";
    const links = [...document.querySelectorAll("#app a")];
    const pictures = [...document.querySelectorAll("#app img")];
    const inert = /^(#|\/api\/|https?:|mailto:)/;
    const handlers = (each) => [...each.attributes].some((one) => one.name.startsWith("on"));
    return {
        hacked: window.hacked ?? window.HACKED ?? null,
        active: all.filter((each) => each.matches(active)).length,
        handlers: all.filter(handlers).length,
        links: links.filter((each) => !inert.test(each.getAttribute("href"))).length,
        pictures: pictures.filter((each) => !each.classList.contains("picture")).length,
    };
}"""
_NOTHING = {"hacked": None, "active": 0, "handlers": 0, "links": 0, "pictures": 0}


def _visit(page: Page, fragments: list[str]) -> None:
    base = page.url.partition("#")[0]
    for each in fragments:
        page.goto(base + (each or "#"))
        page.locator(".stephead, .runhead").first.wait_for()
        assert page.evaluate(_COUNT) == _NOTHING, each


def test_the_corpus_has_200_attacks():
    assert len(CORPUS) == 200


@pytest.mark.slow
def test_a_hostile_recording_is_inert(
    open_page: OpenPage, tmp_path: Path, serving: Callable[[Path], Any]
):
    _record(tmp_path / "hostile.timeline")
    last = len(CORPUS) + 5
    views = [
        f"#step={step}&view={view}"
        for step in (2, 3, 13, last - 1, last)
        for view in ("step", "diff", "state", "talk", "use")
    ]
    files = ["all.md", "picture.svg", "content/0.html", "content/10.html"]
    views += ["", *(f"#step=1&view=files&file={each}" for each in files)]
    with serving(tmp_path / "hostile.timeline") as client:
        page = open_page(client)
        _visit(page, views)
        page.locator(".tree summary", has_text="names").click()
        page.locator(".tree summary").last.wait_for()
        assert page.evaluate(_COUNT) == _NOTHING
        page.locator("#search").fill("hacked")
        page.locator(".results a").first.wait_for()
        assert page.evaluate(_COUNT) == _NOTHING
        assert _text_is_verbatim(page)


def _text_is_verbatim(page: Page) -> bool:
    return bool(page.evaluate("document.body.textContent.includes('<img src=x onerror=')"))


@pytest.mark.slow
def test_a_hostile_export_is_inert(open_page: OpenPage, tmp_path: Path):
    _record(tmp_path / "hostile.timeline")
    export_page(SnapshotStore(tmp_path).session(), tmp_path / "hostile.html")
    page = open_page(tmp_path / "hostile.html")
    _visit(
        page,
        [
            "",
            "#step=2",
            "#step=3&view=talk",
            "#step=13&view=diff",
            "#step=1&view=files&file=all.md",
        ],
    )
