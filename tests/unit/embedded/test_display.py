"""What the terminal shows, where it is none."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from rouse_embedded.display import MAX_LINES_PER_S, Display
from rouse_embedded.logs import Line
from rouse_embedded.notices import Logged, Note, Restarting, Waiting
from rouse_testkit.clock import ManualClock


class Terminal:
    def __init__(self, clock: ManualClock, *, verbose: bool = False) -> None:
        self.file = io.StringIO()
        console = Console(file=self.file, highlight=False, soft_wrap=True)
        self.display = Display(verbose=verbose, console=console, clock=clock)

    def shown(self) -> list[str]:
        text = self.file.getvalue()
        self.file.seek(0)
        self.file.truncate()
        return text.splitlines()


@pytest.fixture
def terminal(manual_clock: ManualClock) -> Terminal:
    return Terminal(manual_clock)


def test_progress_is_a_line_a_process_that_is_waited_for(terminal: Terminal, manual_clock: ManualClock) -> None:
    for name, detail in (("postgres", "starting"), ("postgres", "initdb"), ("cluster-manager", "database migrations")):
        manual_clock.advance(1)
        terminal.display.notice(Waiting(name, detail, 3, 11))
    assert terminal.shown() == [
        "  1.0 s  3/11 ready, waiting for postgres: starting",
        "  3.0 s  3/11 ready, waiting for cluster-manager: database migrations",
    ]


def test_a_long_wait_is_said_again(terminal: Terminal, manual_clock: ManualClock) -> None:
    for _ in range(12):
        manual_clock.advance(1)
        terminal.display.notice(Waiting("postgres", "starting", 0, 11))
    assert len(terminal.shown()) == 2


def test_while_it_starts_lines_stay_in_the_log(terminal: Terminal) -> None:
    terminal.display.notice(Logged(Line("gateway", "WARNING", "waiting for nats")))
    assert terminal.shown() == []


def test_restarts_and_notes_are_shown_and_markup_is_not_obeyed(terminal: Terminal) -> None:
    terminal.display.notice(Restarting("gateway", "ended by signal 9 after 1.0 s", 0.1))
    terminal.display.notice(Note("[bold]port[/bold] taken"))
    assert terminal.shown() == [
        "gateway ended by signal 9 after 1.0 s; starting it again in 0.1 s",
        "[bold]port[/bold] taken",
    ]


def test_verbose_shows_every_line(manual_clock: ManualClock) -> None:
    terminal = Terminal(manual_clock, verbose=True)
    for number in range(100):
        terminal.display.notice(Logged(Line("gateway", "DEBUG", f"line {number}")))
    assert terminal.shown() == [f"gateway: line {number}" for number in range(100)]


def test_a_flood_of_warnings_is_cut_and_counted(terminal: Terminal, manual_clock: ManualClock) -> None:
    terminal.display.serving()
    for _ in range(1000):
        terminal.display.notice(Logged(Line("gateway", "WARNING", "again")))
    assert terminal.shown() == ["gateway: again"] * MAX_LINES_PER_S
    manual_clock.advance(1)
    terminal.display.notice(Logged(Line("gateway", "ERROR", "new")))
    terminal.display.notice(Logged(Line("gateway", "INFO", "no news")))
    assert terminal.shown() == [f"({1000 - MAX_LINES_PER_S} more lines in logs/rouse.log)", "gateway: new"]
