# SPDX-License-Identifier: BSD-2-Clause
"""T1, T4, T6: receives and send queues that run out while one side is busy."""
from traps import SLOW, Trap, harness, main, native_folder

RECEIVES = 1024  # a native peer posts so many


class Queues(Trap):
    def tiny(self, client, server, n):
        """The client's many writes go out while the server sleeps: how many it sent and had on the wire by then, its replies,
        its error, and what the server makes of it all."""
        self.told(client, 'connected')
        wake = self.doze(server, 1.5)
        self.begin(client)
        sent = self.told(client, 'sent', needed=False)
        wire = self.on_the_wire(client)
        wake()
        replies, _, how = (self.told(client, 'done', needed=False) or 'died').partition(' ')
        return int(sent or 0), wire, replies, how, server.plain()('GET', 'trap')

    @staticmethod
    def on_the_wire(client):
        p = harness.stat(client.pid)
        return sum(c['immediates_out'] + c.get('sends_out', 0) for c in p['connections']) if p else 0

    def test_t1_busy_server(self):
        """More than 1,024 small writes to a server that does not come to read them."""
        n = 3000
        s = self.native_server()
        sent, _, replies, how, _ = self.tiny(self.native_client(s.rdma, 'tiny', n, go=False), s, n)
        self.native(sent > RECEIVES and how != 'ok', f'{n} writes to a server in DEBUG SLEEP: the client stops after {sent}, '
                    f'{replies} replies: {how}')
        self.assertTrue(s.alive())

        s = self.native_server()
        c = self.shim_client(s.rdma, 'tiny', n, go=False)
        sent, wire, replies, how, value = self.tiny(c, s, n)
        self.assertEqual((sent, replies, how, value), (n, str(n), 'ok', str(n).encode()))
        # What nobody had received by then was at most what a native server has posted.
        self.assertGreater(wire, RECEIVES // 4)
        self.assertLess(wire, RECEIVES)
        self.carried(c)
        self.shim(f'{n} writes, {wire} messages while the server slept, {replies} replies')
        self.over(c)

    def test_t1_no_retry(self):
        """The acceptor allows no RNR retry and posts its receives late: one message too early would end a native."""
        port = harness.free_port()
        r = self.raw('server', port, 'late', 700)
        c = self.native_client(port, 'sleepy', 1)
        asked = self.told(r, 'asked')
        self.native(asked != '1', f'receives posted after 700 ms, no retry: {"nothing" if asked != "1" else "all"} arrives; '
                    f'the client: {self.told(c, "done", needed=False)}')
        for p in (r, c):
            self.over(p)

        port = harness.free_port()
        r = self.raw('server', port, 'late', 700)
        c = self.shim_client(port, 'sleepy', 1)
        self.assertEqual(self.told(r, 'asked'), '1')
        self.assertEqual(self.told(r, 'outcome'), 'alive')
        self.carried(c)
        self.shim('retried until they were there')

    def test_t1_busy_acceptor(self):
        """The same towards a shimmed server: its receives are posted whatever the application does."""
        n = 3000
        s = self.server()
        sent, _, replies, how, value = self.tiny(self.native_client(s.port, 'tiny', n, go=False), s, n)
        self.assertEqual((sent, replies, how, value), (n, str(n), 'ok', str(n).encode()))
        self.shim(f'a native client, {n} writes to a shimmed server in DEBUG SLEEP: {replies} replies')

    def test_t4_client_never_polls(self):
        """An hour of keepalives (1,200 of them) and more to a client that makes no call; the server's interval is 5 ms."""
        fast = native_folder('keepalive-fast')
        if not fast:
            self.skipTest('no variant of the native build: scripts/build-native.sh --variant keepalive-fast')
        beside, s = self.native_server(folder=fast), self.native_server(folder=fast)
        ms = 2 * RECEIVES * 5 * (1 if SLOW == 1 else 2) + 4000
        sleeper = self.native_client(beside.rdma, 'sleepy', ms)
        c = self.shim_client(s.rdma, 'sleepy', ms)
        for p in (sleeper, c):
            self.told(p, 'asleep')
        end = beside.crashed(ms // 1000 + 5)
        self.native(end is not None, f'the server after {2 * RECEIVES} keepalives that nobody took: {end}')
        self.assertEqual(self.told(c, 'done', 60), '2 ok')
        got = self.carried(c)['totals']['sends_in']
        self.assertGreater(got, RECEIVES + 200)
        self.assertTrue(s.alive(), 'the server of the shimmed client')
        self.shim(f'a client that slept {ms} ms took {got} messages meanwhile and was served after it')

    def publish(self, server, n):
        """One message a round trip, so that each is a write of its own."""
        client = server.plain()
        return [client('PUBLISH', 'trap', f'message {i}') for i in range(n)]

    def subscribed(self, client, server, n):
        self.told(client, 'subscribed')
        heard = self.publish(server, n)
        self.begin(client)
        done = (self.told(client, 'done', needed=False) or 'died').split(' ', 1)
        return sum(heard), done[0], done[1] if len(done) > 1 else ''

    def test_t6_send_queue(self):
        """A subscriber that is busy while 3,000 messages and more are published: 1,024 receives and 1,024 sends are not enough."""
        n = 3000 if SLOW == 1 else 3500  # rxe rounds the 1,024 sends up to 2,047
        s = self.native_server()
        heard, got, how = self.subscribed(self.native_client(s.rdma, 'subscribe', n), s, n)
        self.native(got != str(n), f'{n} messages to a subscriber that is busy: it gets {got} ({how}); the server counted it '
                    f'{heard} times: {"post send failed" if "post send failed" in s.text() else "no word in its log"}')

        s = self.server()
        heard, got, how = self.subscribed(self.native_client(s.port, 'subscribe', n), s, n)
        self.assertEqual((heard, got, how), (n, str(n), 'ok'))
        self.shim(f'a shimmed server, the same native subscriber: {got} messages')

        s = self.native_server()
        c = self.shim_client(s.rdma, 'subscribe', n)
        heard, got, how = self.subscribed(c, s, n)
        self.assertEqual((heard, got, how), (n, str(n), 'ok'))
        self.carried(c)
        self.shim(f'a shimmed subscriber of a native server: {got} messages')


if __name__ == '__main__':
    main()
