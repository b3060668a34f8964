# SPDX-License-Identifier: BSD-2-Clause
"""The modes of redis-cli and valkey-cli that drive a connection hard: --pipe, --bigkeys, --latency, --scan, --rdb."""
import os
import re

import harness

COMMANDS = harness.by_tier(100_000, 1_000_000, 1_000_000, 20_000)


class CliTools(harness.Case):
    def base(self, tool, s):
        self.need(tool)
        return [tool, '-h', harness.HOST, '-p', s.port]

    def pipe(self, tool, kind):
        s = self.server(kind=kind)
        path = os.path.join(self.dir, 'commands')
        with open(path, 'wb') as f:
            for start in range(0, COMMANDS, 10000):
                f.write(b''.join(harness.Resp.encode('SET', f'key:{i}', f'value:{i}') for i in range(start, start + 10000)))
        with open(path, 'rb') as f:
            out = self.finish(self.spawn([*self.base(tool, s), '--pipe'], s.port, stdin=f), timeout=180)
        self.assertIn(b'errors: 0, replies: %d' % COMMANDS, out)
        self.assertEqual(s.plain()('DBSIZE'), COMMANDS)
        self.assertEqual(s.plain()('GET', f'key:{COMMANDS - 1}'), b'value:%d' % (COMMANDS - 1))

    def test_pipe_redis_cli_with_valkey(self):
        self.pipe('redis-cli', 'valkey')

    def test_pipe_valkey_cli_with_redis(self):
        self.pipe('valkey-cli', 'redis')

    def filled(self, kind='valkey'):
        s = self.server(kind=kind)
        c = s.plain()
        c('DEBUG', 'POPULATE', 20000)
        for i in range(5):
            c('RPUSH', f'list:{i}', *range(100 * (i + 1)))
        c('SET', 'the:biggest', 'x' * 500000)
        return s

    def test_bigkeys(self):
        s = self.filled()
        for tool in ('redis-cli', 'valkey-cli'):
            out = self.run_client([*self.base(tool, s), '--bigkeys'], s.port, timeout=120).decode()
            self.assertRegex(out, r'Biggest string found [\'"]+the:biggest[\'"]+ has 500000 bytes')
            self.assertRegex(out, r'Biggest\s+list found [\'"]+list:4[\'"]+ has 500 items')

    def test_memkeys(self):
        s = self.filled()
        out = self.run_client([*self.base('redis-cli', s), '--memkeys'], s.port, timeout=120).decode()
        self.assertIn('the:biggest', out)

    def test_scan(self):
        s = self.filled()
        out = self.run_client([*self.base('redis-cli', s), '--scan', '--pattern', 'key:*'], s.port, timeout=120)
        self.assertEqual(len(set(out.split())), 20000)

    def test_latency(self):
        s = self.filled()
        for tool in ('redis-cli', 'valkey-cli'):
            # Not a terminal: one sampling interval, then "min max avg count".
            out = self.run_client([*self.base(tool, s), '--latency', '--raw', '-i', '2'], s.port, timeout=30).decode()
            found = re.search(r'(\d+) (\d+) ([\d.]+) (\d+)', out)
            self.assertTrue(found, out)
            self.assertGreater(int(found.group(4)), harness.by_tier(50, 50, 50, 10), 'samples')
            self.assertLess(float(found.group(3)), 50 * harness.PATIENCE, 'average in ms')

    def test_rdb(self):
        """The client acts as a replica and fetches the whole data set."""
        s = self.filled()
        path = os.path.join(self.dir, 'dump.rdb')
        self.run_client([*self.base('redis-cli' if s.kind == 'redis' else 'valkey-cli', s), '--rdb', path], s.port, timeout=60)
        with open(path, 'rb') as f:
            data = f.read()
        self.assertIn(data[:5], (b'REDIS', b'VALKE'))
        self.assertIn(b'the:biggest', data)

    def test_interactive_repeat(self):
        s = self.server()
        out = self.run_client([*self.base('redis-cli', s), '-r', '1000', 'INCR', 'n'], s.port, timeout=60)
        self.assertEqual(out.split()[-1], b'1000')
        script = b''.join(b'SET k%d v%d\nGET k%d\n' % (i, i, i) for i in range(2000))
        out = self.run_client(self.base('valkey-cli' if s.kind == 'valkey' else 'redis-cli', s), s.port, data=script)
        self.assertEqual(out.split(), [w for i in range(2000) for w in (b'OK', b'v%d' % i)])


if __name__ == '__main__':
    harness.main()
