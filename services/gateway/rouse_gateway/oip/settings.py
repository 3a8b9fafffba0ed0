"""Settings of the server that clients may change: which requests are traced, what is logged."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from rouse_common.errors import InvalidArgument, Unimplemented
from rouse_common.sampling import UNLIMITED, RequestSampler, SamplingSettings

# Names of the server spans that are inferences, of every transport.
REQUEST_SPANS = frozenset({"ModelInfer", "Infer", "InferStream", "Generate", "GenerateStream"})

LEVEL, RATE, COUNT = "trace_level", "trace_rate", "trace_count"
OFF, TIMESTAMPS = "OFF", "TIMESTAMPS"
# What a span exporter has no use for, and what it answers as.
FIXED_TRACE = {"log_frequency": "0", "trace_file": "", "trace_mode": "opentelemetry"}
MAX_RATE = 1 << 31


class TraceSettings:
    """Trace settings by name; every value is a list of strings, as the protocol has them."""

    def __init__(self, sampler: RequestSampler) -> None:
        self._sampler = sampler
        sampler.apply(SamplingSettings(), REQUEST_SPANS)

    def read(self) -> dict[str, list[str]]:
        """All settings as they are now; the count is what is left of it."""
        now = self._sampler.settings
        return {
            LEVEL: [TIMESTAMPS if now.on else OFF],
            RATE: [str(now.rate)],
            COUNT: [str(now.count)],
        } | {name: [value] for name, value in FIXED_TRACE.items()}

    def update(self, model: str, given: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """Changes the settings that are given, all or none; an empty list stands for the default. Returns all.

        Models have no settings of their own: they show those of the server. Raises InvalidArgument BAD_SETTING,
        Unimplemented for what cannot be changed.
        """
        if model and given:
            raise Unimplemented(
                "FIXED_SETTING",
                f"trace settings hold for the whole server and not for model '{model}' alone; set them without a model",
                function=model,
            )
        now, default = self._sampler.settings, SamplingSettings()
        on, rate, count = now.on, now.rate, now.count
        for name, values in given.items():
            if name == LEVEL:
                on = _level(values) if values else default.on
            elif name == RATE:
                rate = _number(name, values, 1) if values else default.rate
            elif name == COUNT:
                count = _number(name, values, UNLIMITED) if values else default.count
            elif name not in FIXED_TRACE:
                raise _unknown("trace", name, [LEVEL, RATE, COUNT])
            elif list(values) not in ([], [FIXED_TRACE[name]]):
                raise Unimplemented(
                    "FIXED_SETTING",
                    f"trace setting {name} cannot be changed: spans are exported by OpenTelemetry, see the setting "
                    "otlp_endpoint",
                    parameter=name,
                )
        if given:
            self._sampler.apply(SamplingSettings(on, rate, count), REQUEST_SPANS)
        return self.read()


def _level(values: Sequence[str]) -> bool:
    if list(values) == [OFF]:
        return False
    if list(values) == [TIMESTAMPS]:
        return True
    if "TENSORS" in values:
        raise Unimplemented(
            "FIXED_SETTING", f"{LEVEL}: tensors are not traced; want {OFF} or {TIMESTAMPS}", parameter=LEVEL
        )
    raise _bad(LEVEL, values, f"{OFF} or {TIMESTAMPS}")


def _number(name: str, values: Sequence[str], low: int) -> int:
    text = values[0] if len(values) == 1 else ""
    try:
        number = int(text)
    except ValueError:
        number = low - 1
    if not low <= number <= MAX_RATE:
        raise _bad(name, values, f"a whole number of {low} to {MAX_RATE}")
    return number


def _bad(name: str, value: object, want: str) -> InvalidArgument:
    return InvalidArgument("BAD_SETTING", f"setting {name}={str(value)[:80]}: want {want}", parameter=name)


def _unknown(kind: str, name: str, known: Sequence[str]) -> InvalidArgument:
    return InvalidArgument(
        "BAD_SETTING", f"there is no {kind} setting '{name[:80]}'; there are {', '.join(known)}", parameter=name[:80]
    )


LogValue = bool | int | str
SWITCHES = {"log_info": logging.INFO, "log_warning": logging.WARNING, "log_error": logging.ERROR}
VERBOSE, FORMAT, FILE = "log_verbose_level", "log_format", "log_file"
# Our lines begin with an ISO 8601 time in either.
FORMATS = ("default", "ISO8601")
MAX_VERBOSE = (1 << 32) - 1


class LogSettings(logging.Filter):
    """Log settings by name, of this process: which levels of lines pass. Acts as a filter of the root handlers."""

    def __init__(self, root: logging.Logger) -> None:
        super().__init__()
        self._root = root
        level = root.getEffectiveLevel()
        self._passes = {name: level <= at for name, at in SWITCHES.items()}
        self._verbose = int(level <= logging.DEBUG)
        self._format = FORMATS[0]
        for handler in root.handlers:
            handler.addFilter(self)

    def close(self) -> None:
        """Lets every line pass again."""
        for handler in self._root.handlers:
            handler.removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.ERROR:
            return self._passes["log_error"]
        if record.levelno >= logging.WARNING:
            return self._passes["log_warning"]
        if record.levelno >= logging.INFO:
            return self._passes["log_info"]
        return self._verbose > 0

    def read(self) -> dict[str, LogValue]:
        """All settings as they are now."""
        return {FILE: "", **self._passes, VERBOSE: self._verbose, FORMAT: self._format}

    def update(self, given: Mapping[str, LogValue]) -> dict[str, LogValue]:
        """Changes the settings that are given, all or none, and returns all. Raises InvalidArgument BAD_SETTING,
        Unimplemented for what cannot be changed."""
        passes, verbose, form = dict(self._passes), self._verbose, self._format
        for name, value in given.items():
            if name in SWITCHES:
                if not isinstance(value, bool):
                    raise _bad(name, value, "true or false")
                passes[name] = value
            elif name == VERBOSE:
                if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_VERBOSE:
                    raise _bad(name, value, "0 or a positive whole number")
                verbose = value
            elif name == FORMAT:
                if value not in FORMATS:
                    raise _bad(name, value, " or ".join(FORMATS))
                form = str(value)
            elif name == FILE:
                raise Unimplemented(
                    "FIXED_SETTING", "log_file cannot be changed: lines go to standard error", parameter=name
                )
            else:
                raise _unknown("log", name, [*SWITCHES, VERBOSE, FORMAT])
        if given:
            self._passes, self._verbose, self._format = passes, verbose, form
            lowest = min((at for name, at in SWITCHES.items() if passes[name]), default=logging.CRITICAL)
            self._root.setLevel(logging.DEBUG if verbose else lowest)
        return self.read()
