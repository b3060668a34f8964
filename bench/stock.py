# SPDX-License-Identifier: BSD-2-Clause
"""Stock valkey-server and valkey-benchmark (or Redis's), over TCP and under the shim, with the proof of which it was."""
import collections
import contextlib
import re
import resource
import shutil
import socket
import subprocess

from common import Failed, free_port, wait_port

LEVELS = {'p50': 50.0, 'p99': 99.0, 'p999': 99.9}

# How the client and the server of a run are started: Bench.env()'s kinds, and further variables for both.
Way = collections.namedtuple('Way', 'client server env')
TCP = Way('plain', 'plain', ())
RDMA = Way('shim', 'serve', ())


def parse(text):
    """{'SET': {'rps', 'p50_ms', 'p99_ms', 'p999_ms'}} from what valkey-benchmark prints."""
    result = {}
    for section in re.split(r'^=+ ', text.replace('\r', '\n'), flags=re.M)[1:]:
        name = section.split(' ', 1)[0]
        steps = sorted((float(ms), float(share)) for share, ms in
                       re.findall(r'^([\d.]+)% <= ([\d.]+) milliseconds', section, re.M))
        rps = re.search(r'throughput summary: ([\d.]+|inf) requests', section)
        if steps and rps:
            result[name] = {'rps': float(rps.group(1)),
                            **{k + '_ms': next(ms for ms, share in steps if share >= v) for k, v in LEVELS.items()}}
    return result


def thousands(x):
    return f'{x / 1000:.1f}k' if x >= 1000 else f'{x:.0f}'


def children_cpu():
    r = resource.getrusage(resource.RUSAGE_CHILDREN)
    return r.ru_utime, r.ru_stime


class Stock:
    """One server for each way that is asked for, kept until stop()."""

    def __init__(self, bench):
        self.b, self.servers = bench, {}
        self.kind = next((k for k in ('valkey', 'redis') if shutil.which(f'{k}-server') and shutil.which(f'{k}-benchmark')),
                         None)
        if not self.kind:
            raise Failed('neither valkey-server and valkey-benchmark nor redis-server and redis-benchmark are installed')
        out = subprocess.run([f'{self.kind}-server', '--version'], capture_output=True, text=True, check=False).stdout
        words = dict(w.split('=', 1) for w in out.split() if '=' in w)
        self.version = f'{self.kind}-server {words.get("v", "?")}'

    def server(self, way, *options):
        """(process, port)"""
        key = way.server, way.env, options
        if key not in self.servers or self.servers[key][0].poll() is not None:
            port = free_port()
            p = self.b.spawn([f'{self.kind}-server', '--port', port, '--bind', self.b.host, '--save', '', '--appendonly', 'no',
                              '--dir', self.b.dir, *options], way.server, port, extra=way.env, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
            wait_port(self.b.host, port, p)
            self.servers[key] = p, port
        return self.servers[key]

    def stop(self):
        for p, _ in self.servers.values():
            self.b.stop(p)
        self.servers = {}

    def shimmed(self):
        return {p.pid: self.b.totals(p.pid) for key, (p, _) in self.servers.items() if key[0] == 'serve'}

    def benchmark(self, way, *args, wrap=(), timeout=120):
        """What valkey-benchmark found, and what its server's counters grew by; those of all others must not."""
        server, port = self.server(way)
        before = self.shimmed()
        cpu = children_cpu()
        out = self.b.finish(self.b.spawn([*wrap, f'{self.kind}-benchmark', '-h', self.b.host, '-p', port, *args], way.client,
                                         port, extra=way.env), timeout)
        cpu = [b - a for a, b in zip(cpu, children_cpu())]
        after = self.shimmed()
        proof = {}
        for pid, t in after.items():
            grown = {k: t[k] - before[pid][k] for k in t}
            moved = grown['immediates_in'], grown['immediates_out']
            if pid == server.pid:
                proof = grown
                if min(moved) <= 0:
                    raise Failed(f'{" ".join(str(a) for a in args)}: no immediate was counted, so this was not RDMA')
            elif max(moved) > 0:
                raise Failed(f'{" ".join(str(a) for a in args)}: it touched another server over RDMA')
        got = parse(out)
        if not got:
            raise Failed(f'no results in {out[-300:]!r}')
        return got, proof, cpu

    def requests(self, seconds, *args, least=64, tests='set,get'):
        """How many requests take about so many seconds over TCP."""
        n = least
        while True:
            got, _, _ = self.benchmark(TCP, '-t', tests, *args, '-n', n)
            slow = min(v['rps'] for v in got.values())
            if n / slow > seconds / 8 or n > 4e6:
                return max(int(slow * seconds), least)
            n *= 8

    def server_cpu(self, way):
        """(user, system) seconds of the server, asked over TCP."""
        _, port = self.server(way)
        with contextlib.closing(socket.create_connection((self.b.host, port), 10)) as s:
            s.settimeout(10)
            s.sendall(b'INFO cpu\r\n')
            text = b''
            while b'used_cpu_user_children' not in text:
                more = s.recv(65536)
                if not more:
                    break
                text += more
        words = dict(line.split(':', 1) for line in text.decode().splitlines() if ':' in line)
        if 'used_cpu_user' not in words:
            raise Failed('INFO cpu: no answer')
        return float(words['used_cpu_user']), float(words['used_cpu_sys'])
