"""The report in a real browser: light, dark and on a phone; nothing is asked of the network, and nothing is cut off."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks._chromium import PHONE, Chromium, find_chromium
from benchmarks.report_size import MOST_BYTES, MOST_SECONDS
from benchmarks.report_size import write_run as write_long_run
from lzero_async.tools.report.command import write_report
from tests.tools.report_runs import SECTIONS, evaluation, write_run

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_chromium() is None, reason="there is no Chromium with chromedriver"),
]
DESK = (1200, 900)
OVERFLOW = """
const wide = document.documentElement.clientWidth;
return [...document.querySelectorAll('body *')].filter(item => !item.closest('.scroll') && !item.closest('svg') &&
  item.getBoundingClientRect().right > wide + 1).map(item => item.outerHTML.slice(0, 80))"""
SHOWN = """
return [...document.querySelectorAll('section')].map(item => {
  const box = item.getBoundingClientRect();
  return [item.id, box.width, box.height, getComputedStyle(item).visibility]})"""
CLIPPED = """
return [...document.querySelectorAll('.xs span, .ys span, figcaption, .more, .name')].filter(item =>
  item.scrollWidth > item.clientWidth + 1 && getComputedStyle(item).overflow !== 'visible').map(item => item.textContent)"""
OPEN_ALL = "document.querySelectorAll('details').forEach(item => item.open = true)"


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    found = find_chromium()
    assert found is not None
    with Chromium(*found) as started:
        yield started


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page about one run, one about three seeds, one about a run that left only its trace, and one with long names."""
    place = tmp_path_factory.mktemp("reports")
    one = write_run(place / "one")
    seeds = [
        write_run(place / f"seed{seed}", seed=seed, evaluations=[evaluation(n, 9.0 * seed) for n in range(1, 6)])
        for seed in (1, 2, 3)
    ]
    killed = write_run(place / "killed")
    for name in ("summary.json", "options.json", "metrics.jsonl"):
        (killed / name).unlink()
    long = write_run(
        place / ("a-very-long-name-without-a-space" * 5), title="Wide" * 60, ended_by="x" * 200, counts={"y" * 90: 10**15},
        events=[{"seconds": 3.0, "level": "ERROR", "text": "z" * 400}], options={"w" * 120: "v" * 300},
    )  # fmt: skip
    made = {"one": [one], "seeds": seeds, "killed": [killed], "long": [long]}
    for name, runs in made.items():
        write_report(runs, place / f"{name}.html")
    return {name: place / f"{name}.html" for name in made}


def look(browser: Chromium, page: Path, scheme: str, size: tuple[int, int]) -> None:
    browser.scheme(scheme)
    browser.screen(*size, phone=size == PHONE)
    browser.open(page)


@pytest.mark.parametrize("name", ["one", "seeds", "killed", "long"])
def test_it_opens_without_errors_and_without_the_network(browser: Chromium, pages: dict[str, Path], name: str) -> None:
    browser.requests(), browser.log("browser")
    look(browser, pages[name], "light", DESK)
    assert browser.requests() == [pages[name].resolve().as_uri()]
    assert [entry for entry in browser.log("browser") if entry["level"] != "INFO"] == []
    shown = browser.script(SHOWN)
    assert [section for section, *_ in shown if section not in ("comparison", "missing")] == list(SECTIONS)
    assert all(width > 300 and height > 60 and visible == "visible" for _, width, height, visible in shown)


@pytest.mark.parametrize("size", [DESK, PHONE, (320, 600)], ids=["desk", "phone", "small"])
@pytest.mark.parametrize("name", ["one", "seeds", "killed", "long"])
def test_nothing_is_wider_than_the_screen(
    browser: Chromium, pages: dict[str, Path], name: str, size: tuple[int, int]
) -> None:
    browser.scheme("light")
    browser.screen(*size, phone=size != DESK)
    browser.open(pages[name])
    browser.script(OPEN_ALL)
    assert browser.script("return document.documentElement.scrollWidth") <= size[0], browser.script(OVERFLOW)
    assert browser.script(OVERFLOW) == []
    assert browser.script(CLIPPED) == []


