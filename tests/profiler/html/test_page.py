"""The HTML report: what the file holds, and what a browser draws from it."""

import base64
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import offgrad
import offgrad.profiler.html
from offgrad.profiler import profile, profile_memory, report
from tests.profiler.html import invented

FOLDER = Path(offgrad.profiler.html.__file__).parent
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
HOSTILE = "</script><script>hacked = true</script><img src=x onerror=hacked=true>"

# Opens the report as a reader with a phone does, and writes what it finds into the page.
DRIVER = """<!doctype html><iframe id="frame" src="report.html" width="390" height="800"></iframe>
<pre id="found"></pre><script>
const wait = () => new Promise((done) => setTimeout(done, 200));
window.onload = async () => {
  await wait();
  const page = document.getElementById("frame").contentDocument;
  const all = (selector) => [...page.querySelectorAll(selector)];
  const press = (text) => all("button").find((each) => each.textContent === text).click();
  const rows = () => all(".tree:not(.policies) tbody tr").map((each) =>
    each.firstChild.textContent.trim());
  const timeline = () => all("[data-chart=timeline]").at(-1);
  const found = {
    drawn: page.body.dataset.drawn, hacked: typeof page.defaultView.hacked,
    scripts: page.scripts.length, images: page.images.length,
    wide: page.documentElement.scrollWidth - page.documentElement.clientWidth,
    layers: [...timeline().querySelectorAll("path")].map((each) => each.dataset.category),
    phases: timeline().querySelectorAll("[data-phase]").length,
    steps: timeline().querySelectorAll("[data-step]").length,
    policies: all("[data-policy]").map((each) => each.dataset.policy),
    kinds: [...new Set(all("[data-chart=spans] rect").map((each) => each.dataset.kind))],
    peak: all(".peak tbody tr").map((each) => each.innerText.replace(/\\s+/g, " ")),
    peakReadout: all("[aria-live] p")[0].textContent,
    paper: getComputedStyle(page.body).backgroundColor,
    few: rows(),
  };
  const sums = all("[aria-label='Sum up']")[0];
  sums.selectedIndex = 4;
  sums.dispatchEvent(new Event("change"));
  found.categories = all(".peak tbody tr").map((each) => each.innerText.replace(/\\s+/g, " "));
  press("Open all");
  found.many = rows();
  press("+");
  found.zoomed = timeline().querySelectorAll("[data-phase]").length;
  press("All");
  found.whole = timeline().querySelectorAll("[data-phase]").length;
  const chart = all("[tabindex]")[0];
  chart.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
  found.cursorReadout = all("[aria-live] p")[0].textContent;
  found.cursors = all("line.cursor").length;
  const press2 = (type, x) => chart.dispatchEvent(new PointerEvent(type, { clientX: x }));
  press2("pointerdown", 150); press2("pointermove", 180); press2("pointerup", 200);
  found.dragged = timeline().querySelectorAll("[data-phase]").length;
  press("disk");
  await wait();
  found.second = all("button[aria-pressed=true]").map((each) => each.textContent);
  found.ledger = all(".stacked").at(-1).innerText.includes("disk");
  document.getElementById("found").textContent = JSON.stringify(found);
};
</script>
"""


