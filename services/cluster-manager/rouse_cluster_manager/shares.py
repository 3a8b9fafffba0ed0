"""The shares of a function's traffic as its row holds them: percentages by number of the version."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from rouse_common.errors import FailedPrecondition, InvalidArgument, NotFound
from rouse_contracts import functions
from rouse_store.models import Function, Version

WHOLE = 100


def current(function: Function) -> dict[int, int]:
    """Percentages by version, adding up to 100."""
    return _read(function.traffic) or {function.active_version: WHOLE}


def check(name: str, shares: Iterable[functions.TrafficShare], known: Collection[int]) -> dict[int, int]:
    """Shares as they came, by version. Raises InvalidArgument BAD_TRAFFIC, NotFound VERSION_NOT_FOUND."""
    percents: dict[int, int] = {}
    for share in shares:
        if share.version in percents:
            raise _bad(name, f"version {share.version} is named twice")
        if not 1 <= share.percent <= WHOLE:
            raise _bad(name, f"version {share.version} gets {share.percent} percent, want 1 to {WHOLE}")
        if share.version not in known:
            there = ", ".join(str(number) for number in sorted(known)[-10:])
            raise NotFound(
                "VERSION_NOT_FOUND",
                f"function '{name}' has no version {share.version}; there is {there}",
                function=name,
                version=share.version,
            )
        percents[share.version] = share.percent
    total = sum(percents.values())
    if total != WHOLE:
        raise _bad(name, f"the shares add up to {total}, want {WHOLE}")
    return percents


def assign(function: Function, percents: Mapping[int, int]) -> bool:
    """Puts shares into use and remembers what they replace; False where they hold already."""
    before = current(function)
    if before == dict(percents):
        return False
    function.previous_traffic = _write(before)
    _put(function, percents)
    return True


def roll_back(function: Function) -> dict[int, int]:
    """Puts back what the last change replaced, once. Raises FailedPrecondition NOTHING_TO_ROLL_BACK."""
    if function.previous_traffic is None:
        raise FailedPrecondition(
            "NOTHING_TO_ROLL_BACK",
            f"function '{function.name}' has had no deployment or change of traffic since its first version or its "
            "last roll-back; `rouse traffic` sets shares by hand",
            function=function.name,
        )
    percents = _read(function.previous_traffic)
    function.previous_traffic = None
    _put(function, percents)
    return percents


def messages(function: Function) -> list[functions.TrafficShare]:
    """The shares in the order of versions; none where the active version has all."""
    percents = sorted(_read(function.traffic).items())
    return [functions.TrafficShare(version=number, percent=percent) for number, percent in percents]


def beside_active(function: Function) -> list[Version]:
    """Versions with traffic but the active one, of a function that was read with its versions."""
    numbers = _read(function.traffic).keys() - {function.active_version}
    return [version for version in function.versions if version.version in numbers]


def words(percents: Mapping[int, int]) -> str:
    return ", ".join(f"{percent} % to version {number}" for number, percent in sorted(percents.items()))


def _put(function: Function, percents: Mapping[int, int]) -> None:
    # The largest share; the newest of equals.
    function.active_version = max(percents, key=lambda number: (percents[number], number))
    function.traffic = {} if len(percents) == 1 else _write(percents)


def _read(stored: Mapping[str, int]) -> dict[int, int]:
    return {int(number): percent for number, percent in stored.items()}


def _write(percents: Mapping[int, int]) -> dict[str, int]:
    return {str(number): percent for number, percent in sorted(percents.items())}


def _bad(name: str, text: str) -> InvalidArgument:
    return InvalidArgument("BAD_TRAFFIC", f"traffic of function '{name}': {text}", function=name)
