# SPDX-License-Identifier: BSD-2-Clause
"""Many connections to one server: descriptors, memory and idle time of each, the rate at which they come, and come and go."""
import contextlib
import json
import os
import re
import resource
import select
import subprocess
import time

from common import Failed, pairs, progress, summary
from stock import RDMA, TCP, Stock

WANTED, SPARE = 10000, 250
FDS = 2  # of a carried connection, in each of the two processes; measured below
KINDS = {'churn': 'connect, close', 'request': 'connect, PING, close'}


def limit():
    """How many connections the hard limit of descriptors leaves room for."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return WANTED if hard == resource.RLIM_INFINITY else max(min(WANTED, (hard - SPARE) // FDS), 1)


def memory(pid):
    """Bytes: resident, its share of what is resident in several processes, and of that: shared memory."""
    with open(f'/proc/{pid}/smaps_rollup', encoding='ascii') as f:
        words = dict(re.findall(r'^(\w+):\s+(\d+) kB', f.read(), re.M))
    return {k: int(words.get(name, 0)) << 10 for k, name in (('rss', 'Rss'), ('pss', 'Pss'), ('pss_shared', 'Pss_Shmem'))}


def fds(pid):
    return len(os.listdir(f'/proc/{pid}/fd'))


def cpu_seconds(pid):
    with open(f'/proc/{pid}/stat', encoding='ascii', errors='replace') as f:
        words = f.read().rsplit(')', 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf('SC_CLK_TCK')


class Client:
    """conns, and what it answers."""

    def __init__(self, bench, way, kind, port, count):
        self.b, self.what = bench, f'conns {kind} {count}'
        self.p = bench.spawn([bench.program('conns'), kind, bench.host, port, count], way.client, port, stdin=subprocess.PIPE)

    def answer(self, timeout):
        ready, _, _ = select.select([self.p.stdout], [], [], timeout)
        if not ready:
            raise Failed(f'{self.what}: no answer in {timeout} s')
        line = self.p.stdout.readline()
        if not line.startswith('{'):
            raise Failed(f'{self.what}: {self.p.stderr.read()[-400:]}')
        return json.loads(line)

    def probe(self, count):
        self.p.stdin.write(f'probe {count}\n')
        self.p.stdin.flush()
        return self.answer(60)

    def close(self):
        self.b.stop(self.p)


@contextlib.contextmanager
def client(*args):
    c = Client(*args)
    try:
        yield c
    finally:
        c.close()


def gauges(bench, pid):
    return bench.process(pid)['gauges']


def proven(bench, way, c, before, server, count):
    """Every connection was RDMA, at both ends, and none of a TCP run was."""
    if way.client != 'shim':
        return {'immediates': 0}
    own = bench.totals(c.p.pid)
    grown = {k: v - before[k] for k, v in bench.totals(server.pid).items()}
    for name, t in (('client', own), ('server', grown)):
        if t['conns_rdma'] < count or t['conns_tcp']:
            raise Failed(f'{c.what}: of the {name}\'s connections {t["conns_rdma"]} were RDMA and {t["conns_tcp"]} TCP')
    return {'immediates': grown['immediates_in'] + grown['immediates_out'], 'conns_rdma': grown['conns_rdma']}


def held(stock, name, way, count):
    """Count connections at once: what they take and what they cost while nothing happens."""
    b = stock.b
    server, port = stock.server(way, '--maxclients', str(count + SPARE // 2), '--tcp-backlog', '1024')
    before, first = b.totals(server.pid) if way.server == 'serve' else None, memory(server.pid)
    server_fds = fds(server.pid)
    with client(b, way, 'hold', port, 1) as c:
        c.answer(30)
        alone, client_fds = memory(c.p.pid), fds(c.p.pid)
        single = c.probe(2000)
    with client(b, way, 'hold', port, count) as c:
        rate = c.answer(60 + count / 20)
        proof = proven(b, way, c, before, server, count) if before else {'immediates': 0}
        busy, start = [cpu_seconds(p.pid) for p in (server, c.p)], time.monotonic()
        time.sleep(1 if b.quick else 5)
        idle = [(cpu_seconds(p.pid) - x) / (time.monotonic() - start) for p, x in zip((server, c.p), busy)]
        now = {'server': memory(server.pid), 'client': memory(c.p.pid)}
        row = {'way': name, 'count': count, 'per_second': rate['per_second'], 'connect_p50_us': rate['p50_us'],
               'connect_p99_us': rate['p99_us'], **proof,
               'server_fds_each': round((fds(server.pid) - server_fds) / count, 2),
               'client_fds_each': round((fds(c.p.pid) - client_fds) / max(count - 1, 1), 2),
               'server_rss_each': (now['server']['rss'] - first['rss']) / count, 'client_rss_each': (now['client']['rss'] - alone['rss']) / count,
               'together_pss': now['server']['pss'] + now['client']['pss'],
               'together_shared': now['server']['pss_shared'] + now['client']['pss_shared'],
               'idle_cpu': dict(zip(('server', 'client'), idle)), 'probe_alone_p50_us': single['p50_us']}
        if before:
            g = gauges(b, server.pid), gauges(b, c.p.pid)
            row['memory_each'] = dict(zip(('server', 'client'), (x['mem_per_rdma_connection'] for x in g)))
        probe = c.probe(2000)
        row.update(probe_p50_us=probe['p50_us'], probe_p99_us=probe['p99_us'])
    return row


def come_and_go(stock, kind, count):
    rates, took, immediates = {'tcp': [], 'rdma': []}, {'tcp': [], 'rdma': []}, 0
    for i in range(stock.b.reps):
        for name, way in (('tcp', TCP), ('rdma', RDMA)) if i % 2 == 0 else (('rdma', RDMA), ('tcp', TCP)):
            server, port = stock.server(way)
            before = stock.b.totals(server.pid) if name == 'rdma' else None
            with client(stock.b, way, kind, port, count) as c:
                got = c.answer(60 + count / 10)
                if before:
                    immediates += proven(stock.b, way, c, before, server, count)['immediates']
            rates[name].append(got['per_second'])
            took[name].append(got['p99_us'])
    return {'kind': kind, 'count': count, 'tcp': summary(rates['tcp']), 'rdma': summary(rates['rdma']),
            'ratio': pairs(rates['tcp'], rates['rdma']), 'tcp_p99_us': summary(took['tcp'])['median'],
            'rdma_p99_us': summary(took['rdma'])['median'], 'immediates': immediates}


def run(bench):
    stock = Stock(bench)
    out = {'server': stock.version, 'limit': limit(), 'held': [], 'rows': [], 'failures': []}
    for kind in KINDS:
        progress(f'connections: {KINDS[kind]}')
        try:
            out['rows'].append(come_and_go(stock, kind, 200 if bench.quick else 2000))
        except Failed as e:
            out['failures'].append(f'{kind}: {e}')
            progress(f'  FAILED: {e}')
    counts = [100, min(1000, out['limit'])] + ([] if bench.quick else [out['limit']])
    for count in sorted(set(counts)):
        for name, way in (('tcp', TCP), ('rdma', RDMA)):
            progress(f'connections: {count} at once, {name}')
            stock.stop()  # each finds a server that has seen nothing
            try:
                out['held'].append(held(stock, name, way, count))
            except (Failed, OSError) as e:
                out['failures'].append(f'{count} at once, {name}: {e}')
                progress(f'  FAILED: {e}')
    stock.stop()
    return out


def kib(n):
    return f'{n / 1024:.1f}'


def markdown(r, reps):
    out = [f'{r["server"]}; a client that opens them one after another. Connections a second, median (quartiles) of {reps} interleaved'
           ' pairs; ratio RDMA/TCP pair by pair.', '',
           '| what | connections | TCP | RDMA | RDMA/TCP | p99 TCP / RDMA, us | immediates |', '|---' * 7 + '|']
    for x in r['rows']:
        t, d, q = x['tcp'], x['rdma'], x['ratio']
        out.append(f'| {KINDS[x["kind"]]} | {x["count"]} | {t["median"]:.0f} ({t["q1"]:.0f} to {t["q3"]:.0f}) '
                   f'| {d["median"]:.0f} ({d["q1"]:.0f} to {d["q3"]:.0f}) | **{q["median"]:.2f}** ({q["min"]:.2f} to {q["max"]:.2f}) '
                   f'| {x["tcp_p99_us"]:.0f} / {x["rdma_p99_us"]:.0f} | {x["immediates"] or ""} |')
    out += ['', f'Held at once; the hard limit of descriptors leaves room for {r["limit"]} here. KiB a connection: of memory regions and'
            ' queue buffers as vkrdma-stat has it, and growth of what is resident in each process; together: the two processes, what they share'
            ' counted once. Idle: processor time while nothing happens. PING: p50 on one connection while that many are open'
            ' (and while it is the only one).', '',
            '| connections | way | fds each, server / client | opened a second | regions and queues, KiB, server / client | resident, KiB,'
            ' server / client | together, MiB (shared) | idle, server / client | PING, us | immediates |', '|---' * 10 + '|']
    for x in r['held']:
        own = f'{kib(x["memory_each"]["server"])} / {kib(x["memory_each"]["client"])}' if 'memory_each' in x else ''
        out.append(f'| {x["count"]} | {x["way"]} | {x["server_fds_each"]:g} / {x["client_fds_each"]:g} | {x["per_second"]:.0f} | {own} '
                   f'| {kib(x["server_rss_each"])} / {kib(x["client_rss_each"])} | {x["together_pss"] / 2**20:.0f} ({x["together_shared"] / 2**20:.0f}) '
                   f'| {x["idle_cpu"]["server"]:.1%} / {x["idle_cpu"]["client"]:.1%} | {x["probe_p50_us"]:.0f} ({x["probe_alone_p50_us"]:.0f}) '
                   f'| {x["immediates"] or ""} |')
    out += [f'\nFailed: {f}' for f in r['failures']]
    return '\n'.join(out)
