"""scripts/convert-slurm on a Slurm of one machine: an array of conversions and a merge give the undivided container."""
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

import waste

SCRIPT = os.path.join(waste.ROOT, "scripts", "convert-slurm")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue")


def missing():
    """Why there can be no Slurm here, or None."""
    absent = [p for p in PROGRAMS if not shutil.which(p, path=os.environ["PATH"] + ":/usr/sbin:/sbin")]
    if absent:
        return "not installed: " + " ".join(absent)
    return None if os.geteuid() == 0 else "Slurm's daemons need root"


def free_ports(count):
    """Different ones: all are bound at once."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


class Cluster:
    """munged, slurmctld and slurmd of this test's own, in a directory of its own."""

    def __init__(self, path):
        self.path, self.children = path, []
        self.conf = self.at("slurm.conf")
        self.env = dict(os.environ, SLURM_CONF=self.conf, PATH=os.environ["PATH"] + ":/usr/sbin:/sbin", WASTE_FETCH=waste.FETCH)
        for name in list(self.env):
            if name.startswith(("SLURM_", "SBATCH_")) and name != "SLURM_CONF":
                del self.env[name]
        ports = free_ports(2)
        host = socket.gethostname().split(".")[0]
        with open(self.conf, "w") as f:
            f.write("\n".join((
                "ClusterName=waste", "SlurmctldHost=%s(127.0.0.1)" % host, "SlurmUser=root", "SlurmdUser=root",
                "AuthType=auth/munge", "CredType=cred/munge",
                "AuthInfo=socket=%s" % self.at("munge.socket"),
                "SlurmctldPort=%d" % ports[0], "SlurmdPort=%d" % ports[1],
                "StateSaveLocation=%s" % self.at("state"), "SlurmdSpoolDir=%s" % self.at("spool"),
                "SlurmctldPidFile=%s" % self.at("ctld.pid"), "SlurmdPidFile=%s" % self.at("d.pid"),
                "SlurmctldLogFile=%s" % self.at("ctld.log"), "SlurmdLogFile=%s" % self.at("d.log"),
                "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "SwitchType=switch/none", "MpiDefault=none",
                "JobAcctGatherType=jobacct_gather/none", "AccountingStorageType=accounting_storage/none", "JobCompType=jobcomp/none",
                "SchedulerType=sched/builtin", "SelectType=select/cons_tres", "SelectTypeParameters=CR_CPU",
                "ReturnToService=2", "MinJobAge=3600",
                "NodeName=%s NodeAddr=127.0.0.1 CPUs=%d State=UNKNOWN" % (host, os.cpu_count()),
                "PartitionName=all Nodes=%s Default=YES MaxTime=INFINITE State=UP" % host, "")))
        for d in ("state", "spool"):
            os.mkdir(self.at(d), 0o755)

    def at(self, name):
        return os.path.join(self.path, name)

    def spawn(self, *argv):
        with open(self.at(os.path.basename(argv[0]) + ".out"), "wb") as out:
            self.children.append(subprocess.Popen(argv, env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out))

    def start(self):
        with open(self.at("munge.key"), "wb") as f:
            os.fchmod(f.fileno(), 0o600)
            f.write(os.urandom(1024))
        self.spawn("munged", "--foreground", "--force", "--key-file", self.at("munge.key"), "--socket", self.at("munge.socket"),
                   "--pid-file", self.at("munge.pid"), "--log-file", self.at("munge.log"), "--seed-file", self.at("munge.seed"))
        waste.wait_for("munged", lambda: os.path.exists(self.at("munge.socket")), 30)
        self.spawn("slurmctld", "-D", "-f", self.conf)
        self.spawn("slurmd", "-D", "-f", self.conf)
        waste.wait_for("an idle node", lambda: "idle" in self.run("sinfo", "-h", "-o", "%T", check=False).stdout, 60)

    def run(self, *argv, check=True):
        r = subprocess.run(argv, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           text=True, timeout=60, cwd=self.path)
        if check and r.returncode:
            raise AssertionError("%s: %s" % (" ".join(argv), r.stderr))
        return r

    def jobs(self):
        """{job: state}; an array's tasks are N_i."""
        lines = self.run("squeue", "-h", "-a", "-r", "-t", "all", "-o", "%i %T").stdout.splitlines()
        return dict(line.split() for line in lines)

    def stop(self):
        for p in reversed(self.children):
            if p.poll() is None:
                p.send_signal(signal.SIGTERM)
        for p in self.children:
            try:
                p.wait(10)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()

    def logs(self):
        out = []
        for name in sorted(os.listdir(self.path)):
            if name.endswith((".out", ".log")):
                with open(self.at(name), errors="replace") as f:
                    out.append("== %s\n%s" % (name, f.read()[-2000:]))
        return "\n".join(out)


