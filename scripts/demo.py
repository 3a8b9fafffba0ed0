"""make demo: three models on a device that cannot hold them all, called at once.

Starts a mesh of its own in a temporary folder, trains a digit reader, builds ResNet-50 and BERT-base, deploys
all three, and has the held-out digits read through the gateway with tritonclient while the other two are called
in turn. Ends with 0 only if every request was answered, more than 95 % of the digits are right, ResNet-50 and
BERT answered what plain PyTorch computes, models really were swapped, and the mesh stopped cleanly.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import numpy as np
from demo_views import Measured, Screen, deployed, residency, results, timeline
from rich.progress import Progress

import rouse
from rouse.cli.waterfall import waterfall

ROOT = Path(__file__).resolve().parents[1]
DEVICE_BYTES = 448 << 20
HOST_MEMORY = "1GiB"
LEAST_ACCURACY = 0.95
DIGIT_CALLERS = 4
# Each of the two large models at least so often, so that they push each other out again and again.
LEAST_TURNS = 6
READY_TIMEOUT_S, STOP_TIMEOUT_S, REQUEST_TIMEOUT_S, USAGE_TIMEOUT_S = 120.0, 30.0, 60.0, 10.0
TOKENS = 32
PR_SET_PDEATHSIG = 1
TIMELINE_REQUESTS = 7
# The timeline is drawn from all requests, not from a sample.
EVERY_TRACE = {"ROUSE_GATEWAY_TRACES_PER_S": "0"}
STAGES = {"hash": "hashing", "upload": "uploading", "deploy": "registering", "wake": "loading"}


class Failed(Exception):
    """Something that the demo promises did not hold; the text says what."""


def main() -> int:
    screen = Screen()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    folder = Path(tempfile.mkdtemp(prefix="rouse-demo-"))
    try:
        with mesh(screen, folder) as address:
            demo(screen, address, folder)
    except (Failed, rouse.RouseError) as error:
        hint = f"\n[bold]next:[/bold] {error.hint}" if isinstance(error, rouse.RouseError) else ""
        screen.say(f"\n[bold red]error:[/bold red] {error}{hint}")
        screen.say(f"the mesh's log: {folder}/data/logs/rouse.log")
        return 1
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        return 130
    shutil.rmtree(folder)
    screen.say(f"\n[bold green]everything held[/bold green], {time.monotonic() - screen.began:.0f} s in all")
    return 0


@contextmanager
def mesh(screen: Screen, folder: Path) -> Iterator[str]:
    """A mesh of one node and one device, from `rouse up` to its end; yields the gateway's address."""
    screen.headline("A mesh on this machine")
    size = f"{DEVICE_BYTES >> 20}MiB"
    command = ["up", "--data-dir", str(folder / "data"), "--device", f"host:gpu0={size}", "--host-memory", HOST_MEMORY]
    log = (folder / "up.log").open("w+")
    process = subprocess.Popen(
        [Path(sys.executable).with_name("rouse"), *command],
        stdout=log,
        stderr=log,
        start_new_session=True,
        preexec_fn=end_with_parent,
        env={**os.environ, **EVERY_TRACE},
    )
    try:
        with screen.step(f"rouse up: one node, one device of {size}") as notes:
            address = ready(process, folder / "data", log)
            with rouse.Client(address) as client:
                notes.append(f"{len(client.status().services)} services at {address}")
        yield address
    except BaseException:
        stop(process)
        raise
    else:
        with screen.step("stopping the mesh"):
            code = stop(process)
        if code != 0:
            raise Failed(f"the mesh ended with {code}: {tail(log)}")
    finally:
        log.close()


