"""A filter on system calls (seccomp-BPF) that leaves what decoding from open files needs, and nothing else.

What may do harm and what no decoder has cause to try (running a program, making a process or a socket, looking into
another process) ends the process with SIGSYS, so that it is noticed. Everything else that is not needed, such as
opening a file by name, fails with EPERM: libraries try such things in good faith and go on without.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Mapping

# For each machine: its number in the kernel's audit code, and the numbers of its system calls.
_ARCHITECTURES: Mapping[str, tuple[int, int]] = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}

_ALLOWED: Mapping[str, tuple[int | None, int | None]] = {
    "brk": (12, 214),
    "clock_getres": (229, 114),
    "clock_gettime": (228, 113),
    "clock_nanosleep": (230, 115),
    "close": (3, 57),
    "dup": (32, 23),
    "exit": (60, 93),
    "exit_group": (231, 94),
    "fadvise64": (221, 223),
    "fcntl": (72, 25),
    "fstat": (5, 80),
    "futex": (202, 98),
    "getcpu": (309, 168),
    "getpid": (39, 172),
    "getrandom": (318, 278),
    "getrusage": (98, 165),
    "gettid": (186, 178),
    "gettimeofday": (96, 169),
    "lseek": (8, 62),
    "madvise": (28, 233),
    "membarrier": (324, 283),
    "mremap": (25, 216),
    "munmap": (11, 215),
    "nanosleep": (35, 101),
    "poll": (7, None),
    "ppoll": (271, 73),
    "pread64": (17, 67),
    "preadv": (295, 69),
    "preadv2": (327, 286),
    "pselect6": (270, 72),
    "read": (0, 63),
    "readv": (19, 65),
    "recvfrom": (45, 207),
    "recvmsg": (47, 212),
    "restart_syscall": (219, 128),
    "rseq": (334, 293),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sched_getaffinity": (204, 123),
    "sched_yield": (24, 124),
    "select": (23, None),
    "sendmsg": (46, 211),
    "sendto": (44, 206),
    "set_robust_list": (273, 99),
    "shutdown": (48, 210),
    "sigaltstack": (131, 132),
    "sysinfo": (99, 179),
    "times": (100, 153),
    "uname": (63, 160),
    "write": (1, 64),
    "writev": (20, 66),
}
_DEADLY: Mapping[str, tuple[int | None, int | None]] = {
    "accept": (43, 202),
    "accept4": (288, 242),
    "add_key": (248, 217),
    "bind": (49, 200),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "connect": (42, 203),
    "execve": (59, 221),
    "execveat": (322, 281),
    "finit_module": (313, 273),
    "fork": (57, None),
    "init_module": (175, 105),
    "io_uring_setup": (425, 425),
    "keyctl": (250, 219),
    "kill": (62, 129),
    "listen": (50, 201),
    "mount": (165, 40),
    "open_by_handle_at": (304, 265),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "request_key": (249, 218),
    "setns": (308, 268),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "tkill": (200, 130),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vfork": (58, None),
}
# Calls that are judged by an argument.
_CLONE, _MMAP, _MPROTECT, _PRCTL, _TGKILL, _IOCTL = (56, 220), (9, 222), (10, 226), (157, 167), (234, 131), (16, 29)
_NEWFSTATAT, _CLONE3 = (262, 79), (435, 435)

_CLONE_THREAD, _PROT_EXEC, _PR_SET_NAME, _AT_EMPTY_PATH = 0x10000, 4, 15, 0x1000
_LARGEST_NUMBER = 0x3FFFFFFF  # above lie the calls of another way to call (x32)

# BPF: load a word of the call's description, compare, return.
_LOAD, _EQUAL, _ANY_BIT, _GREATER, _RETURN = 0x20, 0x15, 0x45, 0x25, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_KILL, _ALLOW, _ERRNO = 0x80000000, 0x7FFF0000, 0x00050000

_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SET_MODE_FILTER, _ALL_THREADS = 1, 1

Instruction = tuple[int, int, int, int]


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
        for numbers in calls.values():
            number = numbers[column]
            if number is not None:
                code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, verdict)]
    refused = _ERRNO | errno.EPERM
    # Threads, but no processes; clone3 hides its flags behind a pointer, and libc then falls back to clone.
    code += _judged(_CLONE[column], 0, (_ANY_BIT, _CLONE_THREAD), _ALLOW, _KILL)
    code += [(_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    # Memory cannot become code.
    code += _judged(_MMAP[column], 2, (_ANY_BIT, _PROT_EXEC), refused, _ALLOW)
    code += _judged(_MPROTECT[column], 2, (_ANY_BIT, _PROT_EXEC), refused, _ALLOW)
    code += _judged(_PRCTL[column], 0, (_EQUAL, _PR_SET_NAME), _ALLOW, refused)
    # abort() sends its own process a signal.
    code += _judged(_TGKILL[column], 0, (_EQUAL, pid), _ALLOW, _KILL)
    # What libc makes of fstat: of an open file, not of a name.
    code += _judged(_NEWFSTATAT[column], 3, (_ANY_BIT, _AT_EMPTY_PATH), _ALLOW, refused)
    code += [(_EQUAL, 0, 1, _IOCTL[column]), (_RETURN, 0, 0, _ERRNO | errno.ENOTTY)]
    code += [(_RETURN, 0, 0, refused)]
    return code


def _judged(number: int, argument: int, test: tuple[int, int], then: int, otherwise: int) -> list[Instruction]:
    """The verdict on one call by the lower half of one argument."""
    compare, value = test
    return [
        (_EQUAL, 0, 4, number),
        (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * argument),
        (compare, 0, 1, value),
        (_RETURN, 0, 0, then),
        (_RETURN, 0, 0, otherwise),
    ]
