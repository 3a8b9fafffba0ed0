"""rouse functions | describe | delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click
from rich.markup import escape

import rouse
from rouse.cli import text
from rouse.cli.state import State, common, pass_state

DELETE_TIMEOUT_S = 120.0


@click.command()
@common
@pass_state
def functions(state: State) -> None:
    """All functions and their states."""
    with state.client() as client:
        found = client.functions()
    if state.json:
        state.emit({"functions": found})
        return
    if not found:
        state.say("no functions yet; deploy one with `rouse deploy FOLDER`")
        return
    table = text.table("!function", "!state", "!traffic", "!tenant", ">weights", ">instances", "takes", "reason")
    for function in found:
        version = function.version
        table.add_row(
            escape(function.name),
            text.state(function.state),
            text.traffic(function.traffic),
            escape(function.tenant),
            text.size(version.weights_bytes) if version else "",
            str(function.ready_instances),
            "\n".join(text.tensor(spec) for spec in version.inputs) if version else "",
            text.short(function.reason),
        )
    state.out.print(table)


@click.command()
@click.argument("name")
@common
@pass_state
def describe(state: State, name: str) -> None:
    """Everything about one function: versions, instances, where its weights are and why, usage, events."""
    with state.client() as client:
        found = client.describe(name)
    if state.json:
        state.emit(found)
        return
    function, version = found.function, found.function.version
    state.say(
        f"[bold]{escape(function.name)}[/bold] {text.state(function.state)}  {text.short(function.reason)}".rstrip()
    )
    if version is not None:
        _version(state, version)
    usage = found.usage
    mean = f", {text.milliseconds(usage.swap_ms / usage.swap_ins)} each" if usage.swap_ins else ""
    state.say(
        f"usage     {text.count(usage.requests, 'request')}, {usage.failures} failed; devices worked "
        f"{text.milliseconds(usage.device_ms)}; {text.count(usage.swap_ins, 'swap-in')}{mean}"
    )
    _tables(state, found)


def _version(state: State, version: rouse.Version) -> None:
    if version.description:
        state.say(escape(version.description))
    state.say(f"takes     {', '.join(text.tensor(spec) for spec in version.inputs)}")
    state.say(f"gives     {', '.join(text.tensor(spec) for spec in version.outputs)}")
    scaling, resources = version.scaling, version.resources
    state.say(
        f"scaling   {scaling.min_instances} to {scaling.max_instances} instances, sleeps after "
        f"{scaling.idle_timeout_s:g} s; working memory {text.size(resources.working_memory_bytes)}; "
        f"queue of {version.queue_capacity}{_limits(version)}"
    )
    if version.batching is not None:
        batching = version.batching
        state.say(f"batching  up to {batching.max_batch_size} rows, waits {batching.max_delay_us} us for them at most")
    kinds = [word for word, holds in _kinds(version) if holds]
    if kinds:
        state.say(f"kind      {'; '.join(kinds)}")
    state.say(f"runs      {_execution(version)}")
    if version.addresses is not None:
        state.say(f"addresses {_addresses(version.addresses)}")
    if version.objective is not None:
        state.say(f"objective {version.objective.percentile:.2%} of requests within {version.objective.latency_ms} ms")
    if version.options:
        state.say("options   " + escape(", ".join(f"{key}={value}" for key, value in version.options.items())))
    if version.environment:
        # Names only: values may be long, and are nobody's business who only looks.
        state.say("variables " + escape(", ".join(version.environment)))
    if version.secrets:
        state.say("secrets   " + escape(", ".join(f"{key} from {name}" for key, name in version.secrets.items())))


def _execution(version: rouse.Version) -> str:
    if version.execution == "plain":
        return "plainly, in its instance"
    return f"on the device 'rouse', executor {version.isolation}, {'with' if version.tapes else 'without'} tapes"


def _addresses(found: rouse.AddressRange) -> str:
    parts = (("weights", found.weights_bytes), ("state", found.state_bytes), ("scratch", found.scratch_bytes))
    return f"{found.base:#x}: " + ", ".join(f"{what} {text.size(size)}" for what, size in parts)


def _limits(version: rouse.Version) -> str:
    most = version.limits.max_concurrent_requests
    return f"; {text.count(most, 'request')} at once" if most else ""


def _kinds(version: rouse.Version) -> tuple[tuple[str, bool], ...]:
    return (
        ("decoupled: any number of responses a request", version.decoupled),
        ("pinned: its weights stay on a device", version.pinned),
        ("shared with other tenants", version.shared),
    )


def _tables(state: State, found: rouse.Description) -> None:
    numbers = {version.version_id: str(version.version) for version in found.versions}
    versions = text.table(
        "version", ">traffic", "format", ">weights", ">artefact", "deployed", "digest", title="versions"
    )
    for version in found.versions:
        versions.add_row(
            str(version.version),
            f"{share} %" if (share := found.function.traffic.get(version.version)) else "",
            version.format,
            text.size(version.weights_bytes),
            text.size(version.artefact_bytes),
            text.ago(version.created_at),
            version.artefact_digest[:12],
        )
    state.out.print()
    state.out.print(versions)
    if found.instances:
        instances = text.table("!instance", "version", "!node", "!state", "!since", "reason", title="instances")
        for i in found.instances:
            number = numbers.get(i.version_id, i.version_id)
            instances.add_row(
                i.instance_id, number, i.node, text.state(i.state), text.ago(i.since), text.short(i.reason)
            )
        state.out.print()
        state.out.print(instances)
        for words in dict.fromkeys(i.isolation for i in found.instances if i.isolation):
            state.say(f"isolation {escape(words)}")
    if found.residency:
        _residency(state, found.residency, numbers)
    if found.events:
        events = text.table("!when", "!event", "subject", "message", title="events")
        for event in found.events:
            events.add_row(text.ago(event.at), event.kind, escape(event.subject), text.short(event.message))
        state.out.print()
        state.out.print(events)


def _residency(state: State, rows: Sequence[rouse.Residency], numbers: Mapping[str, str]) -> None:
    residency = text.table(
        "version", "!node", "!on", "!state", ">size", ">swap-ins", ">tapes", ">replays", "why", title="residency"
    )
    for r in rows:
        residency.add_row(
            numbers.get(r.version_id, r.version_id),
            r.node,
            r.device or "[dim]-[/dim]",
            text.state(r.state),
            text.size(r.size_bytes),
            str(r.swap_ins),
            str(r.tapes),
            str(r.replays),
            text.short(r.reason),
        )
    state.out.print()
    state.out.print(residency)
    for words in dict.fromkeys(_working(r, numbers) for r in rows if r.measured_working_bytes):
        state.say(f"working   {escape(words)}")
    for words in dict.fromkeys(r.heaviness for r in rows if r.heaviness):
        state.say(f"weight    {escape(words)}")
    for words in dict.fromkeys(r.eager_reason for r in rows if r.eager_reason):
        state.say(f"a request was not recorded as a tape: {escape(words)}")


def _working(row: rouse.Residency, numbers: Mapping[str, str]) -> str:
    size, version = text.size(row.measured_working_bytes), numbers.get(row.version_id, row.version_id)
    return f"version {version} held {size} beside its weights at most, as measured on {row.node}"


@click.command()
@click.argument("name")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), default=DELETE_TIMEOUT_S, metavar="SECONDS")
@common
@pass_state
def delete(state: State, name: str, timeout: float) -> None:
    """Delete a function with all its versions, and wait until every byte is given back."""
    with state.client(timeout) as client:
        client.delete(name)
    state.done({"deleted": name}, f"[bold]{escape(name)}[/bold] is deleted")
