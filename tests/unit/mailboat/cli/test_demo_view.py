import io

import pytest
from rich.console import Console

from mailboat.cli import demo_view
from mailboat.cli.demo_tally import Tally
from mailboat.cli.demo_view import DemoView, disk_use


def make_view(*, terminal):
    """Return a view and the text that it writes to."""
    text = io.StringIO()
    return DemoView(Console(file=text, force_terminal=terminal, width=100)), text


def tally(**counts):
    """Return a tally with so many messages per tag."""
    made = Tally()
    for tag, messages in counts.items():
        for number in range(messages):
            made.add(tag, f"{tag}:{number}", b"x")
    return made


def test_without_a_terminal_stages_are_plain_lines(monkeypatch):
    """Logs get lines that can be read and searched, and no control characters."""
    monkeypatch.setattr(demo_view, "_LINE_INTERVAL_S", 0.0)
    view, text = make_view(terminal=False)
    with view.stage("send", 2000) as update:
        update(1500)
        update(2000)
    lines = text.getvalue().splitlines()
    assert lines[:3] == ["send ...", "send: 1,500 of 2,000", "send: 2,000 of 2,000"]
    assert lines[3].startswith("send: 2,000 in ")
    assert "\x1b" not in text.getvalue()


@pytest.mark.parametrize("total", [None, 2000])
def test_on_a_terminal_a_bar_ends_full(total):
    """The bar shows the count, also where the total was not known before."""
    view, text = make_view(terminal=True)
    with view.stage("send", total) as update:
        update(1500)
    assert "1,500" in text.getvalue()
    assert "100%" in text.getvalue()


def test_a_stage_that_fails_is_not_reported_as_done():
    """The time of a stage counts only once it ended well."""
    view, _ = make_view(terminal=False)
    with pytest.raises(RuntimeError), view.stage("send"):
        raise RuntimeError
    assert view.seconds == {}


def test_the_report_shows_both_sides():
    """Counts of both sides, per tag and in all, with what differs on top."""
    view, text = make_view(terminal=False)
    view.seconds["send"] = 2.0
    many = {f"tag{number:02}": 20 + number for number in range(20)}
    view.report(tally(**many, lost=3), tally(**many, lost=1), {"index": 1_500_000}, {"send": 400})
    lines = [line.split() for line in text.getvalue().splitlines()]
    cells = [[word for word in line if word not in ("│", "┃")] for line in lines]
    assert ["lost", "3", "1", "NO"] in cells
    assert ["tag19", "39", "39", "yes"] in cells
    assert ["6", "more", "tags", "135", "135", "yes"] in cells
    assert ["all", "593", "591", "NO"] in cells
    assert cells.index(["lost", "3", "1", "NO"]) < cells.index(["tag19", "39", "39", "yes"])
    assert "index 1.5 MB" in text.getvalue()
    assert "send 2.0 s (200 messages/s)" in text.getvalue()


def test_disk_use_counts_what_files_occupy(tmp_path):
    """Reserved but unwritten blocks count, holes do not."""
    (tmp_path / "a").mkdir()
    with (tmp_path / "a" / "hole").open("wb") as file:
        file.truncate(10_000_000)
    assert disk_use(tmp_path) < 1_000_000
    (tmp_path / "a" / "full").write_bytes(b"x" * 1_000_000)
    assert 1_000_000 <= disk_use(tmp_path) < 2_000_000
    assert disk_use(tmp_path / "none") == 0
