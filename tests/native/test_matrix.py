# SPDX-License-Identifier: BSD-2-Clause
"""Every client with every server, native or under the shim: a cell is one pair, a column one topic.

VKR_CELLS: only cells whose name (CLIENT.SERVER) matches this expression; VKR_TOPICS: only topics that match. VKR_MATRIX: a folder for the results, one file a
cell; table.py puts them together. A topic that a native pair alone does not survive is theirs, and is shown as that.
"""
import contextlib
import csv
import functools
import hashlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
import unittest

import links
import peers
from peers import HOST6, harness

SERVERS = ('native', 'valkey', 'redis')
# Around the lengths of receive rings: 32 KiB (shim to shim at first), 64 KiB, 256 KiB (the shim towards a native server), 1 MiB
# (a native's). One connection sends them all, so that ends of rings fall everywhere in values and replies.
SIZES = [1, 32767, 32768, 32769, 65535, 65537, 262143, 262144, 262145, 1048575, 1048576, 1048577, 3000000]
LARGE = harness.by_tier(8 << 20, 32 << 20, 64 << 20)
MANY = harness.by_tier(30, 100, 300)
EACH = harness.by_tier(20, 20, 20, 6)  # requests with a value of each size


class Client:
    def __init__(self, name, tool, shimmed):
        self.name, self.tool, self.shimmed = name, tool, shimmed

    def argv(self, server, *args, host=None):
        first = [self.tool] if self.shimmed else [peers.program(self.tool), '--rdma']
        return [*first, '-h', host or harness.HOST, '-p', server.rdma, *args]


CLI = [Client('native-cli', 'valkey-cli', False), Client('valkey-cli', 'valkey-cli', True),
       Client('redis-cli', 'redis-cli', True)]
BENCHMARK = [Client('native-benchmark', 'valkey-benchmark', False), Client('valkey-benchmark', 'valkey-benchmark', True),
             Client('redis-benchmark', 'redis-benchmark', True)]
PYTHON = [Client('python3-redis', None, True)]

PROMISE = 10  # seconds within which both ends know that the link is down
outcomes = {}  # cell: {topic: (word, note)}, and 'proof'


def note(cell, topic, word, text=''):
    outcomes.setdefault(cell, {})[topic] = (word, text)


class Theirs(Exception):
    """A native program failed, and it is known why."""


def topic(method):
    """A test method: retried between natives, whose own hangs are known; its outcome goes to the table."""
    @functools.wraps(method)
    def run(self):
        cell, name = self.cell, method.__name__[len('test_'):]
        pure = self.pure()
        failures = []
        for _ in range(3 if pure and peers.SOFT else 1):  # a hang takes minutes on the test bed
            try:
                self.remarks = [f'{len(failures)} failed before: {failures[0]}'] if failures else []
                method(self)
                note(cell, name, 'ok', '; '.join(self.remarks))
                return
            except unittest.SkipTest as e:
                note(cell, name, '-', str(e))
                raise
            except Theirs as e:
                failures = [str(e)]
                break
            except Exception as e:  # noqa: an error of any kind is the outcome
                failures.append(str(e).splitlines()[0][:200] if str(e) else type(e).__name__)
                if not pure or 'to answer on port' in failures[-1]:
                    note(cell, name, 'FAIL', failures[-1])
                    raise
        note(cell, name, 'theirs', failures[-1])
        print(f'theirs: {cell} {name}: {failures}', flush=True)
    return run


