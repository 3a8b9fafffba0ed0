"""`make bench SCENARIO=name [JSON=path]`: measures, prints tables, writes a page and JSON; exits 1 where a bar does not
hold."""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from datetime import datetime
from pathlib import Path

from rouse_loadtest import page
from rouse_loadtest.place import HOST, Place, at, lacking
from rouse_loadtest.report import ROOT, commit, environment, measures_table, table, write
from rouse_loadtest.scenario import Run, Scenario
from rouse_loadtest.scenarios import SCENARIOS
from rouse_testkit.fetching import Unobtainable


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("scenario", nargs="?", help="one of those listed; without it they are listed")
    parser.add_argument("--json", type=Path, help="write the result there, too")
    parser.add_argument("--plots", type=Path, default=ROOT / "loadtest" / "plots", help="folder for pictures and pages")
    parser.add_argument("--quick", action="store_true", help="few short rounds, to see that it works")
    parser.add_argument(
        "--device", default=HOST.name, help="what it computes on: host:N; cuda:N where the scenario can"
    )
    arguments = parser.parse_args()
    if not arguments.scenario:
        rows = [[s.name, f"{s.minutes:g}", s.title] for s in SCENARIOS.values()]
        print(table(rows, ["scenario", "minutes", "what it measures"]))
        return 0
    scenario = SCENARIOS.get(arguments.scenario)
    if scenario is None:
        print(
            f"make bench: there is no scenario '{arguments.scenario}'; there is {', '.join(SCENARIOS)}", file=sys.stderr
        )
        return 2
    try:
        place = _place(scenario, arguments.device)
    except (ValueError, Unobtainable) as error:
        print(f"make bench: {error}", file=sys.stderr)
        return 2
    where, began = environment() | {"device": place.name}, datetime.now().astimezone()
    print(f"{scenario.name}: {scenario.title}; about {scenario.minutes:g} minutes on two cores", flush=True)
    with tempfile.TemporaryDirectory(prefix="rouse-bench-") as folder, page.listening() as printed:
        measures = scenario.measure(Run(Path(folder), arguments.plots, arguments.quick, place))
    print(measures_table(measures))
    command = f"make bench SCENARIO={scenario.name}{_given(arguments)}"
    pictures = page.new_pictures(arguments.plots, began.timestamp())
    told = page.Told(
        scenario.name, scenario.title, began, commit(), command, where, measures, printed(), pictures
    )  # fmt: skip
    path = arguments.plots / f"{scenario.name}.html"
    page.write(path, told)
    print(f"page: {path}")
    if arguments.json:
        write(arguments.json, scenario.name, measures, where)
    return 0 if all(m.holds for m in measures) else 1


def _place(scenario: Scenario, name: str) -> Place:
    """Where it is to compute. Raises ValueError and Unobtainable, with why it cannot."""
    if not scenario.anywhere and not name.startswith("host:"):
        raise ValueError(f"the scenario '{scenario.name}' computes on the host only, and not on {name}")
    place = at(name)
    if why := lacking(place):
        raise Unobtainable(why)
    return place


def _given(arguments: argparse.Namespace) -> str:
    """What of the arguments the run hangs on, for the command that does it again."""
    given = [f"--device {arguments.device}"] if arguments.device != HOST.name else []
    given += ["--quick"] if arguments.quick else []
    return f" ARGS={shlex.quote(' '.join(given))}" if given else ""


if __name__ == "__main__":
    sys.exit(main())
