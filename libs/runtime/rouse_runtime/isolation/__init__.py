"""What keeps a function's code apart from the machine, the mesh and other functions.

Applied by the instance to itself before any code of the user is imported, while it has one thread: everything here
holds for a thread and what that starts. In order, each where the machine allows it: a root of its own, a user of its
own, no capabilities and no new privileges, resource limits, Landlock, a filter of system calls.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rouse_runtime import limits
from rouse_runtime.isolation import kernel, landlock, root, seccomp
from rouse_runtime.isolation.view import TMP, View, view

LOG = logging.getLogger(__name__)
OFF, AUTO, STRICT = "off", "auto", "strict"


class IsolationError(Exception):
    """What an instance was to have and cannot have here."""


@dataclass(frozen=True)
class Plan:
    """What an instance is to get.

    Attributes:
        strict: whether an instance that cannot have all of it must not run.
        granted: paths of the artefact, its image and its device memory.
        folder: its own, with `tmp` and `root` in it.
        socket: path of the coordinator's.
        user: user and group that it becomes where it starts as root; 0: none.
        ports: TCP ports that it may connect to; None: any; empty: no network at all.
        tmp_bytes: room in `tmp`, and the largest file it may write.
    """

    strict: bool
    granted: tuple[str, ...]
    folder: str
    socket: str
    user: int
    ports: tuple[int, ...] | None
    limits: limits.Limits
    tmp_bytes: int


class _Steps:
    def __init__(self) -> None:
        self.words: list[str] = []
        self.missing: list[str] = []

    def take(self, what: str, step: Callable[[], str]) -> bool:
        try:
            self.words.append(step())
        except OSError as error:
            self.missing.append(f"{what} ({error.strerror or error})")
            return False
        return True


def apply(plan: Plan, environ: Mapping[str, str]) -> str:
    """Confines this process; what it got, in words. Raises IsolationError where `strict` names what is missing."""
    seen = view(plan.granted, plan.folder, environ)
    steps = _Steps()
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise IsolationError(f"the process has {threads} threads already; only the calling one would be confined")
    # Both before the user changes: afterwards neither files nor mounts are ours to arrange.
    namespaces = steps.take("namespaces", root.enter_namespaces)
    in_own_root = namespaces and steps.take("a root of its own", lambda: _change_root(plan, seen))
    kernel.bound_capabilities()
    if not steps.take("a user of its own", lambda: _become(plan, in_own_root)):
        _keep_folder(plan)
    steps.take("no capabilities", _drop_capabilities)
    steps.take("no new privileges", _no_new_privileges)
    # Processes are counted by user; where that is one whom others share, theirs would count as ours.
    counted = os.geteuid() == plan.user or root.USER_NAMESPACE in steps.words
    steps.take("limits", lambda: limits.apply(plan.limits, count_processes=counted))
    steps.take("landlock", lambda: landlock.restrict(seen, plan.ports))
    if plan.ports is not None and landlock.abi() < landlock.PORTS_ABI:
        steps.missing.append("landlock for tcp ports")
    steps.take("seccomp", lambda: seccomp.restrict(network=plan.ports != ()))
    if plan.strict and steps.missing:
        raise IsolationError(f"isolation = strict, and this machine does not give: {'; '.join(steps.missing)}")
    lacking = [f"without {', '.join(steps.missing)}"] if steps.missing else []
    return "; ".join([*steps.words, *lacking])


def _change_root(plan: Plan, seen: View) -> str:
    root.change_root(seen, plan.folder, plan.socket, plan.user, plan.tmp_bytes)
    return "root of its own"


def _become(plan: Plan, in_own_root: bool) -> str:
    """Raises OSError."""
    if os.geteuid() != 0:
        return f"user {os.geteuid()}"
    if not plan.user:
        raise OSError(errno.EPERM, "none is set up")
    if not in_own_root:
        # The folders above the artefact and the sockets are closed to other users.
        raise OSError(errno.EPERM, "it needs a root of its own")
    os.setgroups([])
    os.setresgid(plan.user, plan.user, plan.user)
    os.setresuid(plan.user, plan.user, plan.user)
    # A change of the user takes the process its own files below /proc.
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1, what="prctl(PR_SET_DUMPABLE)")
    return f"user {plan.user}"


def _keep_folder(plan: Plan) -> None:
    """The folder was given to a user that this process does not become."""
    for path in (plan.folder, os.path.join(plan.folder, TMP)):
        os.chown(path, os.geteuid(), os.getegid())


def _drop_capabilities() -> str:
    kernel.drop_capabilities()
    return "no capabilities"


def _no_new_privileges() -> str:
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1, what="prctl(PR_SET_NO_NEW_PRIVS)")
    return "no new privileges"
