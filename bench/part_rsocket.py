# SPDX-License-Identifier: BSD-2-Clause
"""rdma-core's rsocket preload (scripts/rsocket.sh) on a real device: which stock programs survive it, and how fast those are.

The preload goes over to TCP where it cannot have RDMA, so that a program counts as carried only if the device's packets moved; the same
holds for the shim, beside its own counters.
"""
import contextlib
import glob
import os
import shutil
import signal
import subprocess
import sys
import time

from common import Failed, free_port, pairs, progress, summary, wait_port
from stock import parse, thousands

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..')
START = 60  # seconds for a server to begin, in a guest
FEWEST = 8  # packets: less than any connection with a byte on it takes
REDIS_PY = ('import redis, sys; r = redis.Redis(sys.argv[1], int(sys.argv[2])); r.set("k", "v" * 5000); '
            'assert r.get("k") == b"v" * 5000; r.delete("k")')


def folder():
    out = subprocess.run([os.path.join(ROOT, 'scripts', 'rsocket.sh'), '--cached'], capture_output=True, text=True, timeout=60, check=False)
    if not out.stdout.strip():
        raise Failed('the rsocket preload has not been fetched: scripts/rsocket.sh')
    return out.stdout.strip()


def packets():
    """Sent by all devices of this machine."""
    paths = glob.glob('/sys/class/infiniband/*/ports/*/hw_counters/sent_pkts') or glob.glob('/sys/class/infiniband/*/ports/*/counters/port_xmit_packets')
    total = 0
    for path in paths:
        with open(path, encoding='ascii') as f:
            total += int(f.read())
    return total


class Pair:
    """A server and its clients, all under the preload or all under the shim."""

    def __init__(self, bench, how, kind, run):
        self.b, self.how, self.kind, self.run = bench, how, kind, run
        self.port = free_port()
        self.server = None

    def argv(self, argv):
        return [self.run, *argv] if self.how == 'rsocket' else argv

    def start(self):
        log = open(os.path.join(self.b.dir, f'{self.how}-{self.kind}.log'), 'a+', encoding='utf-8')  # its output does not start anew where we read
        self.server = self.b.spawn(self.argv([f'{self.kind}-server', '--port', self.port, '--bind', self.b.host, '--save', '',
                                              '--protected-mode', 'no', '--dir', self.b.dir]),
                                   'serve' if self.how == 'shim' else 'plain', self.port, stdout=log, stderr=log)
        deadline = time.monotonic() + START
        while 'Ready to accept connections' not in self.said(log):
            if self.server.poll() is not None:
                raise Failed(f'the server ended with {self.ended(self.server.returncode)}: {self.last(log)}')
            if time.monotonic() > deadline:
                raise Failed(f'the server was not ready within {START} s: {self.last(log)}')
            time.sleep(0.1)
        if self.how == 'shim':
            wait_port(self.b.host, self.port, self.server)
        log.close()

    @staticmethod
    def said(log):
        log.seek(0)
        return log.read()

    def last(self, log):
        lines = [x.strip() for x in self.said(log).splitlines() if x.strip()]
        return lines[-1][:120] if lines else 'no output'

    @staticmethod
    def ended(code):
        return f'signal {signal.Signals(-code).name}' if code < 0 else f'exit code {code}'

    def client(self, argv, timeout):
        """What it printed. Raises Failed with the way it failed."""
        before = packets()
        p = self.b.spawn(self.argv([str(a).replace('PORT', str(self.port)) for a in argv]), 'shim' if self.how == 'shim' else 'plain', self.port,
                         start_new_session=True)
        try:
            out, err = p.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(p.pid, signal.SIGKILL)
            p.communicate()
            raise Failed(f'no end within {timeout} s') from None
        if p.returncode:
            raise Failed(f'{self.ended(p.returncode)}: {(err or out).strip()[-120:]}')
        if self.server.poll() is not None:
            raise Failed(f'the server ended with {self.ended(self.server.returncode)}')
        moved = packets() - before
        if moved < FEWEST:
            raise Failed(f'it went over TCP: the device sent {moved} packets')
        return out, moved

    def stop(self):
        if self.server:
            self.b.stop(self.server, signal.SIGKILL)


