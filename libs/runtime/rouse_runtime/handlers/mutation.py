"""Whether a graph writes to what it was given: bound weights are shared and read-only, and a write ends the process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

# Normalisations that update their running statistics, without their schema saying so: by which argument.
UPDATING = {"aten::batch_norm": "training", "aten::instance_norm": "use_input_stats"}


def first_write(module: Any, given: Iterable[str]) -> str:
    """The first operator that writes to one of the named placeholders, or to a view of it; empty where none does.

    Args:
        module: a torch.fx.GraphModule; what it calls with subgraphs is followed.
    """
    import torch

    shared = set(given)
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        touched = [argument for argument in node.all_input_nodes if argument.name in shared]
        if not touched:
            continue
        if not isinstance(node.target, torch._ops.OpOverload):
            shared.add(node.name)  # picks one of several results, or calls a subgraph
            if found := _in_subgraphs(module, node, shared):
                return found
            continue
        schema = node.target._schema
        arguments = _named(node, schema)
        for argument in schema.arguments:
            value = arguments.get(argument.name)
            written = argument.alias_info is not None and argument.alias_info.is_write
            if written and getattr(value, "name", None) in shared:
                return str(schema.name)
        if arguments.get(UPDATING.get(schema.name, "")) is True:
            return f"{schema.name} in training mode"
        if any(result.alias_info is not None for result in schema.returns):
            shared.add(node.name)
    return ""


def _named(node: Any, schema: Any) -> dict[str, Any]:
    names = [argument.name for argument in schema.arguments]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _in_subgraphs(module: Any, node: Any, shared: set[str]) -> str:
    for position, argument in enumerate(node.args):
        inner: Any = getattr(module, str(argument.target), None) if getattr(argument, "op", "") == "get_attr" else None
        if not hasattr(inner, "graph"):
            continue
        # Which of the arguments behind it go in differs from operator to operator: any of them may be written.
        placeholders = [found.name for found in inner.graph.nodes if found.op == "placeholder"]
        handed = [getattr(value, "name", "") for value in node.args[position + 1 :]]
        exact = len(handed) == len(placeholders)
        given = [p for p, name in zip(placeholders, handed, strict=True) if name in shared] if exact else placeholders
        if found := first_write(inner, given):
            return found
    return ""