def end_with_parent() -> None:
    """In the child: the mesh stops where the demo is killed (Linux)."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def interrupted(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def ready(process: subprocess.Popen[bytes], data: Path, log: IO[str]) -> str:
    """Waits until every service serves and the node's device is known; returns the gateway's address."""
    ends = time.monotonic() + READY_TIMEOUT_S
    waiting = "mesh.json"
    while time.monotonic() < ends:
        if process.poll() is not None:
            raise Failed(f"the mesh ended with {process.returncode}: {tail(log)}")
        time.sleep(0.1)
        if not (data / "mesh.json").exists():
            continue
        address = str(json.loads((data / "mesh.json").read_text())["gateway_address"])
        try:
            with rouse.Client(address, timeout=2) as client:
                status = client.status()
        except (rouse.Unavailable, rouse.DeadlineExceeded):
            waiting = "the gateway"
            continue
        missing = [service.name for service in status.services if service.state != "SERVING"]
        if not missing and any(node.devices for node in status.nodes):
            return address
        waiting = ", ".join(missing) or "a node with a device"
    raise Failed(f"the mesh is not ready after {READY_TIMEOUT_S:.0f} s, waiting for {waiting}: {tail(log)}")


def stop(process: subprocess.Popen[bytes]) -> int:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        return process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise Failed(f"the mesh did not stop within {STOP_TIMEOUT_S:.0f} s") from None


def tail(log: IO[str]) -> str:
    log.seek(0)
    return log.read()[-1500:].strip()


def demo(screen: Screen, address: str, folder: Path) -> None:
    screen.headline("Three models")
    digits, resnet, bert = (example(name) for name in ("digits/train", "resnet/build", "bert/build"))
    models = {"digits": folder / "digits", "resnet50": folder / "resnet50", "bert": folder / "bert"}
    with screen.step("training a digit reader on scikit-learn's digits"):
        digits.build(models["digits"])
    with screen.step("building ResNet-50 with random weights"):
        resnet.build(models["resnet50"])
    with screen.step("building BERT-base with random weights"):
        bert.build(models["bert"])
    _, images, _, labels = digits.digits()
    with rouse.Client(address) as client:
        measured = deploy(screen, client, models)
        inputs: dict[str, dict[str, np.ndarray]] = {
            "resnet50": {"pixel_values": np.random.default_rng(1).random((1, 3, 224, 224), dtype=np.float32)},
            "bert": {
                "input_ids": np.random.default_rng(2).integers(0, 30_000, (1, TOKENS)),
                "attention_mask": np.ones((1, TOKENS), dtype=np.int64),
            },
        }
        answers = call(screen, address, measured, images, labels, inputs)
        compare(screen, models, inputs, answers)
        report(screen, client, measured)


def example(path: str) -> ModuleType:
    """A module of examples/, which are scripts and not a package."""
    file = ROOT / "examples" / f"{path}.py"
    name = f"example_{path.replace('/', '_')}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(file.parent))
    return module


def deploy(screen: Screen, client: rouse.Client, models: dict[str, Path]) -> dict[str, Measured]:
    """Deploys the folders one after the other, each with a bar."""
    screen.headline("rouse deploy")
    measured = {}
    for name, folder in models.items():
        with screen.bars(transient=True) as bars:
            done = client.deploy(folder, name, progress=bar(bars, name))
        screen.say(deployed(done))
        measured[name] = Measured(name, weights_bytes=done.version.weights_bytes)
    total = sum(m.weights_bytes for m in measured.values())
    if total <= DEVICE_BYTES:
        raise Failed(f"{total} bytes of weights fit a device of {DEVICE_BYTES}: there is nothing to swap")
    screen.say(
        f"  {total >> 20} MiB of weights for a device of {DEVICE_BYTES >> 20} MiB: the large two cannot both be on it"
    )
    return measured


def bar(bars: Progress, name: str) -> Callable[[rouse.Progress], None]:
    """A callback that shows each stage of a deployment as a bar of its own."""
    shown = {"stage": ""}

    def show(step: rouse.Progress) -> None:
        if step.stage != shown["stage"]:
            shown["stage"] = step.stage
            for task in bars.task_ids:
                bars.remove_task(task)
            total = step.total_bytes if step.stage in ("hash", "upload") else None
            bars.add_task(f"{name:<9}", total=total, note=STAGES.get(step.stage, ""))
        else:
            bars.update(bars.task_ids[-1], completed=step.done_bytes)

    return show


def call(
    screen: Screen,
    address: str,
    measured: dict[str, Measured],
    images: np.ndarray,
    labels: np.ndarray,
    inputs: dict[str, dict[str, np.ndarray]],
) -> dict[str, dict[str, np.ndarray]]:
    """All three at once, through the gateway with tritonclient; returns ResNet-50's and BERT's first answers."""
    screen.headline("tritonclient: held-out digits one by one, ResNet-50 and BERT in turn")
    with screen.bars() as bars:
        right, answers = asyncio.run(traffic(address, measured, images, labels, inputs, bars))
    accuracy = right / len(labels)
    screen.say(f"  {right} of {len(labels)} held-out digits are right: [bold]{accuracy:.1%}[/bold]")
    if accuracy <= LEAST_ACCURACY:
        raise Failed(f"the accuracy is {accuracy:.1%}, not above {LEAST_ACCURACY:.0%}")
    return answers


async def traffic(
    address: str,
    measured: dict[str, Measured],
    images: np.ndarray,
    labels: np.ndarray,
    inputs: dict[str, dict[str, np.ndarray]],
    bars: Progress,
) -> tuple[int, dict[str, dict[str, np.ndarray]]]:
    import tritonclient.grpc.aio as triton

    right = 0
    todo = iter(range(len(labels)))
    tasks = {name: bars.add_task(f"{name:<9}", total=None, note="") for name in measured}
    bars.update(tasks["digits"], total=len(labels))
    for name in inputs:
        bars.update(tasks[name], total=LEAST_TURNS)
    answers: dict[str, dict[str, np.ndarray]] = {}

    async with triton.InferenceServerClient(address) as client:

        async def request(name: str, arrays: dict[str, np.ndarray]) -> Any:
            at, started = time.time(), time.perf_counter()
            result = await client.infer(name, tensors(triton, arrays), client_timeout=REQUEST_TIMEOUT_S)
            latency_ms = (time.perf_counter() - started) * 1000
            measured[name].started_unix_s.append(at)
            measured[name].latencies_ms.append(latency_ms)
            measured[name].trace_ids.append(result.get_response().parameters["rouse_trace_id"].string_param)
            bars.update(tasks[name], advance=1, note=f"{len(measured[name].latencies_ms):>3} answered")
            return result

        async def read_digits() -> None:
            nonlocal right
            for index in todo:
                result = await request("digits", {"image": images[index : index + 1]})
                right += int(result.as_numpy("digit")[0] == labels[index])

        async def take_turns(readers: list[asyncio.Task[None]]) -> None:
            turns = 0
            while turns < LEAST_TURNS or not all(reader.done() for reader in readers):
                for name, arrays in inputs.items():
                    result = await request(name, arrays)
                    answers.setdefault(name, outputs(result))
                turns += 1

        try:
            async with asyncio.TaskGroup() as group:
                readers = [group.create_task(read_digits()) for _ in range(DIGIT_CALLERS)]
                group.create_task(take_turns(readers))
        except* triton.InferenceServerException as failures:
            raise Failed(f"a request failed: {failures.exceptions[0]}") from None
    return right, answers


def tensors(triton: Any, arrays: dict[str, np.ndarray]) -> list[Any]:
    made = []
    for name, array in arrays.items():
        tensor = triton.InferInput(name, list(array.shape), {"float32": "FP32", "int64": "INT64"}[array.dtype.name])
        tensor.set_data_from_numpy(array)
        made.append(tensor)
    return made


def outputs(result: Any) -> dict[str, np.ndarray]:
    return {output.name: result.as_numpy(output.name) for output in result.get_response().outputs}


def compare(
    screen: Screen,
    models: dict[str, Path],
    inputs: dict[str, dict[str, np.ndarray]],
    answers: dict[str, dict[str, np.ndarray]],
) -> None:
    """The same folders and inputs in plain PyTorch, here in this process."""
    import torch
    from transformers import BertModel, ResNetForImageClassification

    screen.headline("The same in plain PyTorch")
    # Sums come out the same only if as many threads share them: a device uses all cores by default.
    torch.set_num_threads(os.cpu_count() or 1)
    for name, cls in (("resnet50", ResNetForImageClassification), ("bert", BertModel)):
        model: Any = cls.from_pretrained(models[name])
        model.eval()
        for weights in [*model.parameters(), *model.buffers()]:
            # Out of the file's mapping: PyTorch takes other kernels where weights are not aligned.
            weights.data = weights.data.clone()
        with torch.inference_mode():
            want = model(**{key: torch.from_numpy(value) for key, value in inputs[name].items()})
        for output, found in answers[name].items():
            expected = want[output].numpy()
            difference = float(np.abs(found - expected).max())
            if found.shape != expected.shape or not np.allclose(found, expected, rtol=1e-4, atol=1e-5):
                raise Failed(f"{name}.{output} differs from plain PyTorch by up to {difference:g}")
            equal = "equal" if difference == 0 else f"equal within {difference:.1e}"
            shape = " x ".join(map(str, found.shape))
            screen.say(f"[green]✓[/green] {name} {output} ({shape}) is {equal}")


def report(screen: Screen, client: rouse.Client, measured: dict[str, Measured]) -> None:
    """What was measured, what the device did, and one request in detail."""
    described = {name: counted(client, function) for name, function in measured.items()}
    for name, function in measured.items():
        function.usage = described[name].usage
    screen.headline("What callers measured, what the mesh counted")
    screen.show(results(list(measured.values())))
    for name in ("resnet50", "bert"):
        usage = measured[name].usage
        if usage is None or usage.swap_ins < 2:
            raise Failed(f"{name} was swapped in {usage.swap_ins if usage else 0} times: the device was not shared")
    window = device_spans(client, measured)
    screen.headline("The device: ▒ swapping in, █ executing")
    for line in timeline(window, screen.console.width):
        screen.show(line)
    screen.headline("Where the weights are now, and why")
    screen.show(residency([client.describe(name) for name in measured]))
    screen.headline("One request that woke its model: rouse trace")
    for line in waterfall(swapped_trace(client, measured), screen.console.width):
        screen.console.print(line, no_wrap=True, overflow="ellipsis")


def counted(client: rouse.Client, function: Measured) -> rouse.Description:
    """The function as the mesh sees it, once its usage, which is sent in batches, has arrived."""
    ends = time.monotonic() + USAGE_TIMEOUT_S
    while True:
        found = client.describe(function.name)
        requests = len(function.latencies_ms)
        if found.usage.requests == requests and found.usage.failures == 0:
            return found
        if time.monotonic() > ends:
            raise Failed(
                f"{function.name}: {requests} requests were answered, the mesh counted {found.usage.requests} "
                f"with {found.usage.failures} failures"
            )
        time.sleep(0.1)


def device_spans(client: rouse.Client, measured: dict[str, Measured]) -> dict[str, list[rouse.Span]]:
    """The `swap` and `execute` spans of the first turns, when all three functions are called, by function."""
    starts = sorted(s for name in ("resnet50", "bert") for s in measured[name].started_unix_s)
    begin, end = starts[0], starts[min(TIMELINE_REQUESTS, len(starts) - 1)]
    found: dict[str, list[rouse.Span]] = {}
    for name, function in measured.items():
        ids = [t for s, t in zip(function.started_unix_s, function.trace_ids, strict=True) if begin <= s < end]
        spans = [span for trace_id in ids for span in client.trace(trace_id)]
        found[name] = [span for span in spans if span.name in ("swap", "execute")]
    return found


def swapped_trace(client: rouse.Client, measured: dict[str, Measured]) -> list[rouse.Span]:
    for trace_id in reversed(measured["bert"].trace_ids):
        spans = client.trace(trace_id)
        if any(span.name == "swap" for span in spans):
            return spans
    raise Failed("no trace of a BERT request holds a swap")


if __name__ == "__main__":
    sys.exit(main())
