"""What a mesh tells while it runs."""

from __future__ import annotations

from dataclasses import dataclass

from rouse_embedded.logs import Line


@dataclass(frozen=True)
class Waiting:
    """The mesh is not ready yet: `name` is waited for, `detail` is the last that it said.

    `ready` of `total` processes do their job.
    """

    name: str
    detail: str
    ready: int
    total: int


@dataclass(frozen=True)
class Logged:
    """A process wrote a line."""

    line: Line


@dataclass(frozen=True)
class Restarting:
    """A process ended by itself and is started again after `delay_s`."""

    name: str
    reason: str
    delay_s: float


@dataclass(frozen=True)
class Note:
    """Something that whoever started the mesh should know."""

    text: str


Notice = Waiting | Logged | Restarting | Note
