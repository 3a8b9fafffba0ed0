"""What our code does not do: swallow errors, lose tasks, grow without bound, run what others sent, sleep and hope."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from rouse_testkit.source import Source, dotted, sources

CODE = ("libs", "services", "scripts")
BROAD = {"Exception", "BaseException"}
CANCELLED = {"CancelledError"}

# Handlers that end what was raised on purpose, by file and function.
ENDS_IT = {
    ("libs/common/rouse_common/lifecycle.py", "_run"): "the top of a process: it becomes the exit code",
    ("libs/testkit/rouse_testkit/mesh.py", "_run"): "the top of a thread: it goes to whoever waits for the thread",
}
# A line of a test with this marker may sleep; what follows it says why.
SLEEP_MARKER = "# sleeps: "


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
    bad = []
    for source in sources("tests"):
        for called, call in source.calls():
            if called not in ("time.sleep", "asyncio.sleep", "sleep", "anyio.sleep"):
                continue
            yields = len(call.args) == 1 and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0
            if not yields and SLEEP_MARKER not in source.line(call):
                bad.append(source.at(call))
    assert not bad, (
        f"wait for the event or the state itself, with a deadline; where time itself is the subject, end the line with "
        f"`{SLEEP_MARKER}why`:\n" + "\n".join(bad)
    )


def test_tasks_belong_to_a_group() -> None:
    bad = [
        f"{source.at(call)} {called}"
        for source in sources("libs", "services")
        if not source.name.startswith("libs/testkit/")
        for called, call in source.calls()
        if called in ("asyncio.create_task", "asyncio.ensure_future", "create_task", "ensure_future")
        or (called.split(".")[-1] == "create_task" and "loop" in called.split(".")[-2])
    ]
    assert not bad, "start it in an asyncio.TaskGroup, so that it cannot get lost or fail unseen:\n" + "\n".join(bad)


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
