"""rouse infer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
import numpy as np
from rich.markup import escape

import rouse
from rouse.cli import inputs, text
from rouse.cli.state import State, common, pass_state, plain
from rouse_contracts.arrays import DATATYPES


@click.command()
@click.argument("name")
@click.option(
    "--input",
    "given",
    multiple=True,
    metavar="NAME=VALUE",
    help="VALUE is JSON, @file.json or @file.npy; for BYTES also plain text or any @file. May be repeated.",
)
@click.option("--random", "drawn", is_flag=True, help="Draw the inputs not given from the function's signature.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of --random.")
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True, help="Unknown first size of --random.")
@click.option("--dim", "dims", multiple=True, metavar="N|NAME.AXIS=N", help="Other unknown sizes of --random, else 16.")
@click.option("--output", "outputs", multiple=True, metavar="NAME", help="Only this output; may be repeated.")
@click.option("--version", type=click.IntRange(1), help="A version's number; else the active one.")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), default=60.0, show_default=True, metavar="SECONDS")
@common
@pass_state
def infer(
    state: State,
    name: str,
    given: tuple[str, ...],
    drawn: bool,
    seed: int,
    batch: int,
    dims: tuple[str, ...],
    outputs: tuple[str, ...],
    version: int | None,
    timeout: float,
) -> None:
    """Call a function once, waking it where it sleeps."""
    with state.client(timeout) as client:
        specs = _inputs(client.describe(name), version)
        values = inputs.gather(name, given, specs, inputs.Drawing(drawn, seed, batch, dims))
        result = client.infer(name, values, list(outputs), version=version)
    if state.json:
        state.emit(document(result))
    else:
        _show(state, result)


def _inputs(found: rouse.Description, version: int | None) -> tuple[rouse.TensorSpec, ...]:
    name = found.function.name
    chosen = next((v for v in found.versions if v.version == version), None) if version else found.function.version
    if chosen is None:
        raise rouse.NotFound(
            f"function '{name}' has no version {version or 'that is active'}", metadata={"function": name}
        )
    return chosen.inputs


def document(result: rouse.Result) -> dict[str, Any]:
    """A result as --json prints it."""
    return {
        "function": result.function,
        "version": result.version,
        "request_id": result.request_id,
        "trace_id": result.trace_id,
        "node": result.node,
        "device": result.device,
        "timings": result.timings,
        "outputs": listed(result),
    }


def listed(outputs: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Arrays by name as --json prints them."""
    return [
        {"name": key, "datatype": _datatype(array), "shape": array.shape, "data": array}
        for key, array in outputs.items()
    ]


def _datatype(array: np.ndarray) -> str:
    return DATATYPES.get(array.dtype, "BYTES")


def show_outputs(state: State, outputs: Mapping[str, np.ndarray]) -> None:
    """Prints arrays by name, large ones shortened."""
    width = max(40, state.out.width - 4)
    for key, array in outputs.items():
        # As JSON has it: BYTES as text.
        values = array if array.dtype != object else np.array(plain(array), dtype=str)
        shown = np.array2string(
            values, precision=4, suppress_small=True, threshold=64, edgeitems=3, max_line_width=width
        )
        state.say(f"[bold]{escape(key)}[/bold] [dim]{_datatype(array)} {escape(str(list(array.shape)))}[/dim]")
        state.say("  " + escape(shown).replace("\n", "\n  "))


def _show(state: State, result: rouse.Result) -> None:
    show_outputs(state, result)
    timings = result.timings
    parts = {
        "held": timings.held_ms,
        "queue": timings.queue_ms,
        "swap": timings.swap_ms,
        "execute": timings.execute_ms,
    }
    steps = ", ".join(f"{key} {text.milliseconds(value)}" for key, value in parts.items())
    state.say(
        f"[bold green]✓[/bold green] {text.milliseconds(timings.total_ms)} on {escape(result.node)}/"
        f"{escape(result.device)} [dim]({steps})[/dim]"
    )
    state.say(f"  [dim]trace {result.trace_id}[/dim]")
