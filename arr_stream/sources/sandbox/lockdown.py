"""What a decoding process gives up before it sees a byte of the file: memory, files, the network, system calls.

Runs in the process, in its only thread. Each layer stands alone, so that a system without one of
them still has the others; what is in force is reported, never assumed.

| layer | what it takes away | where |
|---|---|---|
| limits | memory, processor time, open files, files written, core dumps | Linux, macOS (which does not hold memory) |
| namespaces | the network: no interface is left, not even loopback | Linux, where unprivileged users may have them |
| Landlock | every file and folder by name; TCP; signals to other processes | Linux from 5.13 |
| privileges | capabilities, and gaining any by running a program | Linux |
| seccomp | every system call that decoding does not need | Linux on x86-64 and arm64 |

Of system calls, what may do harm and what no decoder has cause to try (running a program, making a process or a socket,
looking into another process) ends the process with SIGSYS, so that it is noticed. Everything else that is not needed,
such as opening a file by name, fails with EPERM: libraries try such things in good faith and go on without.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import signal
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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

# For each machine: its number in the kernel's audit code, and the numbers of its system calls.
_ARCHITECTURES: Mapping[str, tuple[int, int]] = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}


def _table(text: str) -> list[tuple[int | None, ...]]:
    """Each call's numbers on x86-64 and arm64, `-` where the machine has none; its name is for the reader."""
    calls = re.findall(r"[a-z]\w* (\d+|-) (\d+|-)", text)
    return [tuple(None if number == "-" else int(number) for number in numbers) for numbers in calls]


_ALLOWED = _table(
    """
    brk 12 214 | clock_getres 229 114 | clock_gettime 228 113 | clock_nanosleep 230 115 | close 3 57 | dup 32 23
    exit 60 93 | exit_group 231 94 | fadvise64 221 223 | fstat 5 80 | futex 202 98 | getcpu 309 168
    getpid 39 172 | getrandom 318 278 | getrusage 98 165 | gettid 186 178 | gettimeofday 96 169 | lseek 8 62
    madvise 28 233 | membarrier 324 283 | mremap 25 216 | munmap 11 215 | nanosleep 35 101 | poll 7 - | ppoll 271 73
    pread64 17 67 | preadv 295 69 | preadv2 327 286 | pselect6 270 72 | read 0 63 | readv 19 65 | recvfrom 45 207
    recvmsg 47 212 | restart_syscall 219 128 | rseq 334 293 | rt_sigaction 13 134 | rt_sigprocmask 14 135
    rt_sigreturn 15 139 | sched_getaffinity 204 123 | sched_yield 24 124 | select 23 - | sendmsg 46 211
    sendto 44 206 | set_robust_list 273 99 | shutdown 48 210 | sigaltstack 131 132 | sysinfo 99 179 | times 100 153
    uname 63 160 | write 1 64 | writev 20 66
    """
)
_DEADLY = _table(
    """
    accept 43 202 | accept4 288 242 | add_key 248 217 | bind 49 200 | bpf 321 280 | chroot 161 51 | connect 42 203
    execve 59 221 | execveat 322 281 | finit_module 313 273 | fork 57 - | init_module 175 105
    io_uring_setup 425 425 | keyctl 250 219 | kill 62 129 | listen 50 201 | mount 165 40 | open_by_handle_at 304 265
    perf_event_open 298 241 | pidfd_getfd 438 438 | pidfd_open 434 434 | pivot_root 155 41
    process_vm_readv 310 270 | process_vm_writev 311 271 | ptrace 101 117 | request_key 249 218 | setns 308 268
    socket 41 198 | socketpair 53 199 | tkill 200 130 | unshare 272 97 | userfaultfd 323 282 | vfork 58 -
    """
)
# Calls that are judged by an argument.
_CLONE, _MMAP, _MPROTECT, _PRCTL, _TGKILL, _IOCTL = (56, 220), (9, 222), (10, 226), (157, 167), (234, 131), (16, 29)
_NEWFSTATAT, _CLONE3, _FCNTL = (262, 79), (435, 435), (72, 25)

_CLONE_THREAD, _PROT_EXEC, _PR_SET_NAME, _AT_EMPTY_PATH = 0x10000, 4, 15, 0x1000
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX = 8, 10, 15
_LARGEST_NUMBER = 0x3FFFFFFF  # above lie the calls of another way to call (x32)

# BPF: load a word of the call's description, compare, return.
_LOAD, _EQUAL, _ANY_BIT, _GREATER, _RETURN = 0x20, 0x15, 0x45, 0x25, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_KILL, _ALLOW, _ERRNO = 0x80000000, 0x7FFF0000, 0x00050000