@pytest.mark.parametrize(("scheme", "size"), [("light", DESK), ("dark", DESK), ("light", PHONE), ("dark", PHONE)])
def test_the_picture_is_light_or_dark_and_not_blank(
    browser: Chromium, pages: dict[str, Path], tmp_path: Path, scheme: str, size: tuple[int, int]
) -> None:
    from PIL import Image

    look(browser, pages["one"], scheme, size)
    with Image.open(browser.shot(tmp_path / "page.png")) as picture:
        assert picture.width == size[0] and picture.height >= size[1]
        grey = picture.convert("L")
        pixels = grey.histogram()
        mean = sum(value * count for value, count in enumerate(pixels)) / sum(pixels)
        assert mean < 60 if scheme == "dark" else mean > 200
        colours = picture.convert("RGB").getcolors(1 << 24)
    assert colours is not None and len(colours) > 100
    assert max(count for count, _ in colours) < 0.95 * picture.width * picture.height


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_can_be_read(browser: Chromium, pages: dict[str, Path], scheme: str) -> None:
    """Every text has the contrast to what is behind it that WCAG asks for (AA: 4.5, 3 for large letters)."""
    look(browser, pages["one"], scheme, DESK)
    browser.script(OPEN_ALL)
    assert browser.script(CONTRAST) == []


CONTRAST = """
const parts = text => text.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const behind = item => {
  for (; item; item = item.parentElement) {
    const colour = parts(getComputedStyle(item).backgroundColor);
    if (colour.length === 3 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
};
return [...document.querySelectorAll("body *")].filter(item => !item.closest("svg") &&
  getComputedStyle(item).visibility !== "hidden" &&
  [...item.childNodes].some(node => node.nodeType === 3 && node.data.trim())).map(item => {
  const style = getComputedStyle(item), one = light(parts(style.color)), two = light(behind(item));
  const contrast = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
  return [contrast, parseFloat(style.fontSize) >= 18.66 ? 3 : 4.5, item.outerHTML.slice(0, 90)];
}).filter(([contrast, wanted]) => contrast < wanted)"""


def test_bars_and_curves_are_there(browser: Chromium, pages: dict[str, Path]) -> None:
    """What is drawn covers the place that is meant for it, also in a print of the page."""
    look(browser, pages["one"], "light", DESK)
    tall = browser.script(
        "return [...document.querySelectorAll('.pic svg')].map(item => item.getBoundingClientRect().height)"
    )
    assert tall and min(tall[:4]) > 150
    widths = browser.script(
        "return [...document.querySelectorAll('.share')].map(item => [item.clientWidth,"
        " [...item.children].reduce((sum, part) => sum + part.getBoundingClientRect().width, 0)])"
    )
    assert widths and all(whole > 300 and abs(whole - parts) < 2 for whole, parts in widths)
    titles = browser.script(
        "return [...document.querySelectorAll('.strip.low rect title')].map(item => item.textContent)"
    )
    assert any(title.startswith("train: 2.9 s from") and "staleness" in title for title in titles)
    printed = browser.command("Page.printToPDF", printBackground=True)
    assert len(printed["data"]) > 20_000


def test_names_from_files_do_nothing(browser: Chromium, tmp_path: Path) -> None:
    evil = '<script>document.title = "taken"</script><img src="http://127.0.0.1:9/x.png" onerror="document.title=1">'
    run = write_run(tmp_path / "run", title=evil, ended_by=evil, counts={evil: 1}, options={evil: evil})
    write_report([run], tmp_path / "page.html")
    browser.requests()
    look(browser, tmp_path / "page.html", "light", DESK)
    assert browser.requests() == [(tmp_path / "page.html").resolve().as_uri()]
    assert browser.script("return document.querySelectorAll('script, img').length") == 0
    assert browser.script("return document.querySelector('h1').textContent").startswith(evil)


def test_a_long_run_opens_at_once(browser: Chromium, tmp_path: Path) -> None:
    """A tenth of what `python -m benchmarks.seen` measures."""
    write_long_run(tmp_path / "run", 10_000)
    write_report([tmp_path / "run"], tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < MOST_BYTES / 5
    look(browser, tmp_path / "page.html", "light", DESK)
    assert 0 < browser.load_seconds() < MOST_SECONDS