def text_value(seed, size):
    return hashlib.shake_256(f'{seed}/{size}'.encode()).hexdigest(size // 2 + 1)[:size].encode()


class Cell(peers.Case):
    """What all clients share."""
    client = server_kind = cell = None

    def setUp(self):
        super().setUp()
        self.remarks = []
        if self.client.tool and self.client.shimmed:
            self.need(self.client.tool)

    def both(self):
        return [harness.HOST] + ([HOST6] if HOST6 else [])

    def need6(self):
        if not HOST6:
            self.skipTest('no IPv6 address here')

    def pure(self):
        """Nothing of this project takes part."""
        return not self.client.shimmed and self.server_kind == 'native'

    def finish(self, proc, timeout=60, data=None, expect=0):
        # Two natives wait for ever often enough: the patience of a device is not for them.
        return super().finish(proc, timeout / harness.PATIENCE if self.pure() else timeout, data, expect)

    @staticmethod
    def clients_of(server):
        """Without the one that asks."""
        with contextlib.closing(harness.Resp(server.port, server.host)) as c:
            return int(c.info('clients')['connected_clients']) - 1

    def prove(self):
        """At the end of each topic: a shimmed server's counters, a shimmed client's report."""
        for s in self.servers:
            if s.kind != 'native' and s.alive():
                p = self.assert_carried(s.pid, f'{s.kind}-server')
                self.add_proof(harness.carried_totals(p))
        if self.client.shimmed:
            self.assertGreater(self.logged_rdma(), 0, 'no client reported a carried connection')
            self.assert_no_fallback()
        elif self.server_kind == 'native':
            # Nothing listens for TCP on that port, so the requests that were served came by RDMA.
            for s in self.servers:
                if s.alive():
                    with self.assertRaises(OSError):
                        harness.Resp(s.rdma)
                    stats = s.plain().info('stats')
                    self.add_proof({'bytes_in': int(stats['total_net_input_bytes']),
                                    'bytes_out': int(stats['total_net_output_bytes'])})

    def add_proof(self, totals):
        proof = outcomes.setdefault(self.cell, {}).setdefault('proof', {})
        for key, value in totals.items():
            proof[key] = proof.get(key, 0) + value

    def dropped(self, server, what):
        harness.wait(f'the server to drop {what}', lambda: self.clients_of(server) == 0, 20)

    def prove_client(self, server, proc):
        """It is connected, and if it is the shim's has moved bytes; beside a native server its counters are the cell's."""
        harness.wait('the client', lambda: self.clients_of(server) >= 1)
        totals = self.proved_client(self.client, proc)
        if totals and self.server_kind == 'native':
            self.add_proof(totals)

    def killed_while(self, server, proc):
        """proc is connected: kill -9, and the server drops it; others are served on."""
        self.prove_client(server, proc)
        proc.kill()
        proc.wait(20)
        self.dropped(server, 'a killed client')
        self.small(server)

    def restarted(self, server):
        server.kill()
        server.start()

    # Each sort of client: a small exchange, to the given address of the server.
    def small(self, server, host=None):
        raise NotImplementedError

    # Links and devices.
    def waiting(self, server, env):
        """A client of the cell, connected, that waits for its server or is at work."""
        raise NotImplementedError

    def struck(self, strike):
        """A server and its client when the link or the device goes from under them: both know within 10 s."""
        if not links.BREAKABLE:
            self.skipTest("it would break a device that is not the test bed's own")
        link = links.Link(self)
        s = self.serve(self.server_kind, bind=[harness.HOST] + [peers.LOCAL] * (not peers.SOFT), env=link.env)
        s.host = peers.LOCAL
        link.release = lambda: self.server_kind == 'native' and s.alive() and s.kill()
        self.small(s)
        self.dropped(s, 'the first client')
        proc = self.waiting(s, link.env)
        self.prove_client(s, proc)
        since = time.monotonic()
        strike(link)
        self.unaware(s, proc, since)
        return s, link

    def unaware(self, server, proc, since):
        """The shimmed ends must know in time; of natives it is told: one that only waits never knows (T13)."""
        def left():
            return ['client'] * (proc.poll() is None and (not self.client.shimmed or links.open_by_rdma(proc.pid) > 0)) + \
                ['server'] * (self.clients_of(server) > 0)
        with contextlib.suppress(AssertionError):
            harness.wait('both sides', lambda: not left(), max(0, PROMISE - (time.monotonic() - since)), 0.1, 1)
        late = left()
        shim = {'client': self.client.shimmed, 'server': self.server_kind != 'native'}
        self.remarks += [f'{time.monotonic() - since:.0f} s later the native {end} does not know' for end in late if not shim[end]]
        self.assertEqual([end for end in late if shim[end]], [], f'did not know {time.monotonic() - since:.1f} s later')
        proc.kill()
        proc.wait(20)

    def works_again(self, server, link):
        if self.server_kind == 'native' and link.renewed:
            server.env.pop('VKRDMA_SOFT_FAULT', None)  # its link has been through that
            if server.alive():
                server.kill()
            server.start()  # it knows no device but its first
        elif self.server_kind != 'native':
            harness.wait('the listener', lambda: 'rdma' in [x['transport'] for x in harness.stat(server.pid)['listeners']], 60)
        self.small(server)

    @topic
    def test_link_down(self):
        s, link = self.struck(links.Link.down)
        self.assertTrue(s.alive())
        link.up()
        self.works_again(s, link)

    @topic
    def test_device_removed(self):
        if self.pure():
            self.skipTest('nothing of this project takes part')
        s, link = self.struck(links.Link.remove)
        if self.server_kind == 'native':
            s.kill()  # it would hold the device for ever
        else:
            harness.wait('the server to let go of the device', lambda: self.lets_go(s), 20)
            self.assertEqual(s.plain()('PING'), 'PONG')
        harness.wait('the device to be gone', link.gone, 30)
        link.back()
        self.works_again(s, link)

    @staticmethod
    def lets_go(server):
        gauges = server.gauges()
        return not gauges['qps'] and not gauges['mrs'] and not links.device_files(server.pid)

    def addresses(self):
        """A listener on one address serves that one only; one on any address serves all."""
        one = self.serve(self.server_kind)
        self.small(one)
        # A native client waits for ever, or crashes, when a connection is rejected (tests/traps).
        if HOST6 and self.client.shimmed:
            self.refused(one, HOST6)
        every = self.serve(self.server_kind, bind=['0.0.0.0'] + (['::'] if HOST6 else []))
        self.small(every)
        if HOST6:
            self.small(every, HOST6)

    def refused(self, server, host):
        raise NotImplementedError

    @topic
    def test_addresses(self):
        self.addresses()

    @topic
    def test_ipv6(self):
        self.need6()
        s = self.serve(self.server_kind, bind=self.both())
        self.small(s, HOST6)
        self.small(s)


class Cli(Cell):
    def feed(self, server, lines, timeout=60, host=None):
        """Commands on stdin, over one connection."""
        return self.call(self.client, self.client.argv(server, host=host), server, b'\n'.join(lines) + b'\n', timeout)

    def small(self, server, host=None):
        value = text_value('small', 40000)
        self.assertEqual(self.feed(server, [b'SET small ' + value, b'GET small'], 30, host), b'OK\n' + value + b'\n')

    def refused(self, server, host):
        proc = self.launch(self.client, self.client.argv(server, 'PING', host=host), server)
        self.finish(proc, 30, expect=1)
        self.assertIn(b'Could not connect', proc.err)

    @topic
    def test_values(self):
        s = self.serve(self.server_kind)
        values = [text_value('v', n) for n in SIZES]
        lines = [b'SET k%d %s' % (len(v), v) for v in values] + [b'GET k%d' % len(v) for v in reversed(values)]
        got = self.feed(s, lines)
        self.assertTrue(got == b'OK\n' * len(values) + b''.join(v + b'\n' for v in reversed(values)),
                        f'{len(got)} bytes of replies are not the values')
        for v in values:
            self.assertTrue(s.plain()('GET', f'k{len(v)}') == v, f'the server holds another value of {len(v)} bytes')

    @topic
    def test_pipelines(self):
        if not self.client.shimmed:
            self.skipTest("a native cli's --pipe waits for the writability of a completion channel: it never works")
        s = self.serve(self.server_kind)
        count = harness.by_tier(5000, 20000, 100000)
        data = b''.join(harness.Resp.encode('SET', f'p{i}', b'v' * (i * 7 % 900)) for i in range(count))
        out = self.call(self.client, self.client.argv(s, '--pipe'), s, data)
        self.assertIn(f'errors: 0, replies: {count}'.encode(), out)
        self.assertEqual(s.plain()('DBSIZE'), count)
        self.assertEqual(s.plain()('STRLEN', f'p{count - 1}'), (count - 1) * 7 % 900)

    @topic
    def test_large_replies(self):
        s = self.serve(self.server_kind)
        plain = s.plain()
        value = text_value('large', LARGE)
        plain('SET', 'large', value)
        items = [text_value(i, 10000) for i in range(600)]
        plain('RPUSH', 'list', *items)
        got = self.feed(s, [b'GET large', b'LRANGE list 0 -1', b'PING'], 90)
        self.assertTrue(got == value + b'\n' + b'\n'.join(items) + b'\nPONG\n', f'{len(got)} bytes are not the replies')

    @topic
    def test_many(self):
        s = self.serve(self.server_kind)
        procs = [self.launch(self.client, self.client.argv(s, '-r', 50, 'INCR', 'n'), s) for _ in range(max(10, MANY // 5))]
        for p in procs:
            self.finish(p, 60)
        self.assertEqual(s.plain()('GET', 'n'), b'%d' % (50 * len(procs)))

    @topic
    def test_restart(self):
        s = self.serve(self.server_kind)
        proc = self.launch(self.client, self.client.argv(s), s, stdin=subprocess.PIPE)
        for turn in range(3):
            self.ping(proc, 1 if turn == 0 else 3)
            if turn < 2:
                self.restarted(s)
        self.finish(proc, 20, b'')
        self.small(s)

    def ping(self, proc, tries):
        """A cli says that it lost its server and connects anew for a later command."""
        for left in reversed(range(tries)):
            proc.stdin.write(b'PING\n')
            if left == 0 or select.select([proc.stdout], [], [], 3)[0]:
                return self.expect_line(proc, b'PONG\n', 20)

    def waiting(self, server, env):
        proc = self.launch(self.client, self.client.argv(server), server, env, stdin=subprocess.PIPE)
        proc.stdin.write(b'PING\nBLPOP never 0\n')
        self.expect_line(proc, b'PONG\n', 30)
        return proc

    @topic
    def test_client_killed(self):
        s = self.serve(self.server_kind)
        self.killed_while(s, self.waiting(s, None))


class Benchmark(Cell):
    def bench(self, server, *args, tests='set,get', timeout=60, host=None):
        out = self.call(self.client, self.client.argv(server, '-t', tests, '--csv', *args, host=host), server,
                        timeout=timeout).decode()
        rows = {r[0]: float(r[1]) for r in csv.reader(out.splitlines()) if len(r) >= 2 and r[0] != 'test'}
        for name in tests.split(','):
            self.assertTrue([r for r in rows if r.lower().startswith(name) and rows[r] > 0], (name, out))

    def small(self, server, host=None):
        self.bench(server, '-n', 200, '-c', 2, '-d', 20000, host=host)

    def refused(self, server, host):
        proc = self.launch(self.client, self.client.argv(server, '-t', 'get', '-n', 10, '-c', 1, host=host), server)
        if self.client.tool == 'redis-benchmark':  # tries for ever
            with self.assertRaises(subprocess.TimeoutExpired):
                proc.communicate(timeout=3)
            proc.kill()
        else:
            self.finish(proc, 30, expect=None)
            self.assertNotEqual(proc.returncode, 0)

    @topic
    def test_values(self):
        s = self.serve(self.server_kind)
        for size in SIZES:
            self.bench(s, '-n', EACH, '-c', 2, '-d', size)
            self.assertEqual(s.plain()('STRLEN', 'key:__rand_int__'), size)

    @topic
    def test_pipelines(self):
        s = self.serve(self.server_kind)
        n = harness.by_tier(2000, 20000, 200000, 1300)
        self.bench(s, '-n', n, '-c', 10, '-P', 16)
        self.bench(s, '-n', n, '-c', 4, '-P', 128, '-d', 1000)
        self.assertEqual(s.plain().info('stats')['total_error_replies'], '0')

    @topic
    def test_large_replies(self):
        s = self.serve(self.server_kind)
        s.plain()('RPUSH', 'mylist', *[b'x' * 10000] * 600)
        self.bench(s, '-n', harness.by_tier(100, 100, 100, 16), '-c', 4, '-P', 2, tests='lrange_600')

    @topic
    def test_many(self):
        s = self.serve(self.server_kind)
        self.bench(s, '-n', MANY * 20, '-c', MANY)
        self.bench(s, '-n', MANY * 20, '-c', MANY // 2, '--threads', 2)
        self.dropped(s, 'all')

    def waiting(self, server, env):
        """At work, without end."""
        proc = self.launch(self.client, self.client.argv(server, '-t', 'set', '-n', 100000000, '-c', 5, '-d', 3000), server, env,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        # All are connected: valkey-benchmark spins for ever on a connect that failed, over TCP as well.
        harness.wait('all connections', lambda: self.clients_of(server) >= 5)
        c = server.plain()
        harness.wait('traffic', lambda: int(c.info('stats')['total_commands_processed']) > 1000)
        c.close()
        return proc

    @topic
    def test_restart(self):
        s = self.serve(self.server_kind)
        proc = self.waiting(s, None)
        s.kill(signal.SIGKILL)
        why = None
        if self.client.tool == 'redis-benchmark':  # would go on with new connections for ever
            proc.kill()
        else:
            why = self.spins(proc) or self.waits(proc)
            if not why:
                self.assertNotEqual(proc.returncode, 0, 'it did not notice')
        s.start()
        self.small(s)
        if why:
            raise Theirs(why)

    def spins(self, proc):
        """A native benchmark takes each write that fails for EAGAIN, and tries again at once (writeHandler)."""
        if self.client.shimmed:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            proc.wait(10)
            return None
        before = harness.cpu_seconds(proc.pid)
        time.sleep(2)
        if harness.cpu_seconds(proc.pid) - before < 0.5:
            return None  # it waits for something
        proc.kill()
        return 'a native benchmark that finds the end of its connection in a write tries for ever'

    def waits(self, proc):
        """One that waits for ever does so for nothing of ours if it does the same between natives, in this run."""
        try:
            self.finish(proc, 30, expect=None)
        except AssertionError:
            alone = outcomes.get(f'{self.client.name}.native', {}).get('restart', ('', ''))
            if self.pure() or self.client.shimmed or alone[0] != 'theirs':
                raise
            return f'a native benchmark waits for ever, as it does between natives: {alone[1]}'
        return None

    @topic
    def test_client_killed(self):
        s = self.serve(self.server_kind)
        self.killed_while(s, self.waiting(s, None))


class Python(Cell):
    def own(self, name, *args):
        return [harness.PYTHON, os.path.join(peers.HERE, 'clients', name), *args]

    def small(self, server, host=None):
        out = self.call(self.client, self.script('values_sync.py', server.rdma, 10, 40000), server, timeout=30,
                        env={'VKR_HOST': host or harness.HOST})
        self.assertEqual(out.count(b'ok'), 2)

    def refused(self, server, host):
        proc = self.launch(self.client, self.script('values_sync.py', server.rdma, 10), server, {'VKR_HOST': host})
        self.finish(proc, 30, expect=1)
        self.assertIn(b'ConnectionError', proc.err)

    @topic
    def test_values(self):
        s = self.serve(self.server_kind)
        out = self.call(self.client, self.script('values_sync.py', s.rdma, *SIZES), s)
        self.assertEqual(out.count(b'ok'), len(SIZES))

    @topic
    def test_pipelines(self):
        s = self.serve(self.server_kind)
        out = self.call(self.client, self.script('load.py', s.rdma, harness.by_tier(2, 4, 20, 6)), s)
        self.assertGreater(int(out.split()[0]), harness.by_tier(100, 100, 100, 50), 'operations')

    @topic
    def test_large_replies(self):
        s = self.serve(self.server_kind)
        value = text_value('large', LARGE)
        s.plain()('SET', 'large', value)
        want = f'{LARGE} {hashlib.sha256(value).hexdigest()}\n'.encode()
        self.assertEqual(self.call(self.client, self.own('session.py', s.rdma), s, b'get large\nping\nquit\n'), want + b'PONG\n')

    @topic
    def test_many(self):
        s = self.serve(self.server_kind)
        proc = self.launch(self.client, self.script('many.py', s.rdma, MANY), s, stdin=subprocess.PIPE)
        self.expect_line(proc, b'ready\n')
        self.assertEqual(self.clients_of(s), MANY)
        self.assertEqual(self.finish(proc, 60, b'ping\nping\nquit\n'), b'pong\npong\nclosed\n')
        self.dropped(s, 'all')

    @topic
    def test_restart(self):
        s = self.serve(self.server_kind)
        proc = self.launch(self.client, self.own('session.py', s.rdma), s, stdin=subprocess.PIPE)
        proc.stdin.write(b'ping\n')
        self.expect_line(proc, b'PONG\n', 30)
        for _ in range(2):
            self.restarted(s)
            proc.stdin.write(b'again\n')
            self.expect_line(proc, b'PONG\n', 30)
        self.finish(proc, 20, b'quit\n')

    def waiting(self, server, env):
        proc = self.launch(self.client, self.own('session.py', server.rdma), server, env, stdin=subprocess.PIPE)
        proc.stdin.write(b'ping\nblpop never\n')
        self.expect_line(proc, b'PONG\n', 30)
        self.expect_line(proc, b'blocked\n')
        return proc

    @topic
    def test_client_killed(self):
        s = self.serve(self.server_kind)
        self.killed_while(s, self.waiting(s, None))


def cells():
    """A test class for each pair."""
    wanted, topics = re.compile(os.environ.get('VKR_CELLS', '')), re.compile(os.environ.get('VKR_TOPICS', ''))
    for base, clients in ((Cli, CLI), (Benchmark, BENCHMARK), (Python, PYTHON)):
        for client in clients:
            for server in SERVERS:
                name = f'{client.name}.{server}'
                if wanted.search(name):
                    cls = re.sub(r'\W', '_', name)
                    left_out = [t for t in dir(base) if t.startswith('test_') and not topics.search(t[len('test_'):])]
                    yield cls, type(cls, (base,), {'client': client, 'server_kind': server, 'cell': name,
                                                   **dict.fromkeys(left_out)})


def kept(path):
    """On the test bed a cell's topics come from several tests of one run."""
    if 'BED_OUT' in os.environ and os.path.exists(path):
        with open(path, encoding='utf-8') as f:
            return json.load(f)
    return {}


def save():
    folder = os.environ.get('VKR_MATRIX')
    if folder:
        os.makedirs(folder, exist_ok=True)
        for cell, topics in outcomes.items():
            path = os.path.join(folder, cell + '.json')
            before = kept(path)
            proof = {k: before.get('proof', {}).get(k, 0) + topics.get('proof', {}).get(k, 0)
                     for k in {**before.get('proof', {}), **topics.get('proof', {})}}
            with open(path, 'w', encoding='utf-8') as f:
                json.dump({**before, **topics, **({'proof': proof} if proof else {})}, f)
    if os.environ.get('BED_PROOF'):
        with open(os.environ['BED_PROOF'], 'a', encoding='utf-8') as f:
            for topics in outcomes.values():
                proof = topics.get('proof', {})
                f.write(f'{proof.get("immediates_in", 0)} {proof.get("immediates_out", 0)}\n')


if __name__ == '__main__':
    if not peers.FOLDER:
        print('native Valkey has not been built (scripts/build-native.sh): skipped')
        sys.exit(77)
    globals().update(cells())
    del Cell, Cli, Benchmark, Python  # the bases are no cells
    try:
        harness.main()
    finally:
        save()
        import table
        print(table.render(outcomes))
