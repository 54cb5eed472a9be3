"""The page in a real browser: no word on the console, nothing cut off, readable in the dark, on a phone and on paper."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from browser import DARK, measured, needs_chromium, opened, printed, screenshot
from equipoise.report import write
from test_collaborative_report import several as collaborative
from test_report import Page, compared, several

pytestmark = [pytest.mark.slow, needs_chromium]
WIDE = 178 * 96 // 25  # pixels: what the margins leave of a sheet of A4
CUT = """[...page.querySelectorAll("table, p, pre, h1, h2, h3, svg, li")].filter(e => e.getClientRects().length &&
  !e.closest(".scroll") && e.getBoundingClientRect().right > page.documentElement.clientWidth + 1).map(e => e.outerHTML.slice(0, 80))"""
TABLES = """[...page.querySelectorAll("table")].filter(e => e.getClientRects().length &&
  e.getBoundingClientRect().right > page.documentElement.clientWidth + 1).map(e => e.textContent.slice(0, 80))"""
CONTRAST = """(() => {
  const light = text => { const c = text.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2]; };
  const style = e => page.defaultView.getComputedStyle(e), paper = light(style(page.documentElement).backgroundColor);
  return Math.min(...[...page.querySelectorAll("p, td, th, small, a, li, figcaption, h1, h2, h3, summary")].map(e => {
    const ink = light(style(e).color); return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05); }));
})()"""


@pytest.fixture(scope="module", params=["domains", "clients", "measures"])
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = {"domains": several, "clients": collaborative, "measures": compared}[request.param]()
    return write(runs, tmp_path_factory.mktemp("page") / "report.html")


@pytest.mark.parametrize("options", [(), (DARK,)], ids=["light", "dark"])
def test_the_browser_has_nothing_to_complain_about(report: Path, options: tuple[str, ...]) -> None:
    dom, errors = opened(report, *options)
    assert errors == []
    body = re.sub(r"<(meta|wbr)[^>]*>", "", dom)
    tables = Page(report.read_text()).tables
    assert body.count("<table") == len(tables) >= 7
    assert all(len({len(row) for row in table}) == 1 for table in tables)


def test_the_console_is_heard(tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text('<!DOCTYPE html><img src="https://example.org/x.png"><script>undefined.x</script>')
    _, errors = opened(page)
    assert any("TypeError" in line for line in errors)


OPEN = 'page.querySelectorAll("details").forEach(e => { e.open = true; });'


def test_the_first_screen_has_the_answer(report: Path) -> None:
    """On 1,200 by 800 pixels: the headline, the figure whole, and the table; few words before anything is unfolded."""
    ends = """(() => { const end = what => page.querySelector(what).getBoundingClientRect().bottom;
      return [end(".headline"), end("#answer"), end("main > .scroll table"), page.body.innerText.split(/\\s+/).length]; })()"""
    headline, figure, table, words = measured(report, ends, 1200)
    assert headline < figure < table <= 800
    assert words <= 900


def test_a_method_is_switched_off_everywhere(report: Path) -> None:
    off = f"""(() => {{ {OPEN} const seen = () => [...page.querySelectorAll('[data-m="1"]')].filter(e => e.getClientRects().length).length;
      const box = page.querySelector('[data-switch="1"]'), before = seen(); box.checked = false; box.dispatchEvent(new Event("change"));
      const without = seen(); box.checked = true; box.dispatchEvent(new Event("change")); return [before, without, seen()]; }})()"""
    before, without, after = measured(report, off, 1200)
    assert before == after >= 8
    assert without == 0


def test_tables_are_sorted_by_a_column_and_back(report: Path) -> None:
    order = """(() => { const table = page.querySelector("main > .scroll table"), button = table.querySelectorAll(".sort")[1];
      const numbers = () => [...table.querySelectorAll("tbody tr")].map(row => parseFloat(row.cells[1].textContent));
      button.click(); const down = numbers(), said = table.rows[0].cells[1].ariaSort; button.click(); return [down, said, numbers()]; })()"""
    down, said, up = measured(report, order, 1200)
    assert down == sorted(down, reverse=True)
    assert up == sorted(down)
    assert said == "descending"


def test_everything_that_acts_is_reached_by_keyboard(report: Path) -> None:
    acting = f"""(() => {{ {OPEN} return [...page.querySelectorAll("summary, input, button, a[href], .scroll")].filter(
      e => e.tabIndex < 0 || !(e.textContent.trim() || e.ariaLabel || e.labels?.length || e.getAttribute("aria-label"))).map(e => e.outerHTML.slice(0, 80)); }})()"""
    assert measured(report, acting, 1200) == []


@pytest.mark.parametrize("width", [360, 1000])
def test_the_page_never_scrolls_sideways(report: Path, width: int) -> None:
    wide = (
        f"(() => {{ {OPEN} return [page.documentElement.scrollWidth - page.documentElement.clientWidth, {CUT}]; }})()"
    )
    too_wide, cut = measured(report, wide, width)
    assert too_wide <= 0
    assert cut == []


@pytest.mark.parametrize("options", [(), (DARK,)], ids=["light", "dark"])
def test_text_stands_out_from_the_paper(report: Path, options: tuple[str, ...]) -> None:
    assert measured(report, CONTRAST, 1000, *options) >= 4.5


def test_on_paper_no_table_is_cut_and_the_ground_is_white(report: Path, tmp_path: Path) -> None:
    page = tmp_path / "print.html"
    page.write_text(report.read_text().replace("@media print {", "@media all {"))
    ground = "page.defaultView.getComputedStyle(page.documentElement).backgroundColor"
    assert measured(page, f"[{TABLES}, {ground}]", WIDE, DARK) == [[], "rgb(255, 255, 255)"]
    assert 3 <= printed(report, tmp_path / "report.pdf") <= 20


def test_a_formula_is_shown_to_who_points_at_it_or_gets_there_by_keyboard(report: Path, tmp_path: Path) -> None:
    hint = """(() => { page.querySelectorAll("details").forEach(e => { e.open = true; }); const e = page.querySelector(".term"); e.focus({focusVisible: true});
      return page.defaultView.getComputedStyle(e, "::after").content; })()"""
    assert re.search("Σ|correlation", measured(report, hint, 1000))
    assert '<a class="term"' in report.read_text()
    assert screenshot(report, tmp_path / "page.png").stat().st_size > 10_000


def test_a_phone_shows_the_statistics_before_the_groups(report: Path) -> None:
    """Without scrolling, beside the names of the methods, which stay where they are."""
    of_first = """(() => { page.querySelectorAll("details").forEach(e => { e.open = true; });
      const first = [...page.querySelectorAll("table")].find(e => e.querySelector(".total"));
      if (!first) return null; const cells = [...first.rows[0].cells];
      return [cells.filter(e => e.classList.contains("total") && e.getBoundingClientRect().right <= page.documentElement.clientWidth)
        .map(e => e.textContent.trim()), page.defaultView.getComputedStyle(cells[0]).position]; })()"""
    found = measured(report, of_first, 390)
    several = any("AVG" in table[0] and "worst" in table[0] for table in Page(report.read_text()).tables)
    assert found is None if not several else (found[0][0], found[0][-1], found[1]) == ("AVG", "worst", "sticky")
