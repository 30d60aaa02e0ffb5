"""A kernel that says no: functions for preexec_fn, so that a child and what it starts live with it."""
import ctypes
import os
import platform

PR_CAPBSET_DROP, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 24, 22, 38
CAP_IPC_LOCK = 14
LOAD, EQUAL, MASK, RETURN = 0x20, 0x15, 0x45, 0x06           # BPF_LD|W|ABS, JMP|JEQ|K, JMP|JSET|K, RET|K
ALLOW, ERRNO = 0x7fff0000, 0x00050000
IO_URING_SETUP = 425
OPENAT = {"x86_64": 257, "aarch64": 56}.get(platform.machine())

_libc = ctypes.CDLL(None, use_errno=True)


class _Code(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("code", ctypes.POINTER(_Code))]


def _filter(*code):
    program = (_Code * len(code))(*[_Code(*c) for c in code])
    if _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or \
            _libc.prctl(PR_SET_SECCOMP, 2, ctypes.byref(_Program(len(code), program)), 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


def no_io_uring(error):
    """io_uring_setup fails with this errno, as container runtimes make it."""
    def apply():
        _filter((LOAD, 0, 0, 0), (EQUAL, 0, 1, IO_URING_SETUP), (RETURN, 0, 0, ERRNO | error), (RETURN, 0, 0, ALLOW))
    return apply


def no_direct(error):
    """open with O_DIRECT fails, as on a file system that does not know it."""
    def apply():
        # offset 16 + 8 * 2: the low half of the third argument
        _filter((LOAD, 0, 0, 0), (EQUAL, 0, 3, OPENAT), (LOAD, 0, 0, 32), (MASK, 0, 1, os.O_DIRECT),
                (RETURN, 0, 0, ERRNO | error), (RETURN, 0, 0, ALLOW))
    return apply


def little_memlock(nbytes):
    """RLIMIT_MEMLOCK counts, for root too."""
    import resource

    def apply():
        _libc.prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0)
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (nbytes, nbytes))
    return apply
