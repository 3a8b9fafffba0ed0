"""What our code does not do: swallow errors, lose tasks, grow without bound, run what others sent, sleep and hope."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from rouse_testkit.source import Source, dotted, sources

CODE = ("libs", "services", "scripts", "native/python")
BROAD = {"Exception", "BaseException"}
CANCELLED = {"CancelledError"}

# Handlers that end what was raised on purpose, by file and function.
ENDS_IT = {
    ("libs/common/rouse_common/link/server.py", "_serve"): "the top of a call's own task: it becomes the answer",
    ("libs/common/rouse_common/lifecycle.py", "_run"): "the top of a process: it becomes the exit code",
    ("libs/runtime/rouse_runtime/loading.py", "load"): "user code in a thread may raise anything: it is reported",
    ("services/gateway/rouse_gateway/http/app.py", "__call__"): "the top of a request: its client is gone, or is told",
    ("libs/runtime/rouse_runtime/running.py", "run"): "user code in a thread may raise anything: it is answered, typed",
    (
        "libs/runtime/rouse_runtime/triton/model.py",
        "execute",
    ): "a model in a thread may raise anything: it is passed on",
    ("libs/runtime/rouse_runtime/worker.py", "do"): "what work in the thread raises is raised where it is awaited",
    ("libs/testkit/rouse_testkit/mesh.py", "_run"): "the top of a thread: it goes to whoever waits for the thread",
}
# Files that start tasks outside of a TaskGroup: each is awaited, or cancelled and awaited, by what started it.
TASK_OWNERS = {
    "libs/common/rouse_common/tasks.py": "unless() cancels its watcher and awaits it on every way out",
    "libs/bus/rouse_bus/bus.py": "the bus keeps its connection and its subscriptions alive until close()",
    "libs/bus/rouse_bus/objects.py": "tidying up that a cancellation must not cut short, behind a shield",
    "libs/cache/rouse_cache/commands.py": "redis-py can lose a cancellation: the command is waited for to its end",
    "services/gateway/rouse_gateway/service/stream.py": "a generator cannot hold a TaskGroup: it ends its work itself",
    "libs/common/rouse_common/link/client.py": "who waits for a connection shares the making of it; forget() ends it",
    "libs/common/rouse_common/link/server.py": "a task a call, ended by its deadline, its caller, or stop()",
    "libs/runtime/rouse_runtime/dev.py": "one request at a time: it is cancelled and awaited before the next",
    "libs/runtime/rouse_runtime/executor.py": "a mapping is changed to its end, whoever is cancelled",
    "libs/runtime/rouse_runtime/process.py": "serving and stopping are raced; preparing is awaited before loading",
    "services/comm-broker/rouse_comm_broker/registry.py": "work and the job's end are raced; the loser is cancelled",
    "services/coordinator/rouse_coordinator/adapters/process.py": "a process's lines are read until it has ended",
    "services/coordinator/rouse_coordinator/adapters/templates.py": "a process's lines are read until it has ended",
    "services/coordinator/rouse_coordinator/life.py": "staging, loading and the end of a process are raced",
    "services/model-repository/rouse_model_repository/adapters/spool.py": "one part is written while the next arrives",
    "services/scaler/rouse_scaler/app.py": "two events are raced, and the loser is cancelled",
}
# Tests that let time pass, by file and function.
_ROUTER_FAULTS = "tests/integration/test_node_router_faults.py"
SLEEPS = {
    (
        "tests/integration/gateway/test_functions.py",
        "test_large_uploads_pass_in_pieces_and_only_as_fast_as_they_are_taken",
    ): ("that nothing moves any more is what it looks for"),
    ("tests/integration/test_cluster_manager_faults.py", "test_the_database_goes_away_and_comes_back"): (
        "the database is to be away for longer than a node may be silent"
    ),
    (_ROUTER_FAULTS, "play"): "requests that arrive at random times",
    (_ROUTER_FAULTS, "_trouble"): "time between two faults",
    (_ROUTER_FAULTS, "__call__"): "a function that takes a while",
    ("tests/integration/test_node_router_overload.py", "work"): "a function that takes a while",
    ("tests/integration/test_node_router_overload.py", "pause"): "requests that arrive at a rate",
}


def functions(source: Source) -> Iterator[tuple[str, ast.AST]]:
    """Every node with the name of the innermost function around it."""

    def visit(node: ast.AST, name: str) -> Iterator[tuple[str, ast.AST]]:
        for child in ast.iter_child_nodes(node):
            inside = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else name
            yield inside, child
            yield from visit(child, inside)

    yield from visit(source.tree, "")


def caught(handler: ast.ExceptHandler) -> set[str]:
    """Last parts of the names of what a handler catches; a bare one catches BaseException."""
    if handler.type is None:
        return {"BaseException"}
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {dotted(kind).split(".")[-1] for kind in kinds}


def raises(handler: ast.ExceptHandler) -> bool:
    return any(isinstance(node, ast.Raise) for node in ast.walk(handler))


def uses_the_error(handler: ast.ExceptHandler) -> bool:
    names = {node.id for node in ast.walk(handler) if isinstance(node, ast.Name)}
    logs = any(isinstance(n, ast.Attribute) and n.attr == "exception" for n in ast.walk(handler))
    return logs or (handler.name is not None and handler.name in names)


def handlers(*folders: str) -> Iterator[tuple[Source, str, ast.ExceptHandler]]:
    for source in sources(*folders):
        for name, node in functions(source):
            if isinstance(node, ast.ExceptHandler):
                yield source, name, node


def test_no_handler_says_pass() -> None:
    bad = [
        source.at(node)
        for source, _, node in handlers(*CODE, "tests")
        if all(
            isinstance(s, ast.Pass) or (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
            for s in node.body
        )
    ]
    assert not bad, (
        "answer the exception, or write `with contextlib.suppress(Kind):  # why it is no failure`:\n" + "\n".join(bad)
    )


def test_nothing_swallows_every_exception() -> None:
    bad = [
        f"{source.at(node)} in {name}"
        for source, name, node in handlers(*CODE)
        if caught(node) & BROAD and not raises(node) and not uses_the_error(node)
    ]
    assert not bad, "catch the kind that you can answer, or log and raise:\n" + "\n".join(bad)


def test_nothing_swallows_a_cancellation() -> None:
    bad = [
        f"{source.at(node)} in {name}"
        for source, name, node in handlers(*CODE)
        if caught(node) & (CANCELLED | {"BaseException"}) and not raises(node) and (source.name, name) not in ENDS_IT
    ]
    for source in sources(*CODE):
        bad += [
            f"{source.at(call)} suppresses it"
            for called, call in source.calls()
            if called.split(".")[-1] == "suppress"
            and {dotted(argument).split(".")[-1] for argument in call.args} & (CANCELLED | BROAD)
        ]
    assert not bad, "who is cancelled must end: raise again after tidying up:\n" + "\n".join(bad)


def test_what_ends_an_exception_on_purpose_still_exists() -> None:
    present = {(source.name, name) for source, name, _ in handlers(*CODE)}
    assert set(ENDS_IT) <= present, f"take {set(ENDS_IT) - present} out of ENDS_IT"


def test_tests_do_not_sleep_and_hope() -> None:
    bad, present = [], set()
    for source in sources("tests"):
        for name, node in functions(source):
            if not isinstance(node, ast.Call) or dotted(node.func) not in ("time.sleep", "asyncio.sleep", "sleep"):
                continue
            present.add((source.name, name))
            yields = len(node.args) == 1 and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
            if not yields and (source.name, name) not in SLEEPS:
                bad.append(f"{source.at(node)} in {name}")
    assert not bad, (
        "wait for the event or the state itself, with a deadline; where time itself is the subject, say so in SLEEPS:\n"
        + "\n".join(bad)
    )
    assert set(SLEEPS) <= present, f"take {set(SLEEPS) - present} out of SLEEPS"


def test_tasks_belong_to_a_group() -> None:
    bad, present = [], set()
    for source in sources("libs", "services"):
        for called, call in source.calls():
            *owner, last = called.split(".")
            starts = last in ("create_task", "ensure_future") and (owner in ([], ["asyncio"]) or "loop" in owner[-1])
            if not starts or source.name.startswith("libs/testkit/"):
                continue
            present.add(source.name)
            if source.name not in TASK_OWNERS:
                bad.append(f"{source.at(call)} {called}")
    assert not bad, (
        "start it in an asyncio.TaskGroup, so that it cannot get lost or fail unseen; where its starter awaits it in "
        "any case, say so in TASK_OWNERS:\n" + "\n".join(bad)
    )
    assert set(TASK_OWNERS) <= present, f"take {set(TASK_OWNERS) - present} out of TASK_OWNERS"


UNSAFE_MODULES = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
UNSAFE_CALLS = {"eval", "exec", "os.system", "os.popen", "pickle.loads", "yaml.load"}


def test_nothing_runs_what_others_sent() -> None:
    bad = []
    for source in sources(*CODE):
        bad += [f"{source.name}:{n} imports {m}" for m, n in source.imports if m.split(".")[0] in UNSAFE_MODULES]
        for called, call in source.calls():
            words = {w.arg: getattr(w.value, "value", None) for w in call.keywords}
            if called in UNSAFE_CALLS or words.get("shell") is True:
                bad.append(f"{source.at(call)} calls {called}")
            if called == "torch.load" and words.get("weights_only") is not True:
                bad.append(f"{source.at(call)} calls torch.load without weights_only=True")
    assert not bad, "data from others is parsed, never executed; programs are started from lists:\n" + "\n".join(bad)


def test_queues_and_caches_are_bounded() -> None:
    bad = []
    for source in sources("libs", "services"):
        for called, call in source.calls():
            last = called.split(".")[-1]
            if called in ("asyncio.Queue", "queue.Queue", "Queue") and not call.args and not call.keywords:
                bad.append(f"{source.at(call)} {called}() without maxsize")
            if last == "SimpleQueue":
                bad.append(f"{source.at(call)} {called} has no bound")
            if last == "lru_cache" and any(
                w.arg == "maxsize" and getattr(w.value, "value", 0) is None for w in call.keywords
            ):
                bad.append(f"{source.at(call)} lru_cache(maxsize=None)")
        for node in source.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (node.args.args or node.args.vararg):
                bad += [
                    f"{source.at(node)} @cache keeps an answer for every argument"
                    for decorator in node.decorator_list
                    if dotted(decorator) in ("cache", "functools.cache")
                ]
    allowed = [entry for entry in bad if entry.startswith("libs/testkit/")]
    bad = [entry for entry in bad if entry not in allowed]
    assert not bad, "give it a bound, and say what happens at the bound:\n" + "\n".join(bad)