_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SET_MODE_FILTER, _ALL_THREADS = 1, 1

Instruction = tuple[int, int, int, int]


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

    def _by_name(self) -> dict[str, bool]:
        return {
            "memory limit": self.memory,
            "network namespace": self.network,
            f"Landlock {self.landlock or ''}".strip(): bool(self.landlock),
            "dropped privileges": self.privileges,
            "seccomp": self.seccomp,
        }

    @property
    def missing(self) -> tuple[str, ...]:
        """What this system does not give, in words."""
        return tuple(name for name, there in self._by_name().items() if not there)

    def __str__(self) -> str:
        return ", ".join(name for name, there in self._by_name().items() if there) or "no layer"


def limit_resources(memory_mb: int, open_cpu_seconds: int) -> bool:
    """Memory, processor time until the parent lifts it, open files; nothing written, no core dump.

    Returns:
        Whether the system holds the limit on memory.
    """
    import resource

    # Writable memory of its own, and not address space: libraries and reserved addresses cost nothing.
    _limit(resource.RLIMIT_DATA, memory_mb << 20)
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


def forbidden(error: OSError) -> bool:
    """Whether an error is how the sandbox says no."""
    return error.errno in (errno.EPERM, errno.EACCES, errno.EFBIG, errno.EMFILE)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def filter_system_calls(libc: ctypes.CDLL) -> bool:
    """Install the filter for this process, for good; needs no-new-privileges. False where that cannot be had."""
    machine = platform.machine()
    if machine not in _ARCHITECTURES or sys.maxsize < 1 << 32:
        return False
    instructions = program(machine, os.getpid())
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in instructions))
    given = _Program(len(instructions), ctypes.cast(code, ctypes.c_void_p))
    return bool(libc.syscall(_SECCOMP[machine], _SET_MODE_FILTER, _ALL_THREADS, ctypes.byref(given)) == 0)


def program(machine: str, pid: int) -> list[Instruction]:
    """The filter for a machine (`x86_64` or `aarch64`) and the process that it is for."""
    audit, column = _ARCHITECTURES[machine]
    code: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_GREATER, 0, 1, _LARGEST_NUMBER),
        (_RETURN, 0, 0, _KILL),
    ]
    for verdict, calls in ((_ALLOW, _ALLOWED), (_KILL, _DEADLY)):
        for numbers in calls:
            number = numbers[column]
            if number is not None:
                code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, verdict)]
    refused = _ERRNO | errno.EPERM
    # Threads, but no processes; clone3 hides its flags behind a pointer, and libc then falls back to clone.
    code += _judged(_CLONE[column], 0, ((_ANY_BIT, _CLONE_THREAD),), _ALLOW, _KILL)
    code += [(_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    # Memory cannot become code.
    code += _judged(_MMAP[column], 2, ((_ANY_BIT, _PROT_EXEC),), refused, _ALLOW)
    code += _judged(_MPROTECT[column], 2, ((_ANY_BIT, _PROT_EXEC),), refused, _ALLOW)
    code += _judged(_PRCTL[column], 0, ((_EQUAL, _PR_SET_NAME),), _ALLOW, refused)
    # abort() sends its own process a signal.
    code += _judged(_TGKILL[column], 0, ((_EQUAL, pid),), _ALLOW, _KILL)
    # What libc makes of fstat: of an open file, not of a name.
    code += _judged(_NEWFSTATAT[column], 3, ((_ANY_BIT, _AT_EMPTY_PATH),), _ALLOW, refused)
    # A socket whose owner is another process sends that one any signal.
    owners = ((_EQUAL, _F_SETOWN), (_EQUAL, _F_SETSIG), (_EQUAL, _F_SETOWN_EX))
    code += _judged(_FCNTL[column], 1, owners, _KILL, _ALLOW)
    code += [(_EQUAL, 0, 1, _IOCTL[column]), (_RETURN, 0, 0, _ERRNO | errno.ENOTTY)]
    code += [(_RETURN, 0, 0, refused)]
    return code


def _judged(
    number: int, argument: int, tests: tuple[tuple[int, int], ...], then: int, otherwise: int
) -> list[Instruction]:
    """The verdict on one call by the lower half of one argument: `then` if any test holds."""
    verdicts: list[Instruction] = [(_LOAD, 0, 0, _ARGUMENTS_AT + 8 * argument)]
    for compare, value in tests:
        verdicts += [(compare, 0, 1, value), (_RETURN, 0, 0, then)]
    verdicts.append((_RETURN, 0, 0, otherwise))
    return [(_EQUAL, 0, len(verdicts), number), *verdicts]
