# SPDX-License-Identifier: BSD-2-Clause
"""A replica attaches with default settings: full sync, stream, under load, after the primary restarts."""
import os

import harness


class Replica(harness.Case):
    def synced(self, primary, replica, timeout=60):
        """The link is up and both hold the same data."""
        p, r = primary.plain(), replica.plain()
        harness.wait('the link to the primary', lambda: r.info('replication').get('master_link_status') == 'up', timeout)
        harness.wait('the replica to have everything', lambda: (
            r.info('replication')['slave_repl_offset'] == p.info('replication')['master_repl_offset']
            and r('DEBUG', 'DIGEST') == p('DEBUG', 'DIGEST')), timeout, 0.2)

    def pair(self, kind, *args):
        primary = self.server(*args, kind=kind)
        c = primary.plain()
        c('DEBUG', 'POPULATE', 20000, 'key', 1000)
        for i in range(8):
            c('SET', f'large:{i}', bytes([i]) * (1 << 20))
        dual = [a for a in args if 'dual-channel' in a]  # a setting of both
        replica = self.server('--replicaof', f'{harness.HOST} {primary.port}', *(dual and [*dual, 'yes']), kind=kind,
                              connect=[primary.port])
        return primary, replica

    def prove(self):
        """The replica's outgoing connection is the one of interest: its own counters must show it."""
        super().prove()
        if not harness.CARRIED:
            return
        for s in self.servers:
            if '--replicaof' in s.argv:
                p = self.assert_carried(s.pid, 'the replica')
                link = [c for c in p['connections'] if c['role'] == 'connect']
                self.assertEqual([c['transport'] for c in link], ['rdma'], link)

    def attach(self, kind, *args):
        primary, replica = self.pair(kind, *args)
        self.synced(primary, replica)
        c = primary.plain()
        for i in range(2000):
            c('SET', f'streamed:{i}', 's' * (i % 700))
        c('SET', 'streamed:large', b'L' * (3 << 20))
        self.synced(primary, replica)
        self.assertEqual(replica.plain()('GET', 'streamed:large'), b'L' * (3 << 20))

    def test_attach_valkey(self):
        self.attach('valkey')

    def test_attach_redis(self):
        self.attach('redis')

    def test_attach_disk_backed(self):
        self.attach('valkey', '--repl-diskless-sync', 'no')

    def test_attach_dual_channel(self):
        """A forked child writes the data to the replica's second connection, which it inherited."""
        harness.Case.need(self, 'valkey-server')
        if harness.ASAN:
            self.skipTest('redis-server has no dual-channel replication')
        dual = ('--dual-channel-replication-enabled', 'yes', '--repl-diskless-sync', 'yes', '--repl-diskless-sync-delay', '0',
                '--rdbcompression', 'no')
        self.attach('valkey', *dual)
        primary, replica = self.servers
        with open(primary.log, encoding='utf-8', errors='replace') as f:
            self.assertIn('dual-channel', f.read().lower(), 'the primary did not use the second connection')
        if harness.CARRIED:
            with open(os.path.join(primary.dir, 'shim.log'), encoding='utf-8') as f:
                self.assertIn('shared with another process', f.read(), 'nothing was written by the child')
            totals = [harness.carried_totals(harness.stat(s.pid)) for s in (primary, replica)]
            self.assertGreater(totals[0]['bytes_out'], 25 << 20, 'the data did not go by RDMA')
            self.assertGreater(totals[1]['bytes_in'], 25 << 20, 'the data did not go by RDMA')

    def test_under_load(self):
        primary, replica = self.pair('valkey')
        # Paced: without a pause it outruns the replica by more than the primary's default limit of 256 MB, on TCP too.
        load = self.spawn(self.script('load.py', primary.port, harness.by_tier(3, 10, 60), 0.02), primary.port)
        self.synced_once(replica)
        self.finish(load, 120)
        self.synced(primary, replica)
        info = replica.plain().info('replication')
        self.assertEqual(info['master_link_status'], 'up')
        self.assertEqual(primary.plain().info('stats')['sync_full'], '1', 'the link did not break')

    def synced_once(self, replica):
        r = replica.plain()
        harness.wait('the first sync', lambda: r.info('replication').get('master_link_status') == 'up', 60)

    def attempts(self, replica):
        with open(replica.log, encoding='utf-8', errors='replace') as f:
            return f.read().count('sync started')

    def restart(self, kind):
        primary, replica = self.pair(kind)
        self.synced(primary, replica)
        primary.plain()('SAVE')
        r, attempts = replica.plain(), self.attempts(replica)
        primary.kill()
        harness.wait('the replica to notice', lambda: r.info('replication')['master_link_status'] == 'down', 30)
        # One attempt at least is refused. That must not cost the link its RDMA when the primary is back.
        harness.wait('a refused attempt', lambda: self.attempts(replica) > attempts, 30)
        primary.start()
        primary.plain()('SET', 'after', 'restart')
        self.synced(primary, replica)
        self.assertEqual(r('GET', 'after'), b'restart')
        c = primary.plain()
        for i in range(200):
            c('SET', f'later:{i}', i)
        self.synced(primary, replica)

    def test_primary_restarts_valkey(self):
        self.restart('valkey')

    def test_primary_restarts_redis(self):
        self.restart('redis')

    def test_replica_restarts(self):
        """The primary frees the old connection and serves the new one."""
        primary, replica = self.pair('valkey')
        self.synced(primary, replica)
        for _ in range(3):
            replica.kill()
            replica.start()
            self.synced(primary, replica)
        harness.wait('one replica', lambda: primary.plain().info('replication')['connected_slaves'] == '1', 30)


if __name__ == '__main__':
    harness.main()
