# SPDX-License-Identifier: BSD-2-Clause
"""What the trap tests share: native Valkey RDMA peers, raw peers, and the two lines that each test prints.

Every test says first what the native pair does in the trap (PROVEN, or NOT SEEN, which is a finding and no failure
unless the trap is known to be deterministic), then what the shim does in it, which must be right.
"""
import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(HERE, '..', 'fault'))
import common  # noqa: E402  pylint: disable=wrong-import-position
from common import HOSTILE, harness, raw_env  # noqa: E402,F401  pylint: disable=wrong-import-position,unused-import

HOST = harness.HOST
SOFT = harness.PROVIDER == 'soft'
# A device that is at hand is one in an emulated guest: what a busy peer is given to do takes longer there.
SLOW = 1 if SOFT else 6
RAW = os.path.join(harness.BUILD, 'traps', 'raw_trap')
LIBVALKEY = ('alloc', 'async', 'conn', 'dict', 'net', 'rdma', 'read', 'sds', 'sockcompat', 'valkey', 'vkutil')


def native_folder(variant=None):
    """The folder of a native build that is there already; None: there is none."""
    script = os.path.join(ROOT, 'scripts', 'build-native.sh')
    argv = [script, '--cached'] + (['--variant', variant] if variant else [])
    out = subprocess.run(argv, capture_output=True, text=True, check=False)
    return out.stdout.strip() if out.returncode == 0 else None


NATIVE = native_folder()


def client_program():
    """
    valkey_client, made with the libvalkey that is bundled with the native Valkey, of which CMake does not know. Named after
    its contents. A guest of the test bed cannot write to the build folder, but to the one of its results.
    """
    source, folder = os.path.join(HERE, 'valkey_client.c'), os.path.join(NATIVE, 'source', 'deps', 'libvalkey')
    with open(source, 'rb') as f, open(os.path.join(NATIVE, 'VERSION'), 'rb') as g:
        name = 'valkey_client-' + hashlib.sha256(f.read() + g.read()).hexdigest()[:16]
    places = [os.path.join(harness.BUILD, 'traps')] + [p for p in [os.environ.get('BED_OUT')] if p]
    for place in places:
        if os.path.exists(os.path.join(place, name)):
            return os.path.join(place, name)
    os.makedirs(places[-1], exist_ok=True)
    program = os.path.join(places[-1], name)
    objects = [os.path.join(folder, 'src', f'{part}.c') for part in LIBVALKEY]
    include = [f'-I{folder}/include', f'-I{folder}/include/valkey', f'-I{folder}/src']
    with tempfile.TemporaryDirectory() as tmp:
        own, out = os.path.join(tmp, 'own.o'), os.path.join(tmp, name)
        subprocess.run(['cc', '-std=gnu11', '-O2', '-Wall', '-Wextra', '-Werror', *include, '-c', source, '-o', own], check=True)
        subprocess.run(['cc', '-std=gnu11', '-O2', '-w', *include, own, *objects, '-lrdmacm', '-libverbs', '-ldl', '-o', out],
                       check=True)
        shutil.copy(out, f'{program}.{os.getpid()}')
    os.replace(f'{program}.{os.getpid()}', program)
    return program


