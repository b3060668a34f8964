# SPDX-License-Identifier: BSD-2-Clause
"""Listeners bound to one address and to any, reached by IPv4 and IPv6; what a device stands behind and what not."""
import bed
import harness


class Addresses(bed.Case):
    def reach(self, server, host):
        """A value goes there and back, by RDMA alone."""
        value = f'{host} ' * 3000
        self.assertEqual(self.ask(server, 'SET', 'k', value, host=host), b'OK\n')
        self.assertEqual(self.ask(server, 'GET', 'k', host=host).decode().rstrip('\n'), value)

    def refused(self, server, host):
        """Nobody listens there."""
        self.run_client([self.tool(server), '-h', host, '-p', server.port, 'PING'], server.port, expect=1, timeout=30)

    def test_one_ipv4(self):
        s = self.server(bind=[bed.ADDR4, '127.0.0.1'])
        self.reach(s, bed.ADDR4)
        self.refused(s, bed.ADDR6)

    def test_one_ipv6(self):
        s = self.server(bind=[bed.ADDR6, '127.0.0.1'])
        self.reach(s, bed.ADDR6)
        self.refused(s, bed.ADDR4)

    def test_any(self):
        """One server on the any address of both families, as Valkey is by default."""
        s = self.server(bind=['*', '-::*'])
        for host in (bed.ADDR4, bed.ADDR6, bed.ADDR4):
            self.reach(s, host)

    def test_loopback_only(self):
        """A server that lets in nobody but its own machine stays that way: rdma_cm takes 127.0.0.1 for "any address"."""
        s = self.server(bind=['127.0.0.1', '-::1'])
        s.flagged = False
        self.assertEqual({x['transport'] for x in harness.stat(s.pid)['listeners']}, {'tcp'})
        for host in (bed.ADDR4, bed.ADDR6):
            self.refused(s, host)
        self.proofs += 1

    def test_loopback_first(self):
        """And one that is bound to it first has RDMA on the address that comes next."""
        s = self.server(bind=['127.0.0.1', bed.ADDR4])
        self.reach(s, bed.ADDR4)
        self.refused(s, bed.ADDR6)

    def test_any_without_device(self):
        """The same listener by 127.0.0.1, where no device stands: TCP at once, with the reason."""
        s = self.server(bind=['*', '-::*'])
        out = self.ask(s, 'PING', host='127.0.0.1', env={'VKRDMA_FALLBACK': 'tcp'}, timeout=20)
        self.assertEqual(out, b'PONG\n')
        self.reach(s, bed.ADDR4)


if __name__ == '__main__':
    harness.main()
