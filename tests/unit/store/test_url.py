"""What a database URL may be, and what becomes of the database's errors."""

from __future__ import annotations

import pytest
from psycopg2 import OperationalError
from sqlalchemy import exc

from rouse_common.errors import Unavailable
from rouse_store.errors import Conflict, translate
from rouse_store.text import clean
from rouse_store.url import normalised


class Failed(OperationalError):
    def __init__(self, pgcode: str | None) -> None:
        super().__init__("no such luck")
        self.code = pgcode

    @property
    def pgcode(self) -> str | None:  # type: ignore[override]
        return self.code


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg2"])
def test_every_usual_scheme_means_our_driver(scheme: str) -> None:
    assert normalised(f"{scheme}://u:p@h:1/d").drivername == "postgresql+psycopg2"


@pytest.mark.parametrize("url", ["sqlite:///x", "mysql://u:secret@h/d", "nonsense secret", ""])
def test_another_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ValueError) as caught:
        normalised(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("state", ["40001", "40P01", "55P03"])
def test_what_met_another_transaction_is_a_conflict(state: str) -> None:
    with pytest.raises(Conflict), translate():
        raise exc.OperationalError("SELECT", {}, Failed(state))


@pytest.mark.parametrize("state", [None, "08006", "57P01", "57P03", "53300", "25006"])
def test_a_database_that_is_away_is_unavailable(state: str | None) -> None:
    with pytest.raises(Unavailable) as caught, translate():
        raise exc.OperationalError("SELECT", {}, Failed(state))
    assert caught.value.reason == "DATABASE_DOWN"
    assert caught.value.retry_after_s


def test_a_fault_of_ours_stays_one() -> None:
    with pytest.raises(exc.ProgrammingError), translate():
        raise exc.ProgrammingError("SELEKT", {}, Failed("42601"))


def test_text_is_made_fit_for_a_column() -> None:
    assert clean("a\x00b" + "c" * 10, limit=5) == "a�bcc"