class Slurm(waste.Test):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cluster
        cls.source = os.path.join(waste.scratch(), "source")
        cls.whole = os.path.join(waste.scratch(), "whole")
        for args in (("synth", "--checkpoint", "--shape", "tiny-odd-k3", cls.source), ("convert", "--effort", 0, cls.source, cls.whole)):
            r = waste.waste_run(*args, "-q", program=waste.FETCH)
            assert r.code == 0, str(r)

    def submit(self, *args, check=True):
        return self.cluster.run(SCRIPT, *args, check=check)

    def end_of(self, jobs):
        """States of the jobs once none is queued or running."""
        def ended():
            states = {j: s for j, s in self.cluster.jobs().items() if j.split("_")[0] in jobs}
            return states if states and not {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING"} & set(states.values()) else None
        try:
            return waste.wait_for("the jobs' end", ended, 180 * waste.SLOW)
        except AssertionError as e:
            raise AssertionError("%s: %s\n%s" % (e, self.cluster.jobs(), self.cluster.logs()))

    def contents(self, path):
        out = {}
        for name in os.listdir(path):
            with open(os.path.join(path, name), "rb") as f:
                out[name] = f.read()
        return out

    def test_an_array_and_a_merge_make_the_undivided_container(self):
        out = os.path.join(waste.scratch(), "by-slurm")
        array, merge = self.submit("-n", "3", self.source, out, "--effort", "0").stdout.split()
        states = self.end_of((array, merge))
        self.assertEqual(states, dict({array + "_%d" % i: "COMPLETED" for i in range(3)}, **{merge: "COMPLETED"}),
                         self.cluster.logs())
        self.assertEqual(self.contents(out), self.contents(self.whole))
        self.assertFalse(os.path.exists(out + ".parts"))

    def test_a_task_that_fails_holds_back_the_merge_and_the_same_command_goes_on(self):
        out = os.path.join(waste.scratch(), "by-slurm-2")
        os.makedirs(os.path.join(out + ".parts", "1"))
        with open(os.path.join(out + ".parts", "1", "in the way"), "w"):
            pass
        array, merge = self.submit("-n", "2", "-s", "--kill-on-invalid-dep=yes", self.source, out, "--effort", "0").stdout.split()
        states = self.end_of((array, merge))
        self.assertEqual(states, {array + "_0": "COMPLETED", array + "_1": "FAILED", merge: "CANCELLED"})
        self.assertFalse(os.path.exists(out))
        shutil.rmtree(os.path.join(out + ".parts", "1"))
        array, merge = self.submit("-n", "2", self.source, out, "--effort", "0").stdout.split()
        self.assertEqual(set(self.end_of((array, merge)).values()), {"COMPLETED"})
        self.assertEqual(self.contents(out), self.contents(self.whole))

    def test_wrong_use_is_told_before_anything_is_submitted(self):
        before = self.cluster.jobs()
        for args in ((), (self.source,), ("-n", "0", self.source, "x"), ("-n", "a", self.source, "x"), ("/nonexistent", "x"),
                     (waste.scratch(), "x")):
            with self.subTest(" ".join(args)):
                r = self.submit(*args, check=False)
                self.assertNotEqual(r.returncode, 0)
                self.assertTrue(r.stderr)
        self.assertEqual(self.cluster.jobs(), before)


def skip(why):
    print("skipped: " + why)
    sys.exit(77)


if __name__ == "__main__":
    if missing():
        skip(missing())
    # munged refuses a socket below a directory that others may write to, and paths of sockets are short
    with tempfile.TemporaryDirectory(prefix="waste-slurm-", dir="/run") as place:
        os.chmod(place, 0o755)
        cluster = Cluster(place)
        try:
            cluster.start()
        except AssertionError as e:
            print(cluster.logs())
            skip("Slurm does not start on this machine: %s" % e)
        else:
            waste.main(waste.FETCH)
        finally:
            cluster.stop()
