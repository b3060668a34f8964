# SPDX-License-Identifier: BSD-2-Clause
"""Runs real programs natively or carried, and proves which it was.

One test file is one topic. VKR_MODE=native runs it over the kernel's TCP, VKR_MODE=carried over RDMA with the same
expectations. In carried mode a client is forbidden to fall back (VKRDMA_FALLBACK=none), and at the end of each test the
servers' counters must show bytes and immediates in both directions: a test whose traffic went by TCP fails.
"""
import collections
import contextlib
import ctypes
import json
import os
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
MODE = os.environ.get('VKR_MODE', 'native')
TIER = os.environ.get('VKR_TIER', 'default')  # quick, default, full
BUILD = os.path.abspath(os.environ.get('VKR_BUILD', os.path.join(HERE, '..', '..', 'build')))
PROVIDER = os.environ.get('VKR_PROVIDER', 'soft')
HOST = os.environ.get('VKR_HOST', '127.0.0.1')  # a real device needs an address with that device behind it
CARRIED = MODE == 'carried'
DEVICE = CARRIED and PROVIDER != 'soft'
PATIENCE = 4 if DEVICE else 1  # a device may stand in a guest whose processor is emulated
SHIM = os.path.join(BUILD, 'libvkrdma.so')
STAT = os.path.join(BUILD, 'vkrdma-stat')
PYTHON = '/usr/bin/python3'  # Debian's: another one first in PATH has no python3-redis
NODE_CACHE = os.environ.get('VKRDMA_NODE_CACHE') or os.path.join(
    os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache'), 'libvkrdma', 'node')


def by_tier(quick, default, full, device=None):
    """How many of something; device: on a device, which may be one of a guest whose processor is emulated."""
    if device is not None and DEVICE:
        return device
    return {'quick': quick, 'full': full}.get(TIER, default)


def sanitizer_runtime():
    """The ASan runtime must be preloaded before a library that was built with it."""
    out = subprocess.run(['ldd', SHIM], capture_output=True, text=True, check=False).stdout
    found = re.search(r'=> (\S*lib(?:asan|clang_rt\.asan)\S*)', out)
    return found.group(1) if found else None


ASAN = sanitizer_runtime() if CARRIED else None


def free_port():
    """Below the ephemeral range, so that no outgoing connection takes it between here and the server's bind."""
    while True:
        port = random.randrange(15000, 32000)
        with contextlib.closing(socket.socket()) as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                s.bind(('0.0.0.0', port))
                return port


def wait(what, condition, timeout=30, interval=0.05, patience=PATIENCE):
    """Polls until condition() is true and returns its value. patience: 1 where the time is what is tested."""
    timeout *= patience
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f'{timeout} s were not enough for: {what}')
        time.sleep(interval)


def fd_kinds(pid):
    """What a process's descriptors are, and how many of each."""
    links = []
    for fd in os.listdir(f'/proc/{pid}/fd'):
        with contextlib.suppress(OSError):
            links.append(re.sub(r'\d+', 'N', os.readlink(f'/proc/{pid}/fd/{fd}')))
    return dict(collections.Counter(links))


class ServerError(Exception):
    """An error reply."""


class Resp:
    """A plain client that the harness itself uses; never under the preload."""

    def __init__(self, port, host=HOST, timeout=30):
        self.sock = socket.create_connection((host, port), timeout)
        self.file = self.sock.makefile('rb')

    def close(self):
        self.file.close()
        self.sock.close()

    @staticmethod
    def encode(*args):
        out = [b'*%d\r\n' % len(args)]
        for a in args:
            a = a if isinstance(a, bytes) else str(a).encode()
            out.append(b'$%d\r\n%s\r\n' % (len(a), a))
        return b''.join(out)

    def __call__(self, *args):
        self.sock.sendall(self.encode(*args))
        return self.reply()

    def reply(self):
        line = self.file.readline()
        if not line.endswith(b'\r\n'):
            raise ConnectionError('the server closed the connection')
        kind, rest = line[:1], line[1:-2]
        if kind == b'-':
            raise ServerError(rest.decode())
        if kind == b'+':
            return rest.decode()
        if kind == b':':
            return int(rest)
        if kind == b'$':
            n = int(rest)
            return None if n < 0 else self.file.read(n + 2)[:-2]
        if kind == b'*':
            return [self.reply() for _ in range(int(rest))]
        raise ConnectionError(f'unexpected reply {line!r}')

    def info(self, section):
        text = self('INFO', section).decode()
        return dict(line.split(':', 1) for line in text.splitlines() if ':' in line)


