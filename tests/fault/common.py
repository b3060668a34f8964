# SPDX-License-Identifier: BSD-2-Clause
"""What the fault tests add to the harness of tests/interop."""
import os
import queue
import re
import statistics
import subprocess
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', 'interop'))
import harness  # noqa: E402  pylint: disable=wrong-import-position

HOSTILE = os.path.join(harness.BUILD, 'fault', 'hostile')
STEADY = os.path.join(harness.BUILD, 'fault', 'steady')
SOFTLIB = os.path.join(harness.BUILD, 'softlib')


# Debian's valkey programs bring an allocator of their own as a library, which AddressSanitizer does not survive.
KIND = 'redis' if harness.ASAN and harness.shutil.which('redis-server') else 'valkey'


class Case(harness.Case):
    may_fall_back = True  # some connections are meant to fail; the rest have their evidence in each test

    def server(self, *args, kind=KIND, **kwargs):
        return super().server(*args, kind=kind, **kwargs)


def raw_env():
    """A native RDMA program on softverbs: no preload, no rules."""
    env = {k: v for k, v in os.environ.items() if not k.startswith('VKRDMA_') and k != 'LD_PRELOAD'}
    if harness.PROVIDER == 'soft':
        env['LD_LIBRARY_PATH'] = SOFTLIB
        # softlib is one library of ours: a sanitizer's runtime must be there before it.
        if harness.ASAN:
            env['LD_PRELOAD'] = harness.ASAN
            env['ASAN_OPTIONS'] = 'detect_leaks=0'
    return env


class Steady:
    """The well-behaved connection: carried, measured, and required to survive everything."""

    def __init__(self, case, port, ports):
        self.err = os.path.join(case.dir, 'steady.log')
        with open(self.err, 'wb') as err:
            self.proc = case.spawn([STEADY, harness.HOST, port], ports, stdin=subprocess.PIPE, stderr=err)
        self.lines = queue.Queue()
        self.windows = []
        self.lock = threading.Lock()
        threading.Thread(target=self._read, daemon=True).start()
        harness.wait('the steady connection', lambda: self.count() > 0)

    def _read(self):
        for raw in iter(self.proc.stdout.readline, b''):
            line = raw.decode().strip()
            if line.startswith('window '):
                with self.lock:
                    self.windows.append([int(x) for x in line.split()[1:]])
            else:
                self.lines.put(line)

    def count(self):
        with self.lock:
            return sum(w[0] for w in self.windows)

    def mark(self):
        with self.lock:
            return len(self.windows)

    def windows_since(self, mark, at_least=0, timeout=20):
        """The windows since the mark, once there are at_least."""
        harness.wait('measurements of the steady connection', lambda: self.mark() - mark >= at_least or self.dead(), timeout)
        with self.lock:
            return self.windows[mark:]

    def dead(self):
        return self.proc.poll() is not None

    def errors(self):
        with open(self.err, encoding='utf-8', errors='replace') as f:
            return f.read()[-2000:]

    def command(self, text):
        self.proc.stdin.write(text.encode() + b'\n')
        self.proc.stdin.flush()

    def next_line(self, pattern, timeout):
        """The next line of news; it must match."""
        try:
            line = self.lines.get(timeout=timeout * harness.PATIENCE)
        except queue.Empty:
            return None
        if not re.match(pattern, line):
            raise AssertionError(f'{line!r} instead of {pattern!r}')
        return line


def p99(windows):
    """Median over the windows of their 99th percentiles, in microseconds: one hiccup of the machine is not the peer's."""
    values = [w[2] for w in windows if w[0]]
    return statistics.median(values) if values else float('inf')
