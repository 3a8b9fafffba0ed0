"""Ranges of virtual addresses, one an artefact."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value

from rouse_store.models import AddressRange, Artefact

ADDRESSES_LOCK = 0x726F757365_03


class Addresses:
    def __init__(self, session: Session) -> None:
        self._session = session

    def of(self, artefact: Artefact) -> AddressRange | None:
        """The range of an artefact, which has it along from here on; None where it was given none yet."""
        found = self._session.get(AddressRange, artefact.digest)
        set_committed_value(artefact, "addresses", found)
        return found

    def hold(self) -> list[AddressRange]:
        """Every range in the order of addresses; no other transaction adds one before this one ends."""
        self._session.execute(select(func.pg_advisory_xact_lock(ADDRESSES_LOCK)))
        return list(self._session.scalars(select(AddressRange).order_by(AddressRange.base)))

    def give(self, artefact: Artefact, base: int, weights_bytes: int, state_bytes: int, scratch_bytes: int) -> None:
        """Records an artefact's range. Raises what `Database.run` tries again where it overlaps with another one."""
        row = AddressRange(
            artefact_digest=artefact.digest, base=base, weights_bytes=weights_bytes, state_bytes=state_bytes,
            scratch_bytes=scratch_bytes,
        )  # fmt: skip
        self._session.add(row)
        self._session.flush()
        set_committed_value(artefact, "addresses", row)