class Page(HTMLParser):
    """The texts of a page by tag, and all attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: dict[str, list[str]] = {}
        self.attributes: list[tuple[str, str | None]] = []
        self._tag = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._tag = tag
        self.attributes += attrs
        self.texts.setdefault(tag, []).append("")

    def handle_data(self, data: str) -> None:
        if self._tag:
            self.texts[self._tag][-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""


def hostile() -> dict[str, Any]:
    """Return a profile all of whose names are markup."""
    profile = invented.profile(steps=2, layers=2)
    profile["modules"][1]["name"] = profile["modules"][1]["type"] = HOSTILE
    profile["peak"]["contents"][0] |= dict.fromkeys(("op", "slot", "module", "line"), HOSTILE)
    profile["spans"][0]["name"] = profile["machine"]["cpu"] = HOSTILE
    profile["ledger"]["rows"][0] |= dict.fromkeys(("op", "module", "store"), HOSTILE)
    return profile


def written(tmp_path: Path, profiles: Any, **options: Any) -> str:
    path = tmp_path / "report.html"
    report(path, profiles, **options)
    return path.read_text(encoding="utf-8")


def test_one_file_with_nothing_from_elsewhere(tmp_path: Path) -> None:
    text = written(tmp_path, {HOSTILE: hostile()}, title=HOSTILE)
    page = Page(text)
    data, script = page.texts["script"]
    assert page.texts["title"] == page.texts["h1"] == [HOSTILE]
    assert "img" not in page.texts
    links = [value for name, value in page.attributes if name in ("src", "href")]
    assert links == ["data:,"]
    (policy,) = [value for _, value in page.attributes if value and "default-src" in value]
    for allowed, code in (("style-src", page.texts["style"][0]), ("script-src", script)):
        digest = base64.b64encode(sha256(code.encode()).digest()).decode()
        assert f"{allowed} 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert set(re.findall(r"https?://[^\s\"']+", text)) == {"http://www.w3.org/2000/svg"}
    (only,) = json.loads(data)["profiles"]
    assert only["name"] == only["profile"]["modules"][1]["name"] == HOSTILE


def test_a_report_of_one_profile_and_of_several(tmp_path: Path) -> None:
    profile = invented.profile()
    named: Callable[[Any], list[str]] = lambda profiles: [
        each["name"]
        for each in json.loads(Page(written(tmp_path, profiles)).texts["script"][0])["profiles"]
    ]
    assert named(profile) == [""]
    assert named({"keep": profile, "disk": profile}) == ["keep", "disk"]
    with pytest.raises(ValueError, match="at least one profile"):
        report(tmp_path / "none.html", {})
    wrongs: list[Any] = [3, {"keep": 3}, {"keep": {"modules": []}}]
    for wrong in wrongs:
        with pytest.raises(TypeError, match="takes a profile"):
            report(tmp_path / "wrong.html", wrong)
    (tmp_path / "wrong.json").write_text("no JSON")
    with pytest.raises(ValueError, match=r"is JSON, but .*wrong\.json is not"):
        report(tmp_path / "wrong.html", tmp_path / "wrong.json")
    (tmp_path / "wrong.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"is JSON, but .*wrong\.json is not"):
        report(tmp_path / "wrong.html", tmp_path / "wrong.json")
    (tmp_path / "wrong.json").write_text("[]")
    with pytest.raises(TypeError, match=r"got the file .*wrong\.json"):
        report(tmp_path / "wrong.html", tmp_path / "wrong.json")
    assert not (tmp_path / "wrong.html").exists()


def test_a_long_recording_makes_no_large_page(tmp_path: Path) -> None:
    profile = invented.profile()
    count = 300_000
    nbytes = list(range(count))
    profile["timeline"] = {
        "seconds": [n * 1e-3 for n in nbytes],
        "nbytes": nbytes,
        "categories": {"temporary": nbytes},
    }
    one = profile["spans"][0]
    profile["spans"] = [{**one, "start": n, "end": n + 1e-3 * n} for n in range(20_000)]
    profile["sampled"] = dict.fromkeys(profile["sampled"], nbytes)
    profile["seconds"] = float("nan")  # JSON has none
    profile["phases"] *= 2_000
    profile["steps"] *= 5_000
    profile["modules"] = [
        {"name": f"blocks.{n}", "forward_seconds": n, "backward_seconds": 0} for n in range(9_000)
    ]
    text = written(tmp_path, profile, title="\ud800")  # half a character
    assert len(text) < 2_000_000
    found = json.loads(Page(text).texts["script"][0])["profiles"][0]["profile"]
    assert found["timeline"]["nbytes"][-1] == count - 1
    assert found["spans"][-1][4] == pytest.approx(19_999 * 1.001)
    assert found["seconds"] is None
    assert found["modules"][-1]["name"] == "blocks.8999"
    assert max(len(found[name]) for name in ("phases", "steps", "modules", "spans")) <= 6_000


def test_a_profile_writes_a_report_of_itself(tmp_path: Path) -> None:
    with profile() as prof:
        offgrad.ones(256, 256, requires_grad=True).exp().sum().backward()
        prof.step()
    with profile() as empty:
        pass
    assert ">ExpBackward0.result</td>" in prof._repr_html_()
    assert re.fullmatch(r"<Profile: peak of [\d.]+ [KM]iB in [\d.]+ s>", repr(prof))
    prof.save(tmp_path / "profile.json")
    report(tmp_path / "saved.html", {"a run": tmp_path / "profile.json"})
    prof.report(tmp_path / "page.html", title="A <step>")
    page = Page((tmp_path / "page.html").read_text())
    assert page.texts["h1"] == ["A <step>"]
    (shown,) = json.loads(page.texts["script"][0])["profiles"]
    saved = Page((tmp_path / "saved.html").read_text()).texts["script"][0]
    assert json.loads(saved)["profiles"] == [{**shown, "name": "a run"}]
    assert any(each["op"] == "ExpBackward0" for each in shown["profile"]["peak"]["contents"])
    assert '"nbytes":[' in written(tmp_path, empty)


def test_memory_profiles(tmp_path: Path) -> None:
    with profile_memory() as recorded:
        offgrad.ones(64, 64, requires_grad=True).exp().sum().backward()
    page = Page(written(tmp_path, {"whole": recorded, "figures": recorded.as_dict()}))
    first, second = json.loads(page.texts["script"][0])["profiles"]
    assert first["profile"] == second["profile"]
    assert first["profile"]["seconds"] > 0


def colours(scheme: str) -> dict[str, str]:
    """Return the style sheet's colours in a scheme."""
    style = (FOLDER / "style.css").read_text()
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", light))
    assert set(found) == set(re.findall(r"--([\w-]+): #[0-9a-f]{6};", dark))
    if scheme == "dark":
        found.update(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", dark))
    return found


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.2)."""
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(scheme: str) -> None:
    """As the Web Content Accessibility Guidelines ask: 4.5 for text, 3 for figures."""
    found = colours(scheme)
    for text in ("ink", "faint"):
        for ground in ("paper", "panel"):
            assert contrast(found[text], found[ground]) >= 4.5, (text, ground)
    assert contrast(found["paper"], found["accent"]) >= 4.5
    for ground in ("module-a", "module-b", "op"):
        assert contrast(found["on-span"], found[ground]) >= 4.5, ground
    categories = [each.replace(" ", "-") for each in invented.CATEGORIES]
    for name in (*categories, "read", "write", "accent"):
        assert contrast(found[name], found["paper"]) >= 3, name
    assert len({found[name] for name in categories}) == len(categories)


def in_chromium(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """Return what `DRIVER` finds in the report; raise if anything reaches the console."""
    if CHROMIUM is None:
        pytest.skip("opens the report in Chromium, which is not installed")
    (tmp_path / "driver.html").write_text(DRIVER, encoding="utf-8")
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-web-security",  # for the driver alone, which looks into the report
            "--allow-file-access-from-files",
            f"--user-data-dir={tmp_path / 'chromium'}",
            "--enable-logging=stderr",
            "--virtual-time-budget=3000",
            *arguments,
            "--dump-dom",
            (tmp_path / "driver.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "CONSOLE" not in done.stderr, done.stderr
    return dict(json.loads(Page(done.stdout).texts["pre"][0]))


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "paper"), [(1, "rgb(255, 255, 255)"), (0, "rgb(20, 23, 27)")])
def test_a_browser_draws_it(scheme: int, paper: str, tmp_path: Path) -> None:
    disk = invented.profile(steps=2, layers=2, stored=0.5)
    report(tmp_path / "report.html", {"keep": hostile(), "disk": disk}, title=HOSTILE)
    found = in_chromium(tmp_path, f"--blink-settings=preferredColorScheme={scheme}")
    assert found["drawn"] == "true"
    assert (found["hacked"], found["scripts"], found["images"]) == ("undefined", 2, 0)
    assert found["wide"] == 0
    assert found["paper"] == paper
    assert found["layers"] == [
        "parameter", "optimizer state", "input", "gradient", "saved for backward", "temporary",
    ]  # fmt: skip
    assert (found["phases"], found["steps"], found["whole"]) == (6, 2, 6)
    assert found["zoomed"] < 6 > found["dragged"] > 0
    assert found["policies"] == ["keep", "disk"]
    assert sorted(found["kinds"]) == ["module", "op", "phase"]
    assert len(found["peak"]) == 3
    assert HOSTILE in found["peak"][0]
    assert len(found["categories"]) == 2
    assert "32.0 MiB" in found["categories"][0]
    assert "blocks" not in found["categories"][0]  # its modules differ
    assert "At the peak" in found["peakReadout"]
    assert "At the cursor" in found["cursorReadout"]
    assert found["cursors"] == 2  # in the chart of memory, and in that of spans
    assert found["few"][0].startswith("▾the model GPT")
    assert len(found["many"]) > len(found["few"])
    assert any("mlp MLP" in each for each in found["many"])
    assert found["second"] == ["disk"]
    assert found["ledger"]
