# SPDX-License-Identifier: BSD-2-Clause
"""T2, T3, T5, T8: what a peer says of its buffer, and what it writes into ours."""
import os
import random
import time

from traps import HOST, NATIVE, SLOW, SOFT, Trap, harness, main

MIB = 1 << 20
# The most that 32 bits can say in whole pages, where there is time for it; a guest could not pin it.
HUGE = (0xfffff000 if harness.TIER == 'full' else 1024 * MIB) if SOFT else 256 * MIB
CLI = os.path.join(NATIVE or '', 'bin', 'valkey-cli')


def checksum(data, times):
    """As valkey_client has it."""
    total = 0
    for byte in data * times:
        total = (total * 31 + byte) & 0xffffffffffffffff
    return f'{total:016x}'


def mapping(pid, size):
    """The process has a piece of memory of its own of that size, or of a little more: the kernel joins neighbours.
    softverbs puts a file of its own there once it is registered."""
    with open(f'/proc/{pid}/maps', encoding='ascii', errors='replace') as f:
        for line in f:
            fields = line.split()
            low, high = (int(x, 16) for x in fields[0].split('-'))
            more = high - low - size
            if fields[1] == 'rw-p' and fields[4] == '0' and -8192 <= more < size // 8 or SOFT and abs(more) <= 8192:
                return True
    return False


def comes(process, size):
    """The process gets such a piece within seconds: the peer does not know when."""
    end = time.monotonic() + 10 * SLOW
    while process.poll() is None:
        try:
            if mapping(process.pid, size):
                return True
        except OSError:
            return False
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return False


