"""A kernel that says no: functions for preexec_fn, so that a child and what it starts live with it; and memory limits."""
import ctypes
import functools
import os
import platform
import subprocess
import tempfile
import time

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


def refuse(call, error):
    """The system call of this number fails with this errno, as container runtimes make it."""
    def apply():
        _filter((LOAD, 0, 0, 0), (EQUAL, 0, 1, call), (RETURN, 0, 0, ERRNO | error), (RETURN, 0, 0, ALLOW))
    return apply


def no_io_uring(error):
    return refuse(IO_URING_SETUP, error)


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


class MemoryGroup:
    """A memory cgroup of our own (v1, else v2) with a limit; `with` removes it. None may be had: unavailable() says why."""
    V1, V2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"

    @classmethod
    @functools.lru_cache
    def base(cls):
        """The first under which a group can be made, limited and entered."""
        for base in (cls.V1, cls.V2):
            try:
                with cls(1 << 30, base) as group:
                    subprocess.run(["true"], preexec_fn=group.enter, check=True)
                    group.used()
                return base
            except (OSError, subprocess.SubprocessError):
                pass
        return None

    @classmethod
    def unavailable(cls):
        return None if cls.base() else "no memory cgroup can be made here"

    def __init__(self, limit_bytes, base=None):
        base = base or self.base()
        self.v1 = base == self.V1
        self.path = tempfile.mkdtemp(prefix="waste-test-", dir=base)
        try:
            self.limit(limit_bytes)
        except OSError:
            os.rmdir(self.path)
            raise

    def limit(self, nbytes):
        self.write("memory.limit_in_bytes" if self.v1 else "memory.max", nbytes)

    def used(self):
        with open(os.path.join(self.path, "memory.usage_in_bytes" if self.v1 else "memory.current")) as f:
            return int(f.read())

    def write(self, name, value):
        with open(os.path.join(self.path, name), "w") as f:
            f.write(str(value))

    def enter(self):
        """For preexec_fn."""
        self.write("cgroup.procs", os.getpid())

    @property
    def oom_file(self):
        """Has a line "oom_kill N"."""
        return os.path.join(self.path, "memory.oom_control" if self.v1 else "memory.events")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for _ in range(100):
            try:
                return os.rmdir(self.path)
            except OSError:  # its last process is still on its way out
                time.sleep(0.05)
        os.rmdir(self.path)
