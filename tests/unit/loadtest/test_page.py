"""A run as a page: everything in one file, nothing of it markup by accident."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

from rouse_loadtest import page, plot
from rouse_loadtest.report import Measure


def test_a_page_has_everything_and_needs_nothing(tmp_path: Path) -> None:
    plot.bars(tmp_path / "one.png", "t", "u", [("a", 1.0)])
    plot.bars(tmp_path / "two.svg", "t", "u", [("a", 1.0)])
    (tmp_path / "old.json").write_text("{}")
    measures = [Measure("good", [1.0], "ratio", 2.0), Measure("bad", [3.0], "ratio", 2.0, note="over <others>")]
    with page.listening() as printed:
        print("a < b & c")
    told = page.Told(
        "name", "title", datetime(2026, 11, 22, tzinfo=UTC), "abc123", "make bench SCENARIO=name",
        {"cpu": "some cpu"}, measures, printed(), page.new_pictures(tmp_path, 0.0),
    )  # fmt: skip
    page.write(tmp_path / "name.html", told)
    html = (tmp_path / "name.html").read_text()
    for text in ("2026-11-22", "abc123", "make bench SCENARIO=name", "some cpu", "a &lt; b &amp; c", "over &lt;others"):
        assert text in html
    assert re.findall(r'src="data:([^;]+);base64,', html) == ["image/png", "image/svg+xml"]
    assert not re.search(r'(src|href)="(?!data:)', html)
    assert html.count('class="bad"') == 1


def test_pictures_of_earlier_runs_stay_out(tmp_path: Path) -> None:
    plot.bars(tmp_path / "one.svg", "t", "u", [("a", 1.0)])
    since = (tmp_path / "one.svg").stat().st_mtime
    assert page.new_pictures(tmp_path, since) == [tmp_path / "one.svg"]
    assert page.new_pictures(tmp_path, since + 1) == []
