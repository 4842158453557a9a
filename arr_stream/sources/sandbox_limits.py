"""What a decoding process gives up before it sees a byte of the file: memory, files, the network, privileges.

Runs in the child of `sources.sandbox`, in its only thread. Each layer stands alone, so that a system without one of
them still has the others; what is in force is reported, never assumed.

| layer | what it takes away | where |
|---|---|---|
| limits | memory, processor time, open files, files written, core dumps | Linux, macOS (which does not hold memory) |
| namespaces | the network: no interface is left, not even loopback | Linux, where unprivileged users may have them |
| Landlock | every file and folder by name; TCP; signals to other processes | Linux from 5.13 |
| privileges | capabilities, and gaining any by running a program | Linux |
| seccomp | every system call that decoding does not need | Linux on x86-64 and arm64 |
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from arr_stream.sources.sandbox_seccomp import filter_system_calls

_OPEN_FILES = 64

_CLONE_NEWUSER, _CLONE_NEWNET, _CLONE_NEWIPC = 0x10000000, 0x40000000, 0x08000000
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_CAPABILITY_VERSION_3 = 0x20080522

# System calls that libc does not wrap; the same numbers on every architecture.
_LANDLOCK_CREATE_RULESET, _LANDLOCK_RESTRICT_SELF = 444, 446
_LANDLOCK_VERSION = 1
# Rights to files in the first version, then each version's additions: moving, truncating, (nothing,) device control.
_LANDLOCK_FILES = {1: (1 << 13) - 1, 2: 1 << 13, 3: 1 << 14, 5: 1 << 15}
_LANDLOCK_NETWORK_FROM, _LANDLOCK_TCP = 4, 0b11
_LANDLOCK_SCOPES_FROM, _LANDLOCK_SCOPES = 6, 0b11


@dataclass(frozen=True, slots=True)
class Layers:
    """Which layers hold a decoding process.

    Args:
        memory: The limit on memory is held by the system.
        network: It lives in a network namespace without interfaces.
        landlock: Version of Landlock that closes files to it; 0 for none.
        privileges: It has no capability and can gain none.
        seccomp: System calls are filtered.
    """

    memory: bool
    network: bool
    landlock: int
    privileges: bool
    seccomp: bool

    @property
    def missing(self) -> tuple[str, ...]:
        """What this system does not give, in words."""
        layers = {
            "memory limit": self.memory,
            "network namespace": self.network,
            "Landlock": bool(self.landlock),
            "dropped privileges": self.privileges,
            "seccomp": self.seccomp,
        }
        return tuple(name for name, there in layers.items() if not there)

    def __str__(self) -> str:
        layers = {
            "memory limit": self.memory,
            "network namespace": self.network,
            f"Landlock {self.landlock}": bool(self.landlock),
            "no privileges": self.privileges,
            "seccomp": self.seccomp,
        }
        return ", ".join(name for name, there in layers.items() if there) or "no layer"


def limit_resources(memory_mb: int, open_cpu_seconds: int) -> bool:
    """Memory, processor time until the parent lifts it, open files; nothing written, no core dump.

    Returns:
        Whether the system holds the limit on memory.
    """
    import resource

    megabyte = 1 << 20
    # Writable memory of its own, and not address space: libraries and reserved addresses cost nothing.
    _limit(resource.RLIMIT_DATA, memory_mb * megabyte)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    if hasattr(resource, "prlimit"):
        # Only the soft limit: the parent lifts it when the file is open. The child itself may not, see seccomp.
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        soft = open_cpu_seconds if hard == resource.RLIM_INFINITY else min(open_cpu_seconds, hard)
        resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))
    return sys.platform == "linux"


def _limit(kind: int, value: int) -> None:
    import resource

    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def lock_down(*, memory: bool, end_with_parent: bool) -> Layers:
    """Give up the network, files, privileges and system calls; imports no longer work afterwards.

    Args:
        memory: What `limit_resources` returned.
        end_with_parent: Be killed when the thread that started this process ends.

    Raises:
        RuntimeError: Something has started a thread, which would keep its rights.
    """
    if sys.platform != "linux":
        return Layers(memory, False, 0, False, False)
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1:
        raise RuntimeError(f"{threads} threads run before the sandbox is closed; there must be one")
    libc = ctypes.CDLL(None, use_errno=True)
    network = _leave_network(libc)
    privileges = _drop_privileges(libc)
    if end_with_parent:
        # After the namespaces: changed credentials forget it.
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    landlock = _close_files(libc) if privileges else 0
    return Layers(memory, network, landlock, privileges, privileges and filter_system_calls(libc))


def _leave_network(libc: ctypes.CDLL) -> bool:
    for flags in (_CLONE_NEWUSER | _CLONE_NEWNET | _CLONE_NEWIPC, _CLONE_NEWNET | _CLONE_NEWIPC):
        if libc.unshare(flags) == 0:
            return True
    return False


def _drop_privileges(libc: ctypes.CDLL) -> bool:
    """No capability is left, and running a set-user-id program would give none."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    none = (ctypes.c_uint32 * 6)()
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    return bool(libc.capset(header, none) == 0)


def _close_files(libc: ctypes.CDLL) -> int:
    """Landlock without a single rule: nothing can be opened by name. The version in force, 0 for none."""
    version = int(libc.syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), _LANDLOCK_VERSION))
    if version < 1:
        return 0
    handled = [sum(bits for since, bits in _LANDLOCK_FILES.items() if since <= version)]
    if version >= _LANDLOCK_NETWORK_FROM:
        handled.append(_LANDLOCK_TCP)
    if version >= _LANDLOCK_SCOPES_FROM:
        handled.append(_LANDLOCK_SCOPES)
    ruleset = (ctypes.c_uint64 * len(handled))(*handled)
    descriptor = int(libc.syscall(_LANDLOCK_CREATE_RULESET, ruleset, ctypes.c_size_t(ctypes.sizeof(ruleset)), 0))
    if descriptor < 0:
        return 0
    try:
        closed = libc.syscall(_LANDLOCK_RESTRICT_SELF, descriptor, 0) == 0
    finally:
        os.close(descriptor)
    return version if closed else 0


def be_modest(nice: int) -> None:
    """Lower this process's priority, where the system has such a thing."""
    if hasattr(os, "nice"):
        with contextlib.suppress(OSError):
            os.nice(nice)


def forbidden(error: OSError) -> bool:
    """Whether an error is how the sandbox says no."""
    return error.errno in (errno.EPERM, errno.EACCES, errno.EFBIG, errno.EMFILE)
