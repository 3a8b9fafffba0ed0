"""Queries and changes of the control plane, one class an area; each works in its caller's transaction."""

from sqlalchemy import CursorResult, Delete
from sqlalchemy.orm import Session


def delete_rows(session: Session, statement: Delete) -> int:
    """Carries a deletion out and returns how many rows are gone."""
    result = session.execute(statement, execution_options={"synchronize_session": False})
    assert isinstance(result, CursorResult)
    return result.rowcount