def preload_env(listen=None, connect=None, extra=None):
    """The environment of a program under test; in native mode the plain one."""
    env = dict(os.environ)
    for name in list(env):
        if name.startswith('VKRDMA_') and name != 'VKRDMA_NODE_CACHE' or name == 'LD_PRELOAD':
            del env[name]
    if CARRIED:
        env['LD_PRELOAD'] = ':'.join(filter(None, (ASAN, SHIM, os.environ.get('VKR_BEHIND'))))  # tests/trouble
        if ASAN:
            env.setdefault('ASAN_OPTIONS', 'detect_leaks=0:handle_segv=0:abort_on_error=1')
        env['VKRDMA_PROVIDER'] = PROVIDER
        if os.environ.get('VKR_CONNECT_TIMEOUT'):  # an emulated processor answers late
            env['VKRDMA_CONNECT_TIMEOUT'] = os.environ['VKR_CONNECT_TIMEOUT']
        if listen:
            env['VKRDMA_LISTEN'] = ','.join(map(str, listen))
        if connect:
            env['VKRDMA_CONNECT'] = ','.join(map(str, connect))
            env['VKRDMA_FALLBACK'] = 'none'
    env.update(extra or {})
    return env


def find(tree, name):
    """The first value called `name` anywhere in a JSON object: where a gauge is nested is not part of the contract."""
    if isinstance(tree, dict):
        if name in tree:
            return tree[name]
        for key, sub in tree.items():
            if key not in ('connections', 'listeners'):
                value = find(sub, name)
                if value is not None:
                    return value
    return None


def stat_all():
    out = subprocess.run([STAT, '--json'], capture_output=True, text=True, timeout=30, check=True).stdout
    return json.loads(out)['processes']


def stat(pid):
    """What vkrdma-stat says of a process; None if it says nothing."""
    return next((p for p in stat_all() if p['pid'] == pid), None)


def carried_totals(process):
    """Everything since the start, closed connections included."""
    totals = process['totals']
    return {k: totals.get(k, 0) for k in ('bytes_in', 'bytes_out', 'immediates_in', 'immediates_out')}


