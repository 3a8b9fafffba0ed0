"""What the graph of a torch.export program says: its inputs and outputs by name, and what Rouse cannot run of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

# torch's number of a dtype: the protocol's name.
DATATYPES = {
    1: "UINT8", 2: "INT8", 3: "INT16", 4: "INT32", 5: "INT64", 6: "FP16", 7: "FP32", 8: "FP64", 12: "BOOL",
    13: "BF16", 28: "UINT16", 34: "UINT32", 35: "UINT64",
}  # fmt: skip
# Where the program came from: paths of the machine that it was made on, and most of its bytes.
DROPPED_METADATA = ("stack_trace",)
MAX_DEPTH = 64


class BadProgram(Exception):
    """What contradicts itself; says what."""


class Unsupported(Exception):
    """What PyTorch can do and Rouse cannot; says what."""


def describe(program: dict[str, Any]) -> dict[str, Any]:
    """Inputs and outputs in the order of the graph's, each with name, datatype, shape (-1: any size) and, by axis, the
    symbols that equal sizes have in common; and the ranges of the symbols. Raises BadProgram, Unsupported."""
    try:
        module = program["graph_module"]
        values = module["graph"]["tensor_values"]
        specs = module["signature"]
        out_spec = json.loads(module["module_call_graph"][0]["signature"]["out_spec"])[1]
        inputs = [_tensor(name, name, values) for name in _inputs(specs["input_specs"])]
        results = list(_results(specs["output_specs"]))
        names = ["_".join(path) or "output" for path in _leaves(out_spec, (), 0)]
        ranges = {
            name: [limits.get("min_val"), limits.get("max_val")]
            for name, limits in program.get("range_constraints", {}).items()
        }
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise BadProgram(f"its graph is damaged ({type(error).__name__}: {error})") from None
    if len(names) != len(results):
        raise BadProgram(f"it gives {len(results)} results and names {len(names)}")
    names = [f"output_{name}" if name.isdigit() else name for name in names]
    outputs = [_tensor(name, result, values) for name, result in zip(names, results, strict=True)]
    for kind, tensors in (("inputs", inputs), ("outputs", outputs)):
        if not tensors or len({tensor["name"] for tensor in tensors}) != len(tensors):
            raise Unsupported(f"its {kind} are none, or two of one name")
    return {"inputs": inputs, "outputs": outputs, "ranges": ranges}


def strip(program: dict[str, Any]) -> dict[str, Any]:
    """The program without what does not change its results: traces of the machine that it was made on, and guards,
    which are Python code; the sizes that they compare are among the symbols of `describe`.

    It takes its inputs as one tuple and gives its results as one, without the classes that they were nested in.
    """

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without(entry) for key, entry in value.items() if key not in DROPPED_METADATA}
        return [without(entry) for entry in value] if isinstance(value, list) else value

    try:
        kept = {**without(program), "guards_code": []}
    except RecursionError:
        raise BadProgram("its graph is nested too deeply") from None
    module = kept["graph_module"]
    given, made = (
        sum(next(iter(spec)) in kinds for spec in module["signature"][side])
        for side, kinds in (("input_specs", ("user_input", "constant_input")), ("output_specs", ("user_output",)))
    )
    flat: dict[str, Any] = {"inputs": [], "outputs": [], "in_spec": _flat([_tuple(given), _tuple(0, "dict")]),
            "out_spec": json.dumps([1, _tuple(made)]), "forward_arg_names": None}  # fmt: skip
    module["module_call_graph"] = [{"fqn": "", "signature": flat}]
    return kept


def _tuple(leaves: int, kind: str = "tuple") -> dict[str, Any]:
    """A tuple, or an empty dict, as PyTorch writes how values are nested."""
    leaf: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
    return {
        "type": f"builtins.{kind}", "context": "null" if kind == "tuple" else "[]", "children_spec": [leaf] * leaves
    }  # fmt: skip


def _flat(children: list[dict[str, Any]]) -> str:
    return json.dumps([1, {"type": "builtins.tuple", "context": "null", "children_spec": children}])


def _inputs(specs: list[dict[str, Any]]) -> Iterator[str]:
    for spec in specs:
        ((kind, content),) = spec.items()
        if kind == "user_input":
            ((form, argument),) = content["arg"].items()
            if form != "as_tensor":
                raise Unsupported(f"one of its inputs is no tensor ({form}); export it with that as a constant")
            yield argument["name"]
        elif kind in ("custom_obj", "token"):
            raise Unsupported("it holds an object that is no tensor")


def _results(specs: list[dict[str, Any]]) -> Iterator[str]:
    for spec in specs:
        ((kind, content),) = spec.items()
        if kind == "user_output":
            ((form, argument),) = content["arg"].items()
            if form != "as_tensor":
                raise Unsupported(f"one of its results is no tensor ({form})")
            yield argument["name"]
        elif kind != "token":
            name = content.get("buffer_name") or content.get("parameter_name") or content.get("user_input_name", "")
            raise Unsupported(
                f"it changes '{name}' when it runs ({kind}); weights are shared and read-only: export it in "
                "evaluation mode, and give what changes as an output"
            )


def _leaves(spec: dict[str, Any], path: tuple[str, ...], depth: int) -> Iterator[tuple[str, ...]]:
    """Where in a nested result each tensor is: keys of dicts, fields of named tuples, else positions."""
    if depth > MAX_DEPTH:
        raise BadProgram("its result is nested too deeply")
    children = spec["children_spec"]
    if spec["type"] is None:
        yield path
        return
    try:
        context = json.loads(spec["context"])
    except (ValueError, TypeError):
        context = None
    named = isinstance(context, list) and len(context) == len(children)
    keys = [str(key) for key in context] if named else [str(index) for index in range(len(children))]
    if not named and len(children) == 1:
        keys = []
    for index, child in enumerate(children):
        yield from _leaves(child, path + tuple(keys[index : index + 1]), depth + 1)


def _tensor(name: str, value: str, values: dict[str, Any]) -> dict[str, Any]:
    meta = values[value]
    datatype = DATATYPES.get(meta["dtype"])
    if datatype is None:
        raise Unsupported(f"'{name}' has a dtype that no datatype of the protocol holds")
    shape, symbols = [], []
    for size in meta["sizes"]:
        known = size.get("as_int")
        shape.append(-1 if known is None else known)
        symbols.append("" if known is not None else _symbol(size["as_expr"]["expr_str"]))
    return {"name": name, "datatype": datatype, "shape": shape, "symbols": symbols}


def _symbol(expression: str) -> str:
    """The name of "Symbol('s31', positive=True, integer=True)"; empty for anything but one symbol."""
    head, _, rest = expression.partition("'")
    name, _, tail = rest.partition("'")
    return name if head == "Symbol(" and tail.count("(") == 0 and tail.endswith(")") else ""
