# SPDX-License-Identifier: BSD-2-Clause
"""Processes, evidence and arithmetic that every part of the benchmark uses."""
import contextlib
import ctypes
import json
import os
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

LIBC = ctypes.CDLL(None)


def die_with_parent():
    LIBC.prctl(1, signal.SIGKILL)


def realtime():
    """From here on this process and what it starts come before all other programs; False where that is not permitted."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        return False
    return True


def free_port():
    while True:
        port = random.randrange(15000, 32000)
        with contextlib.closing(socket.socket()) as s, contextlib.suppress(OSError):
            s.bind(('127.0.0.1', port))
            return port


class Failed(Exception):
    """A run that proves nothing: no result is better than a wrong one."""


class Bench:
    """Where things are, how programs are started, what was spent."""

    def __init__(self, args):
        self.build = os.path.abspath(args.build)
        self.host, self.provider, self.quick = args.host, args.provider, args.quick
        self.rows = getattr(args, 'rows', None)
        self.reps = args.reps or (3 if args.quick else 5)
        self.shim = os.path.join(self.build, 'libvkrdma.so')
        self.stat = os.path.join(self.build, 'vkrdma-stat')
        self.dir = tempfile.mkdtemp(prefix='vkrdma-bench-')
        self.procs = []
        for needed in (self.shim, self.stat, self.program('pingpong')):
            if not os.path.exists(needed):
                raise Failed(f'{os.path.basename(needed)} has not been built: cmake -B build && cmake --build build')

    def program(self, name):
        return os.path.join(self.build, 'bench', name)

    def env(self, kind, port=None, shim=None, extra=()):
        """kind: plain, shim (a carried client, no fall-back), serve (a carried server, TCP on the same port), verbs (native
        RDMA on the same provider). extra: pairs of name and value."""
        env = {k: v for k, v in os.environ.items() if not k.startswith('VKRDMA_') and k != 'LD_PRELOAD'}
        if kind == 'shim':
            env.update(LD_PRELOAD=shim or self.shim, VKRDMA_PROVIDER=self.provider, VKRDMA_CONNECT=str(port), VKRDMA_FALLBACK='none')
        elif kind == 'serve':
            env.update(LD_PRELOAD=shim or self.shim, VKRDMA_PROVIDER=self.provider, VKRDMA_LISTEN=str(port))
        elif kind == 'verbs' and self.provider == 'soft':
            env['LD_LIBRARY_PATH'] = os.path.join(self.build, 'softlib')
        env.update(extra)
        return env

    def spawn(self, argv, kind, port=None, shim=None, extra=(), **kwargs):
        kwargs.setdefault('stdin', subprocess.DEVNULL)
        kwargs.setdefault('stdout', subprocess.PIPE)
        kwargs.setdefault('stderr', subprocess.PIPE)
        p = subprocess.Popen([str(a) for a in argv], env=self.env(kind, port, shim, extra), text=True, cwd=self.dir,
                             preexec_fn=die_with_parent, **kwargs)
        self.procs.append(p)
        return p

    def finish(self, p, timeout):
        try:
            out, err = p.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            p.kill()
            p.communicate()
            raise Failed(f'{os.path.basename(str(p.args[0]))} {" ".join(p.args[1:])}: not finished in {timeout} s') from None
        if p.returncode:
            raise Failed(f'{" ".join(p.args)}: exit {p.returncode}: {(err or "")[-600:]}')
        return out

    def stop(self, p, sig=signal.SIGTERM):
        if p.poll() is None:
            p.send_signal(sig)
            try:
                p.wait(10)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait(10)
        for f in (p.stdin, p.stdout, p.stderr):
            if f:
                f.close()

    def close(self):
        for p in self.procs:
            if p.poll() is None:
                p.kill()
                p.wait()
        shutil.rmtree(self.dir, ignore_errors=True)

    def process(self, pid):
        """What vkrdma-stat says of a shimmed process."""
        out = subprocess.run([self.stat, '--json'], capture_output=True, text=True, timeout=30, check=False).stdout
        for p in json.loads(out or '{"processes": []}')['processes']:
            if p['pid'] == pid:
                return p
        raise Failed(f'vkrdma-stat does not know process {pid}')

    def totals(self, pid):
        """Its counters, closed connections included."""
        return self.process(pid)['totals']

    def immediates(self, pid):
        t = self.totals(pid)
        return t['immediates_in'], t['immediates_out']


def wait_port(host, port, proc, timeout=20):
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if proc.poll() is not None:
            raise Failed(f'{proc.args[0]} exited with {proc.returncode}')
        with contextlib.suppress(OSError), contextlib.closing(socket.create_connection((host, port), 1)) as s:
            s.sendall(b'PING\r\n')
            if s.recv(16).startswith(b'+PONG'):
                return
        time.sleep(0.05)
    raise Failed(f'nothing answers on port {port}')


def wait_line(proc, text):
    line = proc.stdout.readline()
    if line.strip() != text:
        raise Failed(f'{" ".join(proc.args)}: {line!r} {proc.stderr.read()[-600:]}')


def summary(values):
    """Median, and the spread as quartiles and extremes."""
    v = sorted(values)
    q = statistics.quantiles(v, n=4, method='inclusive') if len(v) > 1 else [v[0]] * 3
    return {'median': statistics.median(v), 'q1': q[0], 'q3': q[2], 'min': v[0], 'max': v[-1], 'values': values}


def pairs(a, b):
    """What b is of a, pair by pair."""
    return summary([y / x for x, y in zip(a, b)])


def size_name(n):
    return f'{n >> 20} MiB' if n >= 1 << 20 else f'{n >> 10} KiB' if n >= 1024 else f'{n} B'


def machine():
    """Facts that a reader needs to judge the figures, and no names or paths."""
    cpu = ''
    with contextlib.suppress(OSError), open('/proc/cpuinfo', encoding='utf-8', errors='replace') as f:
        found = re.search(r'^model name\s*:\s*(.*)$', f.read(), re.M)
        cpu = found.group(1).strip() if found else ''
    mem = 0
    with contextlib.suppress(OSError), open('/proc/meminfo', encoding='utf-8') as f:
        mem = int(f.readline().split()[1]) >> 20
    release = re.match(r'\d+\.\d+(\.\d+)?', os.uname().release)
    return {'cores': len(os.sched_getaffinity(0)), 'cpu': cpu, 'arch': os.uname().machine, 'memory_gib': mem,
            'kernel': release.group(0) if release else '', 'libc': ' '.join(os.confstr('CS_GNU_LIBC_VERSION').split()),
            'load_before': round(os.getloadavg()[0], 2)}


def progress(text):
    print(text, file=sys.stderr, flush=True)