class NativeServer(harness.Server):
    """A Valkey built with RDMA. `port` is its TCP port, for the harness; `rdma` the port of its RDMA listener."""

    def __init__(self, case, args, folder, bind, env):
        super().__init__(case, 'valkey', args, harness.free_port(), False, [], None, None)
        self.rdma = harness.free_port()
        self.argv[0] = os.path.join(folder, 'bin', 'valkey-server')
        self.argv += ['--rdma-bind', bind, '--rdma-port', str(self.rdma)]
        self.env = {**raw_env(), **(env or {})}
        self.log = os.path.join(self.dir, 'native.log')

    def death(self, timeout=0):
        """How it ended: a negative signal number, or None while it lives."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.proc.wait(timeout)
        return None

    def text(self):
        with open(self.log, encoding='utf-8', errors='replace') as f:
            return f.read()

    def crashed(self, timeout=10):
        """Valkey handles its own signals and prints a report; either way it is gone or on its way."""
        try:
            harness.wait('the crash', lambda: self.death() is not None or 'BUG REPORT START' in self.text(), timeout * SLOW, patience=1)
        except AssertionError:
            return None
        found = re.search(r'(crashed by signal: \d+|==> .*|free\(\).*)', self.text())
        return found.group(1) if found else f'ended with {self.death(10 * SLOW)}'


class Trap(common.Case):
    def setUp(self):
        super().setUp()
        self.missing = []
        self.client_program = client_program()

    # ------------------------------------------------------------ the two lines

    @property
    def label(self):
        return self._testMethodName.removeprefix('test_').split('_')[0].upper()

    def native(self, seen, text, deterministic=True):
        print(f'\n  {self.label} native: {"PROVEN" if seen else "NOT SEEN"}: {text}', flush=True)
        if not seen and deterministic:
            self.missing.append(f'{self.label} native, not seen any more: {text}')

    def shim(self, text):
        print(f'  {self.label} shim: {text}', flush=True)

    def prove(self):
        super().prove()
        self.assertEqual(self.missing, [])

    # ------------------------------------------------------------ peers

    def native_server(self, *args, folder=None, bind=HOST, env=None):
        s = NativeServer(self, args, folder or NATIVE, bind, env)
        self.servers.append(s)
        return s.start()

    def native_spawn(self, argv, env=None, **kwargs):
        kwargs.setdefault('stdin', subprocess.PIPE)
        return self.track(subprocess.Popen([str(a) for a in argv], env={**raw_env(), **(env or {})}, bufsize=0,
                                           stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                           preexec_fn=harness.die_with_parent, **kwargs))

    def native_client(self, port, *args, env=None, go=True):
        """A libvalkey program over RDMA; it begins when told, if not at once."""
        return self.begin(self.native_spawn([self.client_program, 'rdma', HOST, port, *args], env), go)

    def shim_client(self, port, *args, env=None, go=True):
        """The same program over the sockets it would use for TCP; it may not fall back."""
        return self.begin(self.spawn([self.client_program, 'tcp', HOST, port, *args], port, env, stdin=subprocess.PIPE), go)

    def begin(self, client, go=True):
        if go:
            with contextlib.suppress(OSError):
                client.stdin.write(b'\n')
        return client

    def raw(self, role, port, *case, program=RAW):
        """A peer on plain verbs; a server has said that it listens."""
        p = self.native_spawn([program, role, HOST, port, *case])
        if role == 'server':
            self.expect_line(p, b'listening\n')
        return p

    def hostile(self, role, port, case):
        return self.raw(role, port, case, program=HOSTILE)

    def told(self, p, word, timeout=30, needed=True):
        """The rest of the next line that begins with `word`; None if the program ended without saying it."""
        with self.limit(p, timeout * SLOW):
            for raw in iter(p.stdout.readline, b''):
                line = raw.decode(errors='replace').rstrip('\n')
                if line.split(' ', 1)[0].rstrip(':') == word:
                    return line.partition(' ')[2]
        if needed:
            raise AssertionError(f'{p.args[:6]} did not say {word!r}: ended with {p.wait(5)}, {p.stderr.read()[-800:]!r}')
        return None

    @contextlib.contextmanager
    def limit(self, p, seconds):
        timer = harness_timer(p, seconds)
        try:
            yield
        finally:
            timer.cancel()

    def over(self, p, timeout=20):
        """Lets a client go; its exit code."""
        with contextlib.suppress(OSError):
            p.stdin.close()
        try:
            return p.wait(timeout * SLOW)
        except subprocess.TimeoutExpired:
            p.kill()
            return 'hangs'

    def doze(self, server, seconds):
        """The server's only thread sleeps, from about now on. Call what is returned to wait for its waking."""
        client = server.plain()
        client.sock.sendall(client.encode('DEBUG', 'SLEEP', seconds * SLOW))
        time.sleep(0.2 * SLOW)

        def wake():
            self.assertEqual(client.reply(), 'OK')
        return wake

    def carried(self, p, only=None):
        """The shimmed program, still there, moved its bytes over RDMA; only: 'in' or 'out', where there is one way."""
        if not only:
            return self.assert_carried(p.pid, 'the program under the shim')
        found = harness.stat(p.pid)
        self.assertIsNotNone(found, 'vkrdma-stat does not know the program under the shim')
        for name in (f'bytes_{only}', f'immediates_{only}'):
            self.assertGreater(found['totals'][name], 0, name)
        self.proofs += 1
        return found


def harness_timer(p, seconds):
    timer = common.threading.Timer(seconds, p.kill)
    timer.daemon = True
    timer.start()
    return timer


def main():
    if harness.MODE != 'carried':
        raise SystemExit(77)
    if not NATIVE:
        print('skipped: there is no native Valkey with RDMA (scripts/build-native.sh builds it)')
        raise SystemExit(77)
    with open(os.path.join(NATIVE, 'VERSION'), encoding='ascii') as f:
        print(f'native Valkey {f.read().strip()}', flush=True)
    harness.main()
