"""A slow device: a mounted loop device over a file, and a control group whose processes read from it at a given rate.

Needs root, loop devices and the blkio controller of cgroup v1; a test that wants one is skipped where they are not to be had.
"""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import waste

BLKIO = "/sys/fs/cgroup/blkio"


def run(*argv):
    return subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True, text=True).stdout.strip()


class SlowDevice:
    """A mounted loop device and a control group that reads from it at `rate` bytes a second."""

    def __init__(self, megabytes, beside=None):
        """beside: another one, whose group this one's throttle is for, too."""
        self.undo = []
        # a time limit ends the test, and not before it has unmounted
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        try:
            self.make(megabytes, beside)
        except (OSError, subprocess.SubprocessError) as e:
            self.close()
            raise unittest.SkipTest("no slow device on this machine: %s" % e)

    def make(self, megabytes, beside):
        if os.geteuid() != 0:
            raise OSError("needs root")
        if not os.path.exists(os.path.join(BLKIO, "blkio.throttle.read_bps_device")):
            raise OSError("no blkio controller (cgroup v1)")
        base = tempfile.mkdtemp(prefix="slow-", dir=waste.BUILD)
        self.undo.append(lambda: shutil.rmtree(base, ignore_errors=True))
        image = os.path.join(base, "image")
        with open(image, "wb") as f:
            f.truncate(megabytes << 20)
        loop = run("losetup", "-f", "--show", image)
        self.undo.append(lambda: run("losetup", "-d", loop))
        run("mkfs.ext4", "-q", loop)
        self.dir = os.path.join(base, "mnt")
        os.mkdir(self.dir)
        run("mount", loop, self.dir)
        self.undo.append(self.unmount)
        self.name = os.path.basename(loop)
        self.stat = "/sys/block/%s/stat" % self.name
        with open("/sys/block/%s/dev" % self.name) as f:
            self.number = f.read().strip()
        if beside:
            self.group = beside.group
        else:
            self.group = tempfile.mkdtemp(prefix="waste-test-", dir=BLKIO)
            self.undo.append(self.leave)
        self.tasks = os.path.join(self.group, "cgroup.procs")

    def unmount(self):
        """A ring lets go of its files some time after its process has ended."""
        for i in range(200):
            try:
                return run("umount", self.dir)
            except subprocess.SubprocessError:
                if i == 199:
                    raise
                time.sleep(0.05)

    def leave(self):
        for _ in range(100):
            try:
                return os.rmdir(self.group)
            except OSError:
                time.sleep(0.05)

    def throttle(self, rate):
        with open(os.path.join(self.group, "blkio.throttle.read_bps_device"), "w") as f:
            f.write("%s %d" % (self.number, rate))

    def add(self, pid):
        with open(self.tasks, "w") as f:
            f.write(str(pid))

    def close(self):
        """Backwards; what is mounted still is not removed."""
        try:
            while self.undo:
                self.undo.pop()()
        except (OSError, subprocess.SubprocessError) as e:
            print(e, file=sys.stderr)
