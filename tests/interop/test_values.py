# SPDX-License-Identifier: BSD-2-Clause
"""Values of awkward sizes go round intact through every kind of client."""
import hashlib
import os

import harness

SIZES = [0, 1, 31, 1023, 65536, 1048575, 1048576, 1048577, harness.by_tier(64 << 20, 64 << 20, 64 << 20, 8 << 20)]


class Values(harness.Case):
    def sizes(self, server):
        return SIZES if server.kind == 'valkey' or harness.TIER == 'full' else SIZES[:-1]

    def by_cli(self, tool, kind):
        self.need(tool)
        s = self.server(kind=kind)
        out = os.path.join(self.dir, 'out')
        for size in self.sizes(s):
            value = (hashlib.sha512(b'%d' % size).digest() * (size // 64 + 1))[:size]
            base = [tool, '-h', harness.HOST, '-p', s.port]
            self.assertEqual(self.run_client([*base, '-x', 'SET', f'k{size}'], s.port, data=value), b'OK\n', size)
            with open(out, 'wb') as f:
                self.run_client([*base, 'GET', f'k{size}'], s.port, stdout=f)
            with open(out, 'rb') as f:
                got = f.read()
            self.assertEqual(len(got), size + 1, 'a newline follows the value')
            self.assertTrue(got[:-1] == value, f'{tool} got another value of {size} bytes back')
            self.assertEqual(s.plain()('STRLEN', f'k{size}'), size)

    def by_script(self, name, kind):
        s = self.server(kind=kind)
        sizes = self.sizes(s)
        out = self.run_client(self.script(name, s.port, *sizes), s.port, timeout=120)
        self.assertEqual(out.count(b'ok'), len(sizes) + name.endswith('.js'), out)

    def test_valkey_cli_with_valkey(self):
        self.by_cli('valkey-cli', 'valkey')

    def test_redis_cli_with_valkey(self):
        self.by_cli('redis-cli', 'valkey')

    def test_redis_cli_with_redis(self):
        self.by_cli('redis-cli', 'redis')

    def test_python_with_valkey(self):
        self.by_script('values_sync.py', 'valkey')

    def test_python_with_redis(self):
        self.by_script('values_sync.py', 'redis')

    def test_asyncio_with_valkey(self):
        self.by_script('values_async.py', 'valkey')

    def test_asyncio_with_redis(self):
        self.by_script('values_async.py', 'redis')

    def test_ioredis_with_valkey(self):
        self.by_script('values.js', 'valkey')

    def test_ioredis_with_redis(self):
        self.by_script('values.js', 'redis')


if __name__ == '__main__':
    harness.main()
