# SPDX-License-Identifier: BSD-2-Clause
"""Programs with RDMA of their own (Valkey built by scripts/build-native.sh) beside the shimmed ones of tests/interop.

A native server serves RDMA on a port where nothing listens for TCP, so what reaches it came by RDMA; the harness speaks
TCP to its other port. A native program finds softverbs by LD_LIBRARY_PATH; on a device it uses the system's libraries.
"""
import os
import re
import subprocess
import sys

os.environ['VKR_MODE'] = 'carried'  # there is no other: read by harness when it is imported
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(os.path.join(HERE, '..', '..'))
sys.path.insert(0, os.path.join(ROOT, 'tests', 'interop'))

import harness  # noqa: E402

LOCAL = '127.0.0.1'  # no device stands behind it, but softverbs does
HOST6 = os.environ.get('VKR_HOST6', '::1')  # '' where there is no IPv6
SOFT = harness.PROVIDER == 'soft'


def native_folder():
    """Where the native programs are: VKR_NATIVE, or the cache of build-native.sh; None if they were not built."""
    if os.environ.get('VKR_NATIVE'):
        return os.environ['VKR_NATIVE']
    out = subprocess.run([os.path.join(ROOT, 'scripts', 'build-native.sh'), '--cached'], capture_output=True, text=True,
                         check=False, timeout=30)
    return out.stdout.strip() or None


FOLDER = native_folder()


def program(name):
    return os.path.join(FOLDER, 'bin', name)


def native_env(extra=None):
    env = {k: v for k, v in os.environ.items() if not k.startswith('VKRDMA_') and k != 'LD_PRELOAD'}
    if SOFT:
        env['LD_LIBRARY_PATH'] = os.path.join(harness.BUILD, 'softlib')
    env['VKR_HOST'] = harness.HOST
    env.update(extra or {})
    return env


class NativeServer(harness.Server):
    """valkey-server with its own RDMA: `rdma` is that port, `port` the TCP one."""

    def __init__(self, case, args, port, bind, env):
        super().__init__(case, 'valkey', args, port, False, [], None, None)
        self.kind = 'native'
        self.rdma = harness.free_port()
        self.argv[0] = program('valkey-server')
        rdma_bind = bind if SOFT else [b for b in bind if b != LOCAL]
        self.argv += ['--bind', *bind, '--rdma-bind', *rdma_bind, '--rdma-port', str(self.rdma)]
        self.env = native_env(env)


class Case(harness.Case):
    """Starts servers and clients of both sorts."""

    def serve(self, kind, *args, bind=None, env=None):
        """kind: native, or valkey or redis under the shim."""
        bind = bind or [harness.HOST]
        if kind == 'native':
            s = NativeServer(self, args, harness.free_port(), bind, env)
            self.servers.append(s)
            return s.start()
        s = self.server(*args, '--bind', *bind, kind=kind, env=env)
        if s.kind != kind:
            self.skipTest(f'{kind}-server is not installed')
        s.rdma = s.port
        return s

    def launch(self, client, argv, server, env=None, **kwargs):
        """A client in the background: under the shim, which may not fall back, or as it is."""
        if client.shimmed:
            # A native server that frees a hundred connections answers nobody meanwhile; on a busy machine for seconds.
            return self.spawn(argv, server.rdma, {'VKRDMA_CONNECT_TIMEOUT': '20000', **(env or {})}, **kwargs)
        for stream in ('stdin', 'stdout', 'stderr'):
            kwargs.setdefault(stream, subprocess.DEVNULL if stream == 'stdin' else subprocess.PIPE)
        return self.track(subprocess.Popen([str(a) for a in argv], env=native_env(env), bufsize=0,
                                           preexec_fn=harness.die_with_parent, **kwargs))

    def call(self, client, argv, server, data=None, timeout=60, expect=0, env=None):
        proc = self.launch(client, argv, server, env, stdin=subprocess.DEVNULL if data is None else subprocess.PIPE)
        return self.finish(proc, timeout, data, expect)

    def proved_client(self, client, proc):
        """A living client under the shim has moved bytes by immediates; its counters."""
        if not client.shimmed:
            return None
        harness.wait('the client to have moved bytes by RDMA',
                     lambda: self.totals(proc.pid) and min(self.totals(proc.pid).values()) > 0)
        self.proofs += 1
        return self.totals(proc.pid)

    @staticmethod
    def totals(pid):
        p = harness.stat(pid)
        return harness.carried_totals(p) if p else None

    def logged_rdma(self):
        """Connections that the shim's clients of this test reported as carried."""
        path = os.path.join(self.dir, 'client-shim.log')
        if not os.path.exists(path):
            return 0
        with open(path, encoding='utf-8', errors='replace') as f:
            return len(re.findall(r'connection to \S+ is RDMA', f.read()))