def programs(host, quick):
    """name, server kind, client's argv, whether it measures"""
    n = 300 if quick else 2000
    for kind in ('valkey', 'redis'):
        if not shutil.which(f'{kind}-server'):
            continue
        yield f'{kind}-cli SET', kind, [f'{kind}-cli', '-h', host, '-p', 'PORT', 'SET', 'a', 'b'], False
        yield f'{kind}-cli -r 20 PING', kind, [f'{kind}-cli', '-h', host, '-p', 'PORT', '-r', '20', 'PING'], False
        for c, p in ((1, 1), (10, 1), (10, 16)):
            yield (f'{kind}-benchmark SET and GET, -c {c} -P {p}', kind,
                   [f'{kind}-benchmark', '-h', host, '-p', 'PORT', '-t', 'set,get', '-c', c, '-P', p, '-n', n * p], True)
        yield 'python3-redis', kind, ['/usr/bin/python3', '-c', REDIS_PY, host, 'PORT'], False


def attempt(bench, run, how, kind, argv, timeout, measures):
    pair = Pair(bench, how, kind, run)
    try:
        pair.start()
        out, moved = pair.client(argv, timeout)
        if not measures:
            return {'packets': moved}
        got = parse(out)
        if set(got) != {'SET', 'GET'}:
            raise Failed(f'no results in {out[-200:]!r}')
        return {'packets': moved, **{k: v['rps'] for k, v in got.items()}}
    finally:
        pair.stop()


def compare(bench, run, name, kind, argv, timeout, measures):
    row = {'what': f'{name}, {kind}-server', 'measures': measures, 'packets': {}, 'rps': {}}
    got = {'rsocket': [], 'shim': []}
    for i in range(bench.reps if measures else 1):
        for how in ('rsocket', 'shim') if i % 2 == 0 else ('shim', 'rsocket'):
            if how + '_failed' in row:
                continue
            try:
                got[how].append(attempt(bench, run, how, kind, argv, timeout, measures))
            except Failed as e:
                row[how + '_failed'] = str(e)
                progress(f'  {how}: {e}')
    row['packets'] = {how: sum(r['packets'] for r in v) for how, v in got.items()}
    if measures:
        row['rps'] = {how: {t: summary([r[t] for r in v]) for t in ('SET', 'GET')} for how, v in got.items() if v}
        if not any(k.endswith('_failed') for k in row):
            both = {how: [r['SET'] + r['GET'] for r in v] for how, v in got.items()}
            row['ratio'] = pairs(both['rsocket'], both['shim'])
    return row


def run(bench):
    if bench.provider != 'verbs':
        raise Failed('rsocket needs a real device: --provider verbs --host ADDRESS, or the test bed (scripts/testbed.sh --list bench)')
    path = folder()
    with open(os.path.join(path, 'VERSION'), encoding='ascii') as f:
        version = f.read().strip()
    rows, failures = [], []
    for name, kind, argv, measures in programs(bench.host, bench.quick):
        progress(f'rsocket: {name}, {kind}-server')
        row = compare(bench, os.path.join(path, 'run'), name, kind, argv, 30 if bench.quick else 90, measures)
        rows.append(row)
        if 'shim_failed' in row:  # what rsocket does is a finding, what the shim does not is a failure
            failures.append(f'{row["what"]}: {row["shim_failed"]}')
    return {'version': version, 'python': sys.version.split()[0], 'rows': rows, 'failures': failures}


def cell(row, how):
    if how + '_failed' in row:
        return row[how + '_failed'].replace('|', '/').replace('\n', ' ')
    if not row['measures']:
        return 'works'
    return ' / '.join(thousands(row['rps'][how][t]['median']) for t in ('SET', 'GET'))


def markdown(r, reps):
    out = [f'librspreload.so of rdma-core {r["version"]}, server and client under it, against the same under the shim. Requests a second,'
           f' SET / GET, medians of {reps} interleaved pairs; ratio of their sums, pair by pair, median (lowest to highest). A program counts as'
           ' carried only where the device sent packets.', '',
           '| program | rsocket | shim | shim/rsocket | packets rsocket / shim |', '|---' * 5 + '|']
    for x in r['rows']:
        q = x.get('ratio')
        out.append(f'| {x["what"]} | {cell(x, "rsocket")} | {cell(x, "shim")} | '
                   + (f'**{q["median"]:.2f}** ({q["min"]:.2f} to {q["max"]:.2f})' if q else '')
                   + f' | {x["packets"]["rsocket"]} / {x["packets"]["shim"]} |')
    lost = [x['what'] for x in r['rows'] if 'rsocket_failed' in x]
    out += ['', 'Do not survive rsocket: ' + ('; '.join(lost) if lost else 'none') + '.']
    out += [f'\nFailed: {f}' for f in r['failures']]
    return '\n'.join(out)