class Rings(Trap):
    def put(self, server, size):
        """A key with `size` random bytes, by TCP."""
        data = random.Random(size).randbytes(size)
        self.assertEqual(server.plain()('SET', 'trap', data), 'OK')
        return data

    def slow(self, server, data, times, **env):
        """A shimmed client of a native server reads the value with pauses."""
        c = self.shim_client(server.rdma, 'slow', 'trap', times, env=env)
        self.assertEqual(self.told(c, 'sum', 90), checksum(data, times))
        self.assertEqual(self.told(c, 'done'), f'{times} ok')
        p = self.carried(c)
        self.assertEqual(self.over(c), 0)
        return p['totals']

    # ------------------------------------------------------------ T2

    def test_t2_length_changes(self):
        s = self.native_server()
        r = self.raw('client', s.rdma, 'resize', MIB, MIB // 2)
        self.assertEqual(self.told(r, 'first'), '1')
        end = s.crashed()
        self.native(end is not None, f'the server, once the client\'s buffer is half as long: {end}')
        self.over(r)

        s = self.native_server()
        data = self.put(s, 700001)
        for ring, times in (('4096', 1), ('5001', 1), ('', 4), ('1m', 6), ('64m', 1)):
            totals = self.slow(s, data, times, **({'VKRDMA_RING': ring} if ring else {}))
            self.assertTrue(s.alive(), f'VKRDMA_RING={ring}')
            self.assertEqual(self.missing, [])
            self.shim(f'VKRDMA_RING={ring or "unset"}: {totals["bytes_in"]} bytes in {totals["refreshes_out"]} buffers, '
                      'the native server lives')

    def test_t2_acceptor_grows(self):
        """A native client takes buffers of any length: a shimmed server's grow under load."""
        s = self.server()
        size = 8 * MIB + 17
        path = os.path.join(self.dir, 'value')
        data = random.Random(2).randbytes(size)
        with open(path, 'wb') as f:
            f.write(data)
        with open(path, 'rb') as f:
            c = self.native_spawn([CLI, '--rdma', '-h', HOST, '-p', s.port, '-x', 'SET', 'trap'], stdin=f)
            out, err = c.communicate(timeout=60)
        self.assertEqual((c.returncode, out), (0, b'OK\n'), err)
        self.assertTrue(s.plain()('GET', 'trap') == data, 'the value came out different')
        totals = harness.stat(s.pid)['totals']
        mean = totals['bytes_in'] // totals['refreshes_out']
        self.assertGreater(mean, 2 * 32768)
        self.shim(f'{size} bytes from a native client in {totals["refreshes_out"]} buffers, {mean} bytes each on average')

    # ------------------------------------------------------------ T3

    def test_t3_server(self):
        s = self.native_server()
        r = self.raw('client', s.rdma, 'length', HUGE)
        self.assertEqual(self.told(r, 'outcome'), 'alive')
        self.native(comes(s.proc, HUGE), f'a client advertises {HUGE} bytes: the server maps and registers as many')
        self.over(r)
        if SOFT:
            s = self.native_server(env={'VKRDMA_SOFT_FAULT': 'fail_reg_mr=3'})
            r = self.raw('client', s.rdma, 'length', HUGE)
            end = s.crashed()
            self.native(end is not None, f'where they cannot be registered (ulimit -l), the server: {end}')
            self.over(r)

        s = self.server()
        base = harness.stat(s.pid)
        r = self.raw('client', s.port, 'length', HUGE)
        # Refused: the message came before the server's side was established, and was answered from there.
        self.assertIn(self.told(r, 'outcome'), ('dead', 'refused'))
        self.assertFalse(mapping(s.pid, HUGE))
        self.assertTrue(s.alive())
        self.assertLess(harness.stat(s.pid)['gauges']['mr_bytes'], base['gauges']['mr_bytes'] + MIB)
        self.hostile_is_served(s)
        self.shim('a shimmed server ends that connection')

    def test_t3_client(self):
        port = harness.free_port()
        r = self.raw('server', port, 'length', HUGE)
        c = self.native_client(port, 'sleepy', 1)
        self.assertEqual(self.told(r, 'outcome', 30), 'alive')
        self.native(comes(c, HUGE), f'a server advertises {HUGE} bytes: so does the client')
        self.over(r)
        self.over(c)

        port = harness.free_port()
        r = self.raw('server', port, 'length', HUGE)
        c = self.shim_client(port, 'sleepy', 1)
        self.assertEqual(self.told(r, 'outcome'), 'dead')
        self.assertFalse(mapping(c.pid, HUGE))
        self.told(c, 'done')
        self.assertEqual(self.over(c), 0)
        self.proofs += 1
        self.shim('a shimmed client ends that connection, the program goes on')

    def hostile_is_served(self, server):
        """Everybody else goes on as before."""
        h = self.hostile('client', server.port, 'chat:10')
        self.assertEqual(self.told(h, 'outcome')[:5], 'alive')
        self.over(h)

    # ------------------------------------------------------------ T5

    ATTACKS = ('imm:end', 'imm:0xffffffff', 'imm:0x80000000')

    def test_t5_server(self):
        s = self.native_server()
        h = self.hostile('client', s.rdma, 'imm:end')
        end = s.crashed()
        self.native(end is not None, f'an immediate one byte too large: the server: {end}')
        self.over(h)
        s = self.native_server()
        for case in ('imm:0', 'flood:zeroimm:500', 'opcode:4', 'size:31'):
            h = self.hostile('client', s.rdma, case)
            self.native(False, f'{case}: the server lives, the connection is {self.told(h, "outcome")}', deterministic=False)
            self.over(h)
            self.assertTrue(s.alive())

        s = self.server()
        for case in (*self.ATTACKS, 'imm:0', 'flood:zeroimm:500', 'opcode:4', 'size:31'):
            h = self.hostile('client', s.port, case)
            self.assertEqual(self.told(h, 'outcome')[:4], 'dead', case)
            self.over(h)
            self.assertTrue(s.alive(), case)
        self.hostile_is_served(s)
        self.shim('too large, empty, unknown, cut short: one connection each')

    def test_t5_client(self):
        port = harness.free_port()
        h = self.hostile('server', port, 'imm:end')
        c = self.native_client(port, 'sleepy', 3000)
        self.told(c, 'done', needed=False)
        code = self.over(c)
        self.native(code not in (0, 'hangs'), f'an immediate one byte too large: the client ends with {code}')
        self.over(h)

        for case in self.ATTACKS:
            port = harness.free_port()
            h = self.hostile('server', port, case)
            c = self.shim_client(port, 'sleepy', 1)
            self.assertEqual(self.told(h, 'outcome')[:4], 'dead', case)
            self.told(c, 'done')
            self.assertEqual(self.over(c), 0, case)
            self.proofs += 1
        self.shim('a shimmed client loses the connection, the program goes on')

    # ------------------------------------------------------------ T8

    def test_t8_early_refresh(self):
        """A new buffer before the old one is full: nobody could say where a byte is."""
        s = self.native_server()
        r = self.raw('client', s.rdma, 'early')
        self.assertEqual((self.told(r, 'first'), self.told(r, 'second')), ('1', '1'))
        old, new = (int(self.told(r, word)) for word in ('in-old', 'in-new'))
        self.assertEqual(old + new, 2)
        self.native((old, new) == (1, 1), f'the server leaves a buffer of 524288 bytes with {old * 7} in it: of 2 equal answers '
                    f'{old} is there, {new} in the next')
        self.over(r)

        s = self.native_server()
        data = self.put(s, 1200007)
        for ring in ('4096', '65536', ''):
            totals = self.slow(s, data, 2, **({'VKRDMA_RING': ring} if ring else {}))
            self.shim(f'VKRDMA_RING={ring or "unset"}: {totals["bytes_in"]} bytes read slowly through '
                      f'{totals["refreshes_out"]} buffers, in order')

    def test_t8_second_buffer(self):
        """It is offered once the first is completely received, and before the application has read any of it."""
        s = self.native_server()
        self.put(s, 4 * MIB)
        c = self.shim_client(s.rdma, 'fetch', 'trap', 1500)

        def full():
            p = harness.stat(c.pid)
            return p and p['totals']['bytes_in'] >= 2 * 262144 and p['totals']
        totals = harness.wait('both buffers to be full', full, 10)
        self.assertEqual((totals['bytes_in'], totals['refreshes_out']), (2 * 262144, 2))
        self.assertEqual(self.told(c, 'fetched'), str(4 * MIB))
        self.carried(c)
        self.shim('two buffers full before the application reads; all of it arrives')


if __name__ == '__main__':
    main()
