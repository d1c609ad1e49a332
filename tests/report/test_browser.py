"""The page in a real browser, without a network: nothing fails, every figure shows something, and it does what it says.

Pictures stay in $MODERNLLM_SCREENSHOTS where that is set.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fabricated import fabricate, heard, plan

from modernllm.report.page.comparison import compare
from modernllm.report.page.page import page
from modernllm.report.page.report import report

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install -e '.[test]'")
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium"),
    # of the driver's own event loop
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

HOSTILE = "<script>document.title='owned'</script>"
PATIENCE = 120_000
"""Milliseconds that a browser on a busy machine is given; it is asked again and again meanwhile."""
OFFLINE = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)  # fmt: skip


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two placements and a hostile path, three rates, three seeds; one run breaks, one is damaged."""
    folder = tmp_path_factory.mktemp("browser")
    for placement, base in (("pre", 2.2), ("post", 2.4)):
        for lr in (1e-3, 3e-3, 1e-2):
            for seed in range(3):
                broke = placement == "post" and lr == 3e-3 and seed == 0
                ended: dict[str, Any] = {"outcome": "nonfinite", "nonfinite_at": 30} if broke else {}
                loss = base + 20 * abs(lr - 3e-3) + seed / 50
                fabricate(folder / "s", placement=placement, lr=lr, seed=seed, loss=loss, layers=4, steps=120, **ended)
    for seed in range(3):
        fabricate(folder / "s", seed=seed, loss=2.3 + seed / 60, steps=120, changed={"data.path": HOSTILE})
    damaged = fabricate(folder / "s", seed=9, loss=2.0)
    (damaged / "run.json").write_text("{", encoding="utf-8")
    target = folder / "page.html"
    target.write_text(page(compare([str(folder / "s")])), encoding="utf-8")
    return target


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with (
        playwright.sync_playwright() as started,
        tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile,
    ):
        context = started.chromium.launch_persistent_context(
            profile, executable_path=CHROMIUM, headless=True, args=list(OFFLINE), offline=True, locale="en-US",
            accept_downloads=True, viewport={"width": 1240, "height": 900}, timeout=PATIENCE,
        )  # fmt: skip
        context.set_default_timeout(PATIENCE)
        yield context
        context.close()


