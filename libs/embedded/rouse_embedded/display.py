"""What the terminal shows: progress while the mesh starts, a summary, then only what needs attention."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from rouse_common.clock import Clock, SystemClock
from rouse_embedded.mesh import MeshInfo
from rouse_embedded.notices import Logged, Note, Notice, Restarting, Waiting

SHOWN_LEVELS = ("WARNING", "ERROR", "CRITICAL")
MAX_DETAIL_CHARS = 100
# Lines a second that reach the terminal; the log has all of them.
MAX_LINES_PER_S = 10
REPEAT_S = 5.0
MIB, GIB = 1 << 20, 1 << 30


class Display:
    """Shows a mesh on the terminal: one live line where it is one, plain lines where it is not."""

    def __init__(self, *, verbose: bool, console: Console | None = None, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._verbose = verbose
        self._began = self._clock.monotonic()
        self._status: Status | None = None
        self._serving = False
        self._shown = ("", 0.0)
        self._second, self._lines = 0, 0

    def __enter__(self) -> Display:
        if self._console.is_terminal and not self._verbose:
            self._status = self._console.status("starting")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_status()

    def notice(self, notice: Notice) -> None:
        """Shows what the mesh tells, or leaves it to the log."""
        match notice:
            case Waiting():
                self._progress(notice)
            case Restarting(name, reason, delay_s):
                self._print("yellow", f"{name} {reason}; starting it again in {delay_s:.1f} s")
            case Note(text):
                self._print("yellow", text)
            case Logged(line):
                # While the mesh starts, that a neighbour is not there yet is no news.
                if self._verbose or (self._serving and line.level in SHOWN_LEVELS):
                    self._limited("red" if line.level != "WARNING" else "yellow", f"{line.process}: {line.text}")

    def ready(self, info: MeshInfo) -> None:
        """The summary: where everything is, and what to type next."""
        self.serving()
        options = info.options
        devices = ", ".join(f"{d.kind}:{d.name} {_size(d.capacity_bytes)}" for d in options.parsed_devices())
        rows = [
            ("gateway", info.gateway_address + ("  (TLS)" if info.tls is not None else "")),
            ("http", f"{'https' if info.tls else 'http'}://{info.http_address}/v2" if info.http_address else "off"),
            ("nodes", f"{options.nodes}, each with {devices} and {_size(options.host_memory_bytes)} of host memory"),
            ("data", f"{info.folders.data}  (log: logs/rouse.log)"),
        ]
        if info.api_key_file is not None:
            rows.append(("API key", f"in {info.api_key_file}; `rouse keys create` makes others"))
        if info.metrics_addresses:
            rows.append(("metrics", "  ".join(f"{name} {at}" for name, at in info.metrics_addresses.items())))
        if options.otlp_endpoint:
            rows.append(("spans", f"exported to {options.otlp_endpoint}"))
        self._print("bold green", f"the mesh is ready after {self._elapsed_s:.1f} s")
        for name, text in rows:
            self._print("", f"  {name:<8} {text}")
        self._print("", "  next     rouse deploy FOLDER, rouse functions, rouse status; Ctrl-C stops the mesh")

    def serving(self) -> None:
        """From now on warnings and errors are shown."""
        self._end_status()
        self._serving = True

    def stopping(self) -> None:
        self._end_status()
        self._began = self._clock.monotonic()
        self._print("", "stopping; once more kills at once")

    def stopped(self) -> None:
        self._print("", f"stopped after {self._elapsed_s:.1f} s")

    def note(self, text: str) -> None:
        self._print("yellow", text)

    def error(self, text: str) -> None:
        self._end_status()
        self._print("bold red", f"rouse up: {text}")

    @property
    def _elapsed_s(self) -> float:
        return self._clock.monotonic() - self._began

    def _progress(self, waiting: Waiting) -> None:
        detail = waiting.detail if len(waiting.detail) <= MAX_DETAIL_CHARS else waiting.detail[:MAX_DETAIL_CHARS] + "…"
        text = f"{waiting.ready}/{waiting.total} ready, waiting for {waiting.name}: {detail}"
        if self._status is not None:
            self._status.update(f"{self._elapsed_s:5.1f} s  {escape(text)}")
            return
        said, at = self._shown
        now = self._clock.monotonic()
        if said != waiting.name or now - at > REPEAT_S:
            self._shown = (waiting.name, now)
            self._print("", f"{self._elapsed_s:5.1f} s  {text}")

    def _limited(self, style: str, text: str) -> None:
        second = int(self._clock.monotonic())
        if second != self._second:
            if self._lines > MAX_LINES_PER_S:
                self._print("yellow", f"({self._lines - MAX_LINES_PER_S} more lines in logs/rouse.log)")
            self._second, self._lines = second, 0
        self._lines += 1
        if self._verbose or self._lines <= MAX_LINES_PER_S:
            self._print("" if self._verbose else style, text)

    def _print(self, style: str, text: str) -> None:
        self._console.print(text, style=style or None, markup=False)

    def _end_status(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None


def _size(size_bytes: int) -> str:
    if size_bytes >= GIB:
        return f"{size_bytes / GIB:.4g} GiB"
    return f"{size_bytes / MIB:.4g} MiB"
