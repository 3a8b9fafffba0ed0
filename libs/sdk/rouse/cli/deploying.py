"""rouse deploy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

import rouse
from rouse.cli import text
from rouse.cli.state import State, common, pass_state

# Of the log of an instance that did not load.
LOG_LINES = 20
TITLES = {"hash": "hashing", "upload": "uploading", "deploy": "registering", "wake": "loading", "traffic": "switching"}


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--name", help="The function's name; else rouse.toml's, else the folder's.")
@click.option("--option", "options", multiple=True, metavar="KEY=VALUE", help="Given to load(); may be repeated.")
@click.option("--min-instances", type=click.IntRange(0, 1000))
@click.option("--max-instances", type=click.IntRange(1, 1000))
@click.option("--idle-timeout", type=click.FloatRange(0.1), metavar="SECONDS", help="Sleeps after so long unused.")
@click.option(
    "--wait/--no-wait",
    "--wake/--no-wake",
    "wake",
    default=True,
    help="Wait until it has loaded, and only then give it the traffic.",
)
@click.option("--traffic/--no-traffic", default=True, help="Let requests that name no version reach it.")
@click.option("--force", is_flag=True, help="Make a new version also where nothing changed.")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), default=900.0, show_default=True, metavar="SECONDS")
@common
@pass_state
def deploy(
    state: State,
    folder: Path,
    name: str | None,
    options: tuple[str, ...],
    min_instances: int | None,
    max_instances: int | None,
    idle_timeout: float | None,
    wake: bool,
    traffic: bool,
    force: bool,
    timeout: float,
) -> None:
    """Deploy FOLDER as a new version of a function: one with a rouse.toml, or a Hugging Face directory.

    The new version gets the traffic once it has loaded; where it does not load, what served before goes on.
    """
    given = dict(_option(text) for text in options)
    package = rouse.read_package(folder)
    for what in package.ignored:
        state.err.print(f"ignored: {what}", markup=False, soft_wrap=True)
    with state.client() as client:
        try:
            with _progress(state) as progress:
                done = client.deploy(
                    package,
                    name,
                    options=given,
                    scaling=_scaling(package, min_instances, max_instances, idle_timeout),
                    wake=wake,
                    traffic=traffic,
                    force=force,
                    timeout=timeout,
                    progress=progress,
                )
        except rouse.FailedPrecondition as error:
            if error.reason == "LOAD_FAILED" and not state.json:
                _show_log(state, client, error)
            raise
    if state.json:
        state.emit(done)
        return
    function = escape(done.function)
    unchanged = ", unchanged" if done.unchanged else ""
    aside = "" if traffic else "; it has no traffic yet"
    state.say(
        f"[bold green]✓[/bold green] [bold]{function}[/bold] version {done.version.version} is "
        f"{text.state(done.state)}{unchanged}{aside}"
    )
    loaded = f", loaded in {text.milliseconds(done.wake_ms)}" if wake else ""
    state.say(
        f"  {done.files} files of {text.size(done.total_bytes)}, {text.size(done.uploaded_bytes)} sent; "
        f"weights {text.size(done.version.weights_bytes)}; hashed in {text.milliseconds(done.hash_ms)}, "
        f"sent in {text.milliseconds(done.upload_ms)}{loaded}"
    )
    if traffic:
        state.say(f"  [dim]call it: rouse infer {function} --random[/dim]")
    else:
        number = done.version.version
        state.say(f"  [dim]let requests reach it: rouse traffic {function} {number}=100[/dim]")


def _show_log(state: State, client: rouse.Client, failure: rouse.RouseError) -> None:
    """The end of what the instance said that did not load; nothing where there is no log to read."""
    function, number = failure.metadata.get("function", ""), failure.metadata.get("version", "")
    try:
        found = client.describe(function)
        ids = {version.version_id for version in found.versions if str(version.version) == number}
        failed = [i for i in found.instances if i.version_id in ids and i.state == "FAILED"]
        lines = list(client.logs(function, instance=failed[-1].instance_id, tail=LOG_LINES)) if failed else []
    except rouse.RouseError as error:
        state.err.print(f"the log could not be read: {error}", markup=False, soft_wrap=True)
        return
    for line in lines:
        state.err.print(line.replace("\\n", "\n    "), markup=False, soft_wrap=True)


def _option(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise click.BadParameter(f"'{text}' is not KEY=VALUE", param_hint="--option")
    return key, value


def _scaling(package: rouse.Package, low: int | None, high: int | None, idle_s: float | None) -> rouse.Scaling | None:
    """The package's own scaling with what the flags change; None where neither says anything."""
    if low is None and high is None and idle_s is None:
        return None
    own = package.manifest.scaling or rouse.Scaling()
    low = own.min_instances if low is None else low
    high = max(own.max_instances, low) if high is None else high
    if low > high:
        raise click.UsageError(f"--min-instances {low} is above the {high} instances that there may be")
    return rouse.Scaling(low, high, own.idle_timeout_s if idle_s is None else idle_s)


@contextmanager
def _progress(state: State) -> Iterator[Callable[[rouse.Progress], None] | None]:
    """Bars on a terminal, a line a step elsewhere, nothing with --json; all on standard error."""
    if state.json:
        yield None
    elif state.err.is_terminal:
        with Progress(
            SpinnerColumn(),
            TextColumn("{task.description:<12}"),
            BarColumn(40),
            DownloadColumn(binary_units=True),
            TimeElapsedColumn(),
            console=state.err,
            transient=True,
        ) as bars:
            yield _Bars(bars).show
    else:
        yield _Lines(state).show


class _Bars:
    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._stage = ""
        self._task: TaskID | None = None

    def show(self, step: rouse.Progress) -> None:
        if step.stage != self._stage:
            if self._task is not None:
                self._bars.remove_task(self._task)
            self._stage, self._task = step.stage, None
            if step.stage in TITLES:
                total = step.total_bytes if step.stage in ("hash", "upload") else None
                self._task = self._bars.add_task(TITLES[step.stage], total=total)
        elif self._task is not None:
            self._bars.update(self._task, completed=step.done_bytes)


class _Lines:
    def __init__(self, state: State) -> None:
        self._state = state
        self._stage = ""

    def show(self, step: rouse.Progress) -> None:
        if step.stage != self._stage and step.stage in TITLES:
            amount = f" {text.size(step.total_bytes)}" if step.stage in ("hash", "upload") else ""
            self._state.err.print(f"{TITLES[step.stage]}{amount} ...")
        self._stage = step.stage