def quiet(browser: Any) -> tuple[Any, list[str]]:
    """A tab, and what is complained of or asked for in it."""
    tab, complaints = browser.new_page(), []
    tab.on("console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("request", lambda request: complaints.append(request.url) if request.url.startswith("http") else None)
    tab.emulate_media(color_scheme="light")
    return tab, complaints


def show(tab: Any, written: Path) -> None:
    tab.goto(written.as_uri())
    tab.wait_for_selector("html[data-ready]", state="attached")


@pytest.fixture(scope="module")
def tab(browser: Any, written: Path) -> Any:
    """The drawn page."""
    tab, complaints = quiet(browser)
    show(tab, written)
    return tab, complaints


@pytest.fixture
def opened(tab: Any) -> Iterator[Any]:
    """One page for all tests, each of which leaves it as it was: to draw it takes seconds. Nothing may fail in it."""
    drawn, complaints = tab
    yield drawn
    assert complaints == []


def picture(tab: Any, name: str) -> None:
    if folder := os.environ.get("MODERNLLM_SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        tab.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)


def first_column(tab: Any, table: str) -> list[str]:
    rows = tab.locator(f"#{table} tbody tr")
    return [rows.nth(i).locator("td").first.inner_text() for i in range(rows.count()) if rows.nth(i).is_visible()]


def test_every_figure_is_there_and_shows_something(opened: Any) -> None:
    ids = opened.eval_on_selector_all(".plot", "plots => plots.map(p => p.id)")
    assert {"lr", "regimes", "pairs", "curves", "gradients", "heat-0", "depth-stream_rms", "events"} <= set(ids)
    for name in ids:
        points = opened.evaluate(
            "id => document.getElementById(id)._fullData.reduce((n, t) => n + (t.z ? t.z.length : t.x.length), 0)", name
        )
        assert points > 0, name
        box = opened.locator(f"#{name} .main-svg").first.bounding_box()
        assert box["width"] > 300, name
        assert box["height"] > 120, name
    assert opened.locator("#problems").is_visible()
    picture(opened, "light")


def test_text_of_a_configuration_stays_text(opened: Any) -> None:
    assert opened.title() == "s"
    assert any(HOSTILE in name for name in first_column(opened, "arms"))
    names = opened.evaluate("Array.from(document.querySelectorAll('#curves .legendtext')).map(e => e.textContent)")
    assert any(HOSTILE in name for name in names)


def test_tables_sort_and_filter(opened: Any) -> None:
    loss = opened.locator("#runs thead button", has_text="loss")
    loss.click()
    numbers = [
        float(text) for text in opened.locator("#runs tbody tr td:nth-child(6)").all_inner_texts() if text != "–"
    ]
    assert numbers == sorted(numbers)
    assert len(numbers) == 20
    loss.click()
    assert opened.locator("#runs th[aria-sort=descending]").count() == 1
    opened.locator("[data-filters=runs]").fill("post nonfinite")
    assert len(first_column(opened, "runs")) == 1
    opened.locator("[data-filters=runs]").fill("")
    assert len(first_column(opened, "runs")) == 21


def test_the_legend_hides_an_arm(opened: Any) -> None:
    opened.locator("#curves .legend .traces .legendtoggle").first.click()
    opened.wait_for_function("document.getElementById('curves')._fullData[0].visible === 'legendonly'")
    hidden = opened.evaluate(
        "document.getElementById('curves')._fullData.filter(t => t.visible === 'legendonly').map(t => t.legendgroup)"
    )
    assert len(set(hidden)) == 1
    assert len(hidden) >= 3  # band, mean and lines together
    opened.locator("#curves .legend .traces .legendtoggle").first.click()
    opened.wait_for_function("document.getElementById('curves')._fullData[0].visible === true")


def test_curves_change_axes_smoothing_and_runs(opened: Any) -> None:
    def traces() -> list[Any]:
        return opened.evaluate("document.getElementById('curves')._fullData.map(t => [t.mode, Array.from(t.x).at(-1)])")

    bar = opened.locator("figure:has(#curves) .controls")
    before = traces()
    assert ["markers", 29] in before  # where the broken run ended
    bar.get_by_label("over", exact=True).select_option("tokens")
    assert ["markers", 29 * 256] in traces()
    bar.get_by_label("runs", exact=True).select_option("all")
    assert len(traces()) == 21 + 1
    bar.get_by_label("y", exact=True).select_option("log")
    assert opened.evaluate("document.getElementById('curves')._fullLayout.yaxis.type") == "log"
    bar.get_by_label("of", exact=True).select_option("val_loss")
    assert len(traces()) >= 20


def test_dark_mode_follows_the_system_and_the_button(opened: Any) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    ink = "document.getElementById('lr')._fullLayout.font.color"
    light = opened.evaluate(ground), opened.evaluate(ink)
    opened.emulate_media(color_scheme="dark")
    opened.wait_for_function(f"{ink} !== '{light[1]}'")
    assert opened.evaluate(ground) != light[0]
    picture(opened, "dark")
    opened.locator("button.theme").click()
    assert (opened.evaluate(ground), opened.evaluate(ink)) == light
    opened.emulate_media(color_scheme="light")


def test_a_figure_saves_its_numbers_and_pictures(opened: Any) -> None:
    rows = opened.evaluate("page.csv('lr')").splitlines()
    assert rows[0] == '"trace","x","y","z"'
    assert len(rows) > 1 + 21
    opened.locator("#lr").hover()
    for kind in ("CSV", "SVG", "PNG"):
        with opened.expect_download() as download:
            opened.locator(f'#lr .modebar-btn[data-title*="{kind}"]').click()
        assert download.value.suggested_filename == f"lr.{kind.lower()}"
        assert Path(download.value.path()).stat().st_size > 300


def test_on_paper_it_is_white_and_nothing_is_cut_off(opened: Any) -> None:
    opened.emulate_media(color_scheme="dark")
    before = opened.evaluate("document.getElementById('pairs')._fullLayout.width")
    opened.emulate_media(media="print", color_scheme="dark")
    opened.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert opened.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert opened.evaluate("document.getElementById('lr')._fullLayout.font.color") == "#16202e"
    wide = opened.evaluate(
        "[...document.querySelectorAll('.main-svg, #arms')].map(e => e.getBoundingClientRect().width)"
    )
    assert len(wide) > 10
    assert max(wide) <= 701
    assert not opened.locator(".controls").first.is_visible()
    picture(opened, "paper")
    opened.emulate_media(media="screen", color_scheme="light")
    opened.evaluate("dispatchEvent(new Event('afterprint'))")
    assert opened.evaluate("document.getElementById('pairs')._fullLayout.width") == before > 701


def test_a_phone_scrolls_only_downwards(opened: Any) -> None:
    opened.set_viewport_size({"width": 390, "height": 844})
    widths = "page.plots.map(({ div }) => div._fullLayout.width)"
    opened.wait_for_function(f"Math.max(...{widths}) < 390")
    wide, seen = opened.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide <= seen
    picture(opened, "phone")
    opened.set_viewport_size({"width": 1240, "height": 900})
    opened.wait_for_function(f"Math.min(...{widths}) > 390")


def test_two_texts_are_two_rankings_and_a_lost_run_is_named(browser: Any, tmp_path: Path) -> None:
    study, runs = tmp_path / "s", []
    for text, base in (("stdlib", 2.0), ("other", 1.0)):
        for placement, more in (("pre", 0.3), ("post", 0.1)):
            for seed in range(2):
                identity = {"corpus": text * 8, "choices": {"size": "nano", "placement": placement, "data": text}}
                loss = base + more + seed / 50
                runs.append(fabricate(study, placement=placement, seed=seed, loss=loss, identity=identity, layers=2))
    plan(study, *runs)
    shutil.rmtree(runs[0])
    (tmp_path / "page.html").write_text(page(compare([str(study)])), encoding="utf-8")
    tab, complaints = quiet(browser)
    show(tab, tmp_path / "page.html")

    box = tab.locator("#problems").inner_text()
    assert "1 run does not count: 1 missing" in box
    assert "learning rate 0.003, seed 0: planned, no run" in box
    assert "python train.py -m placement=pre,post makes 1 of them" in box
    heads = tab.locator("#arms tr.group").all_inner_texts()
    assert sorted(heads) == ["other", "stdlib"]

    def bodies() -> list[list[str]]:
        return tab.evaluate(
            "[...document.querySelectorAll('#arms tbody')].map(b => [...b.rows].map(r => r.cells[0].innerText.trim()))"
        )

    assert [body[0] for body in bodies()] == heads
    assert all(body[1].startswith("post") for body in bodies())  # the better one
    loss = tab.locator("#arms thead button", has_text="loss")
    loss.click()
    loss.click()
    assert [body[0] for body in bodies()] == heads  # sorted each by itself
    assert all(body[1].startswith("pre") for body in bodies())

    def names(figure: str) -> set[str]:
        return set(tab.evaluate(f"document.getElementById('{figure}')._fullData.map(t => t.name)"))

    for figure in ("curves", "gradients", "depth-stream_rms"):
        assert all(heads[0] in name for name in names(figure))
    tab.locator("#among").select_option("1")
    for figure in ("curves", "gradients", "depth-stream_rms"):
        assert all(heads[1] in name for name in names(figure))
    tab.locator("#among").select_option("")
    assert len(names("depth-stream_rms")) == 4
    picture(tab, "two-texts")
    assert complaints == []
    tab.close()


def test_a_gallery_leads_to_its_claims_and_back(browser: Any, tmp_path: Path) -> None:
    found = report([str(heard(tmp_path / "runs").parent)], by=[], x="step", format="html", root=tmp_path, name="all")
    for name, text in {"all.html": found.text, **found.beside}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    tab, complaints = quiet(browser)
    show(tab, tmp_path / "all.html")
    picture(tab, "gallery")
    tab.locator(".gallery h2 a").click()
    tab.wait_for_selector("html[data-ready]", state="attached")
    assert tab.url.endswith("/all-claim-norms.html")
    assert tab.locator("#verdict").is_visible()
    assert "post, learning rate 0.003, seed 2: no run" in tab.locator("#problems").inner_text()
    picture(tab, "claim")
    tab.get_by_role("link", name="all claims").click()
    assert tab.url.endswith("/all.html")
    assert complaints == []
    tab.close()
