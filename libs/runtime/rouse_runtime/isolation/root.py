"""A root of the instance's own: namespaces in which only what it may see is mounted."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from rouse_runtime.isolation import kernel
from rouse_runtime.isolation.view import ROOT, SHARED_MEMORY, TMP, View, outermost

# The flags of a mount that a user namespace must not take away.
KEPT = {os.ST_NOSUID: kernel.MS_NOSUID, os.ST_NODEV: kernel.MS_NODEV, os.ST_NOEXEC: kernel.MS_NOEXEC}
USER_NAMESPACE = "user, mount and ipc namespaces"
PRIVATE = kernel.MS_NOSUID | kernel.MS_NODEV


def enter_namespaces() -> str:
    """Mounts and System V IPC of our own; which namespaces it took. Needs a process of one thread.

    Where the mounts of the machine are not ours to arrange, a user namespace makes them so; in it the user stays
    who he is. Raises OSError.
    """
    flags = kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC
    if os.geteuid() == 0:
        with contextlib.suppress(PermissionError):  # a container's root; the other way may be open
            kernel.unshare(flags)
            return "mount and ipc namespaces"
    user, group = os.geteuid(), os.getegid()
    kernel.unshare(flags | kernel.CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    return USER_NAMESPACE


def change_root(view: View, folder: str, socket: str, owner: int, tmp_bytes: int) -> None:
    """Builds a root with what `view` names, and makes it ours. Raises OSError, and nothing has changed then.

    Args:
        folder: the instance's own, which holds `root` to build in and `tmp`, which becomes memory of `tmp_bytes`.
        socket: the coordinator's.
        owner: user that the instance will be.
    """
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    root = os.path.join(folder, ROOT)
    kernel.mount("tmpfs", root, "tmpfs", PRIVATE, "mode=0755,size=4m")
    mine = f"mode=0700,uid={owner},gid={owner}" if os.geteuid() == 0 else "mode=0700"
    # First: what is granted may lie below it.
    os.makedirs(root + SHARED_MEMORY)
    kernel.mount("tmpfs", root + SHARED_MEMORY, "tmpfs", PRIVATE, f"{mine},size={tmp_bytes}")
    for path in outermost(view.read):
        _show(root, path, read_only=True)
    for path in (*view.devices, "/proc", "/sys"):
        _show(root, path, read_only=False)
    _show(root, folder, read_only=False)
    _show(root, socket, read_only=False)
    kernel.mount("tmpfs", root + os.path.join(folder, TMP), "tmpfs", PRIVATE, f"{mine},size={tmp_bytes}")
    os.makedirs(root + "/tmp", exist_ok=True)  # noqa: S108 - a name in a root of our own
    kernel.mount("", root, "", kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | PRIVATE)
    before = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.chdir(root)
        kernel.pivot_here()
    except OSError:
        os.fchdir(before)
        raise
    finally:
        os.close(before)


def _show(root: str, path: str, *, read_only: bool) -> None:
    """Binds a path to the same place below `root`; links of the system's top level stay links."""
    place = root + path
    if os.path.lexists(place):
        return  # a link's target, or what is below something shown already
    os.makedirs(os.path.dirname(place), exist_ok=True)
    if os.path.islink(path) and path.count("/") == 1:
        os.symlink(os.readlink(path), place)
        return
    if os.path.isdir(path):
        os.mkdir(place)
    else:
        os.close(os.open(place, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    kernel.mount(os.path.realpath(path), place, "", kernel.MS_BIND | kernel.MS_REC)
    if read_only:
        has = os.statvfs(place).f_flag
        kept = sum(flag for mark, flag in KEPT.items() if has & mark)
        kernel.mount("", place, "", kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | kept)
