# SPDX-License-Identifier: BSD-2-Clause
"""What a suite is given: how to run programs in one mode, and the evidence of what was carried.

A suite is a function that is given a Mode and returns its tests: a dictionary of name -> 'ok', 'fail' or 'skip'. In carried
mode every listener and every connection is flagged. The library's log is the evidence: a line for each connection (RDMA, or TCP
and why) and one at the end of each program with the number of immediates.
"""
import collections
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import time

import debian

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILD = os.path.abspath(os.environ.get('VKR_BUILD', os.path.join(ROOT, 'build')))
PATH = os.environ['PATH'] + ':/usr/sbin:/sbin'
SUITES = {}


class Skip(Exception):
    """The suite cannot run here, with the reason."""


class Suite:
    def __init__(self, function, packages, things, no_tcp):
        self.run, self.packages, self.things, self.no_tcp = function, packages, things, no_tcp

    def versions(self):
        shown = []
        for name in self.packages:
            version = debian.output('dpkg-query', '-W', '-f', '${Version}', name).stdout
            if not version:
                raise Skip(f'{name} is not installed (scripts/install-deps.sh --suites)')
            shown.append(f'{name} {version}')
        return ', '.join([f'{n} {debian.version_of(n)}' for n in self.things] + shown)


def suite(name, *packages, things=(), no_tcp=False):
    """Registers a suite: the Debian packages it needs, the things of debian.py, and whether it makes no TCP connection."""
    def note(function):
        SUITES[name] = Suite(function, packages, things, no_tcp)
        return function
    return note


def fetched(name):
    try:
        return debian.THINGS[name]()
    except debian.Unavailable as e:
        raise Skip(str(e)) from e


def program(name):
    return shutil.which(name, path=PATH) or name


def free_port():
    with contextlib.closing(socket.socket()) as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


class Mode:
    def __init__(self, name, which, work):
        self.name, self.carried = which, which == 'carried'
        self.dir = os.path.join(work, name, which)
        shutil.rmtree(self.dir, ignore_errors=True)
        os.makedirs(self.dir)
        os.chmod(self.dir, 0o755)  # for servers that change their user
        self.log = os.path.join(self.dir, 'vkrdma.log')
        self.only = None  # some tests, once more

    def env(self, **more):
        env = dict(os.environ, PYTHONDONTWRITEBYTECODE='1', LC_ALL='C.UTF-8', **more)
        env.pop('LD_PRELOAD', None)
        if self.carried:
            env.update(LD_PRELOAD=os.path.join(BUILD, 'libvkrdma.so'), VKRDMA_LISTEN='*', VKRDMA_CONNECT='*',
                       VKRDMA_LOG=f'debug:{self.log}')
            env.setdefault('VKRDMA_PROVIDER', 'soft')
        return env

    def run(self, *command, timeout=120, **env):
        """The exit status (124: it took too long) and the output, which is also kept in a file."""
        with open(os.path.join(self.dir, 'output'), 'ab+') as out:
            at = out.tell()
            p = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                 env=self.env(**env), cwd=self.dir, start_new_session=True)
            try:
                status = p.wait(timeout)
            except subprocess.TimeoutExpired:
                status = 124
            with contextlib.suppress(ProcessLookupError):
                os.killpg(p.pid, signal.SIGKILL)  # what it left behind
            p.wait()
            out.seek(at)
            return status, out.read().decode(errors='replace')

    @contextlib.contextmanager
    def server(self, *command, port=None, **env):
        """A server; without a port nobody looks whether it is there, for one that serves a single client."""
        with open(os.path.join(self.dir, 'server'), 'ab') as out:
            p = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self.env(**env),
                                 cwd=self.dir, start_new_session=True)
        try:
            if port:
                self.wait_for(port, p)
            yield p
        finally:
            p.terminate()
            try:
                p.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(p.pid, signal.SIGKILL)
                p.wait()

    @staticmethod
    def wait_for(port, process):
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.closing(socket.socket()) as s:
                if s.connect_ex(('127.0.0.1', port)) == 0:
                    return
            time.sleep(0.05)
        raise Skip(f'the server did not come up on port {port}')

    def listening(self, port, limit=20):
        """Waits until somebody listens, without connecting; carried, until the library has said how."""
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline and not self._listens(port):
            time.sleep(0.05)

    def _listens(self, port):
        if self.carried:
            with contextlib.suppress(OSError), open(self.log, errors='replace') as f:
                return any(re.search(rf'listening on \S+:{port} by ', line) for line in f)
            return False
        for path in ('/proc/net/tcp', '/proc/net/tcp6'):
            with contextlib.suppress(OSError), open(path) as f:
                if any(line.split()[1].endswith(f':{port:04X}') and line.split()[3] == '0A' for line in f):
                    return True
        return False

    def evidence(self):
        """Connections by transport, why those by TCP were, and the immediates of programs that ended."""
        count, why = collections.Counter(), collections.Counter()
        if os.path.exists(self.log):
            with open(self.log, errors='replace') as f:
                for line in f:
                    if ' is RDMA (' in line:
                        count['rdma'] += 1
                    elif m := re.search(r' is TCP \(rule .*?\): (.*)', line):
                        count['tcp'] += 1
                        why[re.sub(r'\d+', 'N', m.group(1))] += 1
                    elif m := re.search(r'carried \d+ connections with (\d+) immediates in and (\d+) out', line):
                        count['immediates'] += int(m.group(2))
        return dict(rdma=count['rdma'], tcp=count['tcp'], immediates=count['immediates'], why=dict(why.most_common()))
