"""Messages of the public contract as JSON, the way Triton writes them: numbers as numbers, enums by name."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message


def plain(message: Message) -> dict[str, Any]:
    """A message as a JSON object with the contract's field names. Numbers and strings are there also where they
    are zero; messages, and the choices of a oneof, only where they are set."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        found[field.name] = _value(field, getattr(message, field.name))
    return found


def _value(field: FieldDescriptor, value: Any) -> Any:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        of = kind.fields_by_name["value"]
        return {str(key): _one(of, value[key]) for key in sorted(value)}
    if field.is_repeated:
        return [_one(field, entry) for entry in value]
    return _one(field, value)


def _one(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return plain(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else value
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value
