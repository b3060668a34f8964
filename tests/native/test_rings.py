# SPDX-License-Identifier: BSD-2-Clause
"""The shim as client never harms a native server, whatever the lengths of either's receive ring, and loses no byte."""
import hashlib
import sys

import peers
from peers import harness

CLIENT = type('Client', (), {'shimmed': True})
# From the smallest to the largest that is taken: no multiple of a page either.
RINGS = ['4k', 4097, '5k', 12345, '64k', 65537, '256k', '1m', '4m', '64m']
COMMANDS = harness.by_tier(3000, 3000, 3000, 800)
RX_SIZES = [64 << 10, 100_000, 1 << 20, 16 << 20]


class Rings(peers.Case):
    def one(self, server, ring):
        """Values longer than both rings, sent and fetched; a pipeline; another connection beside it that goes on."""
        plain = server.plain()
        sizes = [1, 4095, 4096, 4097, 65536, 262145, 1048577, 3000000]
        out = self.call(CLIENT, self.script('values_sync.py', server.rdma, *sizes), server, timeout=60,
                        env={'VKRDMA_RING': str(ring)})
        self.assertEqual(out.count(b'ok'), len(sizes), f'VKRDMA_RING={ring}')
        data = b''.join(harness.Resp.encode('SET', f'p{i}', b'v' * (i * 7 % 900)) for i in range(COMMANDS))
        out = self.call(CLIENT, ['valkey-cli', '-h', harness.HOST, '-p', server.rdma, '--pipe'], server, data,
                        env={'VKRDMA_RING': str(ring)})
        self.assertIn(b'errors: 0, replies: %d' % COMMANDS, out)
        value = plain('GET', f'sync:{sizes[-1]}')
        unit = hashlib.sha512(b'%d' % sizes[-1]).digest()
        self.assertTrue(value == (unit * (sizes[-1] // 64 + 1))[:sizes[-1]])
        plain.close()
        self.assertTrue(server.alive(), f'VKRDMA_RING={ring}: the native server is gone')

    def sweep(self, rx):
        """One server survives all of them; two clients with other rings at the same time do not disturb each other."""
        s = self.serve('native', '--rdma-rx-size', rx)
        for ring in RINGS if rx == 1 << 20 and not harness.DEVICE or harness.TIER == 'full' else RINGS[:1] + RINGS[3:4] + RINGS[-1:]:
            self.one(s, ring)
        load = [self.launch(CLIENT, self.script('load.py', s.rdma, 2), s, env={'VKRDMA_RING': ring}) for ring in ('4k', '1m')]
        for p in load:
            self.finish(p)
        self.assertEqual(self.logged_rdma() > 0, True)
        self.assert_no_fallback()
        self.proofs += 1
        with open(s.log, encoding='utf-8') as f:
            self.assertNotIn('BUG REPORT', f.read())


for _rx in RX_SIZES:
    def _test(self, rx=_rx):
        self.sweep(rx)
    _test.__name__ = f'test_rx_size_{_rx}'
    setattr(Rings, _test.__name__, Rings._proved(_test))

if __name__ == '__main__':
    if not peers.FOLDER:
        print('native Valkey has not been built (scripts/build-native.sh): skipped')
        sys.exit(77)
    harness.main()
