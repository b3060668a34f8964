# SPDX-License-Identifier: BSD-2-Clause
"""T9, T10, T11: bytes at the end of a connection, at its beginning, and events that nobody sees."""
import os
import time

from traps import HERE, HOST, SLOW, SOFT, Trap, harness, main

N = 400


class Close(Trap):
    def leaves(self, client, server, port, seconds):
        """
        A client that writes while the server is busy, and closes. How many of its commands count? Another client wants in
        before, so that the server looks at its connection events first when it comes back.
        """
        self.told(client, 'connected')
        time.sleep(0.3 * SLOW)  # both have the other's buffer, and no event is left over from that
        wake = self.doze(server, seconds)
        self.native_client(port, 'sleepy', 1)
        time.sleep(0.5 * SLOW)
        self.begin(client)
        self.assertEqual(self.told(client, 'sent'), str(N))
        self.told(client, 'done')
        wake()
        plain = server.plain()

        def arrived():
            return int(plain('GET', 'trap') or 0)
        try:
            harness.wait('the commands', lambda: arrived() == N, 1.5 * SLOW, patience=1)
        except AssertionError:
            pass
        return arrived()

    # ------------------------------------------------------------ T9

    def test_t9_client_leaves(self):
        """The server has received everything and read nothing when the client goes."""
        s = self.native_server()
        got = self.leaves(self.native_client(s.rdma, 'leave', N, go=False), s, s.rdma, 1.5)
        self.native(got < N, f'{N} commands and a close to a busy server: {got} are carried out')

        s = self.native_server()
        c = self.shim_client(s.rdma, 'leave', N, go=False)
        self.assertEqual(self.leaves(c, s, s.rdma, 3 if SOFT else 1.5), N)
        self.carried(c, 'out')
        self.shim(f'a shimmed client of a native server: {N} are')

        s = self.server()
        self.assertEqual(self.leaves(self.native_client(s.port, 'leave', N, go=False), s, s.port, 2), N)
        self.shim(f'a native client of a shimmed server: {N} are')

    def test_t9_program_ends(self):
        """The same when the program ends at once, with nobody left to wait."""
        s = self.native_server()
        c = self.shim_client(s.rdma, 'leave', N, go=False)
        self.told(c, 'connected')
        time.sleep(0.3 * SLOW)
        wake = self.doze(s, 0.9)
        if SOFT:  # there the server sleeps for less than the second that an exit waits
            self.native_client(s.rdma, 'sleepy', 1)
            time.sleep(0.3)
        self.begin(c)
        self.assertEqual(self.over(c), 0)
        wake()
        harness.wait('the commands', lambda: s.plain()('GET', 'trap') == str(N).encode(), 3 * SLOW)
        self.proofs += 1
        self.shim(f'a shimmed program that exits: {N} are')

    def test_t9_at_once(self):
        """A write and the close, again and again: the server has both within microseconds."""
        n = 80 if SOFT else 30
        s = self.native_server()
        self.assertEqual(self.told(self.native_client(s.rdma, 'burst', n), 'sent', 60), str(n))
        time.sleep(0.5 * SLOW)
        got = int(s.plain()('GET', 'trap') or 0)
        self.native(got < n, f'{n} connections with a command and a close: {got} commands are carried out', deterministic=False)

        s = self.server()
        self.assertEqual(self.told(self.native_client(s.port, 'burst', n), 'sent', 60), str(n))
        harness.wait('the commands', lambda: s.plain()('GET', 'trap') == str(n).encode(), 5 * SLOW)
        self.carried(s.proc, 'in')
        s.flagged = False  # nobody has read a reply
        self.shim(f'a native client of a shimmed server: {n} are')

        s = self.native_server()
        c = self.shim_client(s.rdma, 'burst', n)
        self.assertEqual(self.told(c, 'sent', 60), str(n))
        harness.wait('the commands', lambda: s.plain()('GET', 'trap') == str(n).encode(), 5 * SLOW)
        self.carried(c, 'out')
        self.shim(f'a shimmed client of the native server: {n} are')

    def fetched(self, client):
        got = self.told(client, 'fetched', needed=False) or 'nothing'
        how = (self.told(client, 'done', needed=False) or 'died').partition(' ')[2]
        return got, how

    def test_t9_server_leaves(self):
        """Reply and disconnect have both come when the client looks."""
        size = 600001
        s = self.native_server()
        s.plain()('SET', 'trap', b'x' * size)
        late = 300 * SLOW
        got, how = self.fetched(self.native_client(s.rdma, 'held', 'trap', late))
        self.native(got != str(size), f'GET and QUIT of {size} bytes, a client that is late by {late} ms: it has {got} ({how})')

        for case in ('held', 'fetch'):
            c = self.shim_client(s.rdma, case, 'trap', 500)
            self.assertEqual(self.fetched(c)[0], str(size), case)
            self.carried(c)
        self.shim(f'a shimmed client of the native server: {size} bytes, late by 500 ms')

        s = self.server()
        s.plain()('SET', 'trap', b'x' * size)
        self.assertEqual(self.fetched(self.native_client(s.port, 'held', 'trap', 50 if SOFT else 1))[0], str(size))
        self.shim(f'a native client of a shimmed server, a little late: {size} bytes')

    # ------------------------------------------------------------ T10

    def test_t10_readable_event(self):
        """A reply comes while the client writes: does its descriptor say so?"""
        s = self.native_server()
        readable = self.told(self.native_client(s.rdma, 'event'), 'readable')
        self.native(readable == '0', f'a reply that came in time, poll() for 1 s: {"nothing" if readable == "0" else "readable"}')

        c = self.shim_client(s.rdma, 'event')
        self.assertEqual(self.told(c, 'readable'), '1')
        self.told(c, 'done')
        self.carried(c)
        self.shim('readable')

    # ------------------------------------------------------------ T11

    def first_words(self, client):
        """What a client reads that has asked nothing, and its end."""
        first = self.told(client, 'first', needed=False)
        return first, (self.told(client, 'done', needed=False) or 'died').partition(' ')[2], self.over(client)

    def test_t11_too_many_clients(self):
        """What a server writes before it has the client's buffer."""
        s = self.native_server('--maxclients', '1')
        keep = s.plain()
        self.assertEqual(keep('PING'), 'PONG')
        first, how, code = self.first_words(self.native_client(s.rdma, 'first'))
        self.native('max number' not in (first or ''), f'one client too many: it reads {first} ({how}, exit {code})')

        # Nobody can read what was never sent; but it is an end like any other.
        first, how, code = self.first_words(self.shim_client(s.rdma, 'first'))
        self.assertIn((first, how, code), [('nothing', 'Server closed the connection', 0), (None, '', 1)])
        self.assertTrue(s.alive())
        self.shim(f'a shimmed client of it reads {first} ({how}, exit {code})')

        s = self.server('--maxclients', '1')
        keep = s.plain()
        self.assertEqual(keep('PING'), 'PONG')
        first, how, code = self.first_words(self.native_client(s.port, 'first'))
        self.assertEqual((first, code), ('ERR max number of clients reached', 0))
        self.carried(s.proc, 'out')
        s.flagged = False  # the client said nothing: there are no bytes in
        self.shim(f'a native client of a shimmed server reads {first!r}')

        r = self.raw('client', s.port, 'tardy', 700)
        self.assertEqual(self.told(r, 'heard'), '-ERR max number of clients reached')
        self.over(r)
        self.shim('and so does one that says 700 ms later where its buffer is')

    def test_t11_protected(self):
        """The same of a server in protected mode, to a client that is not local."""
        if HOST != '127.0.0.1':
            self.skipTest('needs two local addresses')
        s = self.native_server('--protected-mode', 'yes', bind='127.0.0.2')
        c = self.spawn([harness.PYTHON, os.path.join(HERE, 'bound.py'), '127.0.0.1', '127.0.0.2', s.rdma],
                       s.rdma)
        said = self.finish(c, 20).decode()
        self.assertIn(said, ["connected\nread b''\n", 'connected\nECONNRESET\n', 'ECONNRESET\n'])
        self.assertEqual(s.plain()('PING'), 'PONG')
        self.proofs += 1
        self.shim(f'a shimmed client of a native server in protected mode: {said.split()[-1]}, at once')


if __name__ == '__main__':
    main()
