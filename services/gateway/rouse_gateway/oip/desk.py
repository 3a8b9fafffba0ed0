"""What every transport of the protocol is handed."""

from __future__ import annotations

from dataclasses import dataclass

from rouse_gateway.oip.inferences import Inferences
from rouse_gateway.oip.regions import Regions
from rouse_gateway.oip.repository import ModelRepository
from rouse_gateway.oip.settings import LogSettings, TraceSettings
from rouse_gateway.oip.statistics import Statistics


@dataclass(frozen=True)
class Desk:
    """Who answers what; one of each in a gateway."""

    inferences: Inferences
    statistics: Statistics
    repository: ModelRepository
    regions: Regions
    traces: TraceSettings
    logs: LogSettings
