# SPDX-License-Identifier: BSD-2-Clause
"""fork under load: BGSAVE and BGREWRITEAOF every few seconds while a checker writes and verifies."""
import time

import harness


class Persistence(harness.Case):
    def under_load(self, kind):
        s = self.server('--appendonly', 'yes', '--auto-aof-rewrite-percentage', '0', kind=kind)
        c = s.plain()
        c('DEBUG', 'POPULATE', 50000, 'fill', 500)
        seconds = harness.by_tier(5, 12, 60, 15)
        load = self.spawn(self.script('load.py', s.port, seconds), s.port)

        def idle():
            p = c.info('persistence')
            return p['rdb_bgsave_in_progress'] == '0' and p['aof_rewrite_in_progress'] == '0'
        rounds, deadline = 0, time.monotonic() + seconds - 2
        while time.monotonic() < deadline:
            for command in ('BGSAVE', 'BGREWRITEAOF'):
                harness.wait('the last child to end', idle, 30)
                c(command)
                rounds += 1
        harness.wait('the last child to end', idle, 60)
        out = self.finish(load, seconds + 60)
        self.assertGreater(int(out.split()[0]), harness.by_tier(1000, 1000, 1000, 200), 'operations')
        self.assertGreater(rounds, 2)
        p = c.info('persistence')
        self.assertEqual((p['rdb_last_bgsave_status'], p['aof_last_bgrewrite_status'], p['aof_last_write_status']),
                         ('ok', 'ok', 'ok'))
        # The RDB file of a child that ran beside the writers holds a whole, loadable data set.
        before = c('DBSIZE')
        c('DEBUG', 'RELOAD')
        self.assertEqual(c('DBSIZE'), before)

    def test_valkey(self):
        self.under_load('valkey')

    def test_redis(self):
        self.under_load('redis')


if __name__ == '__main__':
    harness.main()