def autopsy(pid, out):
    """Where a process stands that should have finished."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        out.write(f'--- threads of {pid}\n')
        out.flush()
        subprocess.run(['gdb', '-p', str(pid), '-batch', '-nx', '-ex', 'thread apply all bt 14'], stdout=out,
                       stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, timeout=60, check=False)


def cpu_seconds(pid):
    with open(f'/proc/{pid}/stat', encoding='ascii', errors='replace') as f:
        fields = f.read().rsplit(')', 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')


def fd_count(pid):
    return len(os.listdir(f'/proc/{pid}/fd'))


LIBC = ctypes.CDLL(None, use_errno=True)


def die_with_parent():
    """In the child: no server outlives a test runner that was killed."""
    LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Server:
    """A valkey-server or redis-server with a folder of its own."""

    host = HOST  # where the harness itself talks to it

    def __init__(self, case, kind, args, port, flagged, listen, connect, env):
        self.case, self.kind, self.port, self.flagged = case, kind, port, flagged
        self.dir = tempfile.mkdtemp(prefix=f'{kind}-', dir=case.dir)
        self.log = os.path.join(self.dir, 'server.log')
        if listen is None:
            listen = [port] if flagged else []
        self.argv = [f'{kind}-server', '--port', str(port), '--dir', self.dir, '--bind', HOST, '--save', '', '--daemonize',
                     'no', '--protected-mode', 'no', '--enable-debug-command', 'yes', *map(str, args)]
        # A server must answer the harness, which speaks TCP; what its own connects used is checked from the counters.
        extra = {'VKRDMA_LOG': 'info:' + os.path.join(self.dir, 'shim.log'), **({'VKRDMA_FALLBACK': 'tcp'} if CARRIED else {})}
        self.env = preload_env(listen=listen, connect=connect, extra={**extra, **(env or {})})
        self.proc = None

    def start(self, port_to_wait_for=None, timeout=30):
        with open(self.log, 'ab') as log:
            self.proc = self.case.track(subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                         env=self.env, preexec_fn=die_with_parent))
        port = self.port if port_to_wait_for is None else port_to_wait_for
        if port:
            wait(f'{self.kind}-server to answer on port {port}', lambda: self.answers(port), timeout)
        return self

    def answers(self, port):
        if self.proc.poll() is not None:
            raise AssertionError(f'{self.kind}-server exited with {self.proc.returncode}')
        try:
            c = Resp(port, self.host)
        except OSError:
            return False
        with contextlib.closing(c):
            try:
                return c('PING') == 'PONG'
            except (OSError, ServerError):
                return False

    @property
    def pid(self):
        return self.proc.pid

    def alive(self):
        return self.proc is not None and self.proc.poll() is None

    def plain(self, timeout=60):
        client = Resp(self.port, self.host, timeout)
        self.case.addCleanup(client.close)
        return client

    def kill(self, sig=signal.SIGKILL):
        self.proc.send_signal(sig)
        self.proc.wait(30)

    def gauges(self):
        """Objects that must not pile up."""
        g = {'fds': fd_count(self.pid)}
        if CARRIED:
            p = stat(self.pid) or {}
            g.update({name: find(p, name) or 0 for name in ('qps', 'mrs', 'library_fds')})
        return g


class Case(unittest.TestCase):
    """Base of every test. Each test method is followed by prove()."""

    maxDiff = 2000
    longMessage = True
    running = []  # every process ever started, for the signal handler

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        for name, method in list(vars(cls).items()):
            if name.startswith('test_') and callable(method):
                setattr(cls, name, cls._proved(method))

    @staticmethod
    def _proved(method):
        def run(self):
            method(self)
            self.prove()
        run.__name__, run.__doc__ = method.__name__, None
        return run

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix='vkrdma-interop-')
        os.chmod(self.dir, 0o755)
        self.procs, self.servers, self.proofs = [], [], 0
        self.failed_here = False
        self.addCleanup(self._end)

    def _end(self):
        for p in reversed(self.procs):
            if p.poll() is None:
                p.kill()
        for p in self.procs:
            with contextlib.suppress(subprocess.TimeoutExpired):
                p.wait(20)
            for stream in (p.stdin, p.stdout, p.stderr):
                if stream:
                    with contextlib.suppress(OSError):
                        stream.close()
        if not self.failed_here:
            shutil.rmtree(self.dir, ignore_errors=True)

    def track(self, proc):
        self.procs.append(proc)
        Case.running.append(proc)
        return proc

    # ------------------------------------------------------------ programs

    def need(self, *programs):
        for p in programs:
            if not shutil.which(p):
                self.skipTest(f'{p} is not installed')

    def server(self, *args, kind='valkey', port=None, flagged=True, listen=None, connect=None, env=None, start=True):
        # Debian's valkey-server does not run with AddressSanitizer's runtime, with or without the library: it asks its
        # allocator about memory that came from another.
        if kind == 'valkey' and (ASAN or not shutil.which('valkey-server')):
            kind = 'redis'
        self.need(f'{kind}-server')
        s = Server(self, kind, args, free_port() if port is None else port, flagged, listen, connect, env)
        self.servers.append(s)
        return s.start() if start else s

    def client_env(self, ports, env=None):
        ports = [ports] if isinstance(ports, (int, str)) else ports
        extra = {'VKRDMA_LOG': 'info:' + os.path.join(self.dir, 'client-shim.log'), 'NODE_PATH': NODE_CACHE + '/node_modules',
                 'PYTHONPATH': HERE, 'VKR_HOST': HOST, 'PYTHONUNBUFFERED': '1'}
        return preload_env(connect=ports, extra={**extra, **(env or {})})

    def spawn(self, argv, ports, env=None, **kwargs):
        """A client in the background. ports: those it may reach over RDMA only."""
        kwargs.setdefault('stdin', subprocess.DEVNULL)
        kwargs.setdefault('stdout', subprocess.PIPE)
        kwargs.setdefault('stderr', subprocess.PIPE)
        kwargs.setdefault('bufsize', 0)  # a line read here must not hide what communicate() reads later
        return self.track(subprocess.Popen([str(a) for a in argv], env=self.client_env(ports, env),
                                           preexec_fn=die_with_parent, **kwargs))

    def finish(self, proc, timeout=60, data=None, expect=0):
        """Waits for a client and returns its output; a hang is examined before it is killed."""
        timeout *= PATIENCE
        try:
            out, err = proc.communicate(data, timeout)
        except subprocess.TimeoutExpired:
            with open(os.path.join(self.dir, 'hang.txt'), 'a', encoding='utf-8') as f:
                if CARRIED:
                    with contextlib.suppress(Exception):
                        f.write(json.dumps(stat_all(), indent=1) + '\n')
                for pid in [proc.pid] + [s.pid for s in self.servers if s.alive()]:
                    autopsy(pid, f)
            proc.kill()
            proc.communicate()
            raise AssertionError(f'{proc.args[:8]} did not finish in {timeout} s') from None
        if expect is not None and proc.returncode != expect:
            tail = ((out or b'')[-1500:] + (err or b'')[-1500:]).decode(errors='replace')
            raise AssertionError(f'{proc.args[:8]} exited with {proc.returncode}:\n{tail}')
        proc.err = err
        return out

    def expect_line(self, proc, line, timeout=60):
        """The next line that a client says; what it said on stderr if it ended instead."""
        timeout *= PATIENCE
        if not select.select([proc.stdout], [], [], timeout)[0]:
            raise AssertionError(f'{proc.args[:8]} said nothing in {timeout} s where {line!r} was awaited')
        got = proc.stdout.readline()
        if not got:
            raise AssertionError(f'{proc.args[:8]} ended: ' + proc.stderr.read()[-2000:].decode(errors='replace'))
        self.assertEqual(got, line)

    def run_client(self, argv, ports, data=None, timeout=60, expect=0, env=None, **kwargs):
        kwargs['stdin'] = subprocess.DEVNULL if data is None else subprocess.PIPE
        return self.finish(self.spawn(argv, ports, env, **kwargs), timeout, data, expect)

    def script(self, name, *args):
        """The command line of one of our client scripts."""
        if name.endswith('.js'):
            self.need('node')
            if not os.path.isdir(NODE_CACHE + '/node_modules/ioredis'):
                self.skipTest('ioredis is not installed (scripts/install-deps.sh)')
            return ['node', os.path.join(HERE, 'node', name), *args]
        return [PYTHON, os.path.join(HERE, 'clients', name), *args]

    # ------------------------------------------------------------ evidence

    def assert_carried(self, pid, what='the process'):
        p = stat(pid)
        self.assertIsNotNone(p, f'vkrdma-stat does not know {what} ({pid})')
        totals = carried_totals(p)
        for name, value in totals.items():
            self.assertGreater(value, 0, f'{what}: {name} in {totals}')
        self.proofs += 1
        if os.environ.get('BED_PROOF'):  # for the test bed's table
            with open(os.environ['BED_PROOF'], 'a', encoding='ascii') as f:
                print(totals['immediates_in'], totals['immediates_out'], file=f)
        return p

    def assert_no_fallback(self):
        """For clients that were allowed to fall back: their log would hold the reason."""
        log = os.path.join(self.dir, 'client-shim.log')
        if os.path.exists(log):
            with open(log, encoding='utf-8') as f:
                self.assertEqual([line for line in f if ' is TCP ' in line][:3], [], 'clients that fell back')

    def assert_plain(self, pid, what='the process'):
        """Nothing of this process went over RDMA."""
        if CARRIED:
            p = stat(pid)
            if p is not None:
                self.assertEqual(set(carried_totals(p).values()), {0}, what)
                self.assertNotIn('rdma', [c['transport'] for c in p['connections']], what)
        self.proofs += 1

    def prove(self):
        if not CARRIED:
            return
        for s in self.servers:
            if s.flagged and s.alive():
                self.assert_carried(s.pid, f'{s.kind}-server')
        self.assertGreater(self.proofs, 0, 'nothing proves that this test was carried')

    def settle(self, server, base, timeout=30):
        """The gauges return to what they were. A busy connection registers its control memory and up to two rings."""
        last = {}
        if 'qps' in base:
            base = {**base, 'mrs': max(base['mrs'], 3 * base['qps'])}

        def back():
            last.clear()
            last.update(server.gauges())
            return all(last[k] <= base[k] for k in base)
        try:
            wait('gauges', back, timeout, 0.2)
        except AssertionError:
            raise AssertionError(f'left behind after {timeout} s: {last}, at the start {base}; open now: '
                                 f'{fd_kinds(server.pid)}') from None


class Result(unittest.TextTestResult):
    """Prints how long each test took, and the tails of all logs at the moment of a failure, and keeps those."""

    def startTest(self, test):
        super().startTest(test)
        self.began = time.monotonic()

    def addSuccess(self, test):
        self.stream.write(f'{time.monotonic() - self.began:.1f} s ')
        super().addSuccess(test)

    def _examine(self, test):
        if not isinstance(test, Case) or not hasattr(test, 'dir'):
            return
        test.failed_here = True
        self.stream.writeln(f'\n---- logs are kept in {test.dir}')
        for folder, _, files in sorted(os.walk(test.dir)):
            for name in sorted(files):
                if name.endswith(('.log', '.txt')):
                    with open(os.path.join(folder, name), 'rb') as f:
                        size = f.seek(0, os.SEEK_END)
                        f.seek(max(0, size - 2500))
                        text = f.read().decode(errors='replace')
                    if text:
                        self.stream.writeln(f'---- end of {os.path.relpath(os.path.join(folder, name), test.dir)}\n{text}')

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self._examine(test)

    def addError(self, test, err):
        super().addError(test, err)
        self._examine(test)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        if os.environ.get('VKR_SKIPS'):
            with open(os.environ['VKR_SKIPS'], 'a', encoding='utf-8') as f:
                f.write(f'{MODE} {test.id()}: {reason}\n')


def terminated(*_):
    for p in Case.running:
        if p.poll() is None:
            p.kill()
    os._exit(143)


def main():
    signal.signal(signal.SIGTERM, terminated)
    if CARRIED:
        for needed in (SHIM, STAT):
            if not os.path.exists(needed):
                sys.exit(f'{needed} is missing: build it first, or set VKR_BUILD')
    print(f'mode {MODE}, tier {TIER}' + (f', {PROVIDER}, {SHIM}' if CARRIED else ''), flush=True)
    runner = unittest.TextTestRunner(verbosity=2, resultclass=Result, stream=sys.stdout)
    program = unittest.main(module='__main__', testRunner=runner, exit=False)
    result = program.result
    if not result.wasSuccessful():
        sys.exit(1)
    sys.exit(77 if result.testsRun == len(result.skipped) else 0)  # 77: nothing could run
