"""The process between a scratch PostgreSQL and its owner; run as a script, never imported.

It ends the server and removes its data when the owner goes away, even by SIGKILL; and it is gone
only when the last process of the server is. Its working directory is the scratch directory.

    reach PATH…                      may the server's user read and enter these?
    run COMMAND…                     become the server's user and run this (initdb)
    supervise OWNER REMOVE COMMAND…  print the server's pid, then guard it; log to server.log

PostgreSQL refuses to run as root. For root we make a user namespace in which root is called nobody:
everything stays root's, also below a 0700 directory. Where namespaces are forbidden, as in many
containers, we become the real nobody.
"""

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

NOBODY = 65534
# From the kernel's headers.
CLONE_NEWUSER = 0x10000000
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

LINUX = sys.platform.startswith("linux")
TICK = 0.05


def leave_root() -> None:
    """Stop being root, if we are; the working directory comes along."""
    if os.geteuid() != 0 or enter_namespace():
        return
    os.chown(".", NOBODY, NOBODY)
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def enter_namespace() -> bool:
    """Enter a user namespace in which root is uid 65534; false where that is forbidden."""
    if not LINUX or ctypes.CDLL(None).unshare(CLONE_NEWUSER) != 0:
        return False
    try:
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{NOBODY} 0 1", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"{NOBODY} 0 1", encoding="ascii")
    except OSError as error:  # half-way in: there is no way back out of a namespace
        sys.exit(f"the kernel allows a user namespace but not its map: {error}")
    return True


def reach(paths: list[str]) -> int:
    """0 if the server's user may read and enter every path."""
    leave_root()
    return 0 if all(os.access(path, os.R_OK | os.X_OK) for path in paths) else 1


def run(command: list[str]) -> int:
    """Turn into the command."""
    leave_root()
    os.execv(command[0], command)


def supervise(owner: int, command: list[str], *, remove: bool) -> None:
    """Run the server until it ends by itself, the owner is gone or SIGTERM comes."""
    log = os.open("server.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 2)
    adopt_orphans()
    owner_is_gone = watch(owner)
    told_to_stop = stop_request()
    server = subprocess.Popen(  # preexec_fn is safe: this process has one thread
        command,
        stdout=log,
        stderr=log,
        preexec_fn=prepare_server,  # noqa: PLW1509
    )
    print(server.pid, flush=True)  # noqa: T201
    while not all_reaped():
        if owner_is_gone() or told_to_stop():
            end(server.pid)
            if remove:
                shutil.rmtree(Path.cwd(), ignore_errors=True)
            return
        time.sleep(TICK)


def prepare_server() -> None:
    """In the new process, before it becomes the server: not root, and it ends with its parent."""
    leave_root()
    if LINUX:  # after leave_root: a change of user resets it
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)


def adopt_orphans() -> None:
    """Become the parent of the server's children when it dies before them."""
    if LINUX:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def all_reaped() -> bool:
    """Collect the children that have ended; true if there is none left."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return True
    return False


def end(server: int) -> None:
    """Shut the server down without ceremony and wait for all of it."""
    os.kill(server, signal.SIGQUIT)
    while not all_reaped():
        time.sleep(TICK)


def watch(owner: int) -> Callable[[], bool]:
    """A function that says whether the owner is gone (for a zombie, it is)."""
    if not hasattr(os, "pidfd_open"):
        return lambda: not exists(owner)
    try:
        descriptor = os.pidfd_open(owner)
    except ProcessLookupError:
        return lambda: True
    except OSError:  # a kernel older than 5.3
        return lambda: not exists(owner)
    return lambda: bool(select.select([descriptor], [], [], 0)[0])


def exists(pid: int) -> bool:
    """Whether a process has this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def stop_request() -> Callable[[], bool]:
    """A function that says whether SIGTERM has come."""
    requests: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: requests.append(number))
    return lambda: bool(requests)


def main(verb: str, *arguments: str) -> int:
    """Dispatch; see the module's docstring."""
    if verb == "reach":
        return reach(list(arguments))
    if verb == "run":
        return run(list(arguments))
    owner, remove, *command = arguments
    supervise(int(owner), command, remove=remove == "1")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
