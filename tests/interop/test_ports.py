# SPDX-License-Identifier: BSD-2-Clause
"""What is flagged is carried, what is not is not: both on one port, two ports of one server, no device, bad rules."""
import glob
import os
import socket
import subprocess
import threading

import harness


def shim_lines(text):
    return [line for line in text.splitlines() if line.startswith(b'libvkrdma[')]


class Ports(harness.Case):
    def listener_connections(self, server):
        """The transports of the connections that the server holds now."""
        p = harness.stat(server.pid)
        return sorted(c['transport'] for c in p['connections']) if p else []

    def test_both_transports_on_one_port(self):
        """A carried program and one without the shim work through the same port at the same time."""
        s = self.server()
        load = self.spawn(self.script('load.py', s.port, 4), s.port)
        plain = s.plain()
        harness.wait('the load', lambda: int(plain.info('clients')['connected_clients']) == 7)
        if harness.CARRIED:
            self.assertEqual(self.listener_connections(s), ['rdma'] * 6 + ['tcp'])
        n = 0
        while load.poll() is None:
            plain('SET', 'plain', 'p' * (n % 70000))
            self.assertEqual(len(plain('GET', 'plain')), n % 70000)
            n += 1
        self.finish(load)
        self.assertGreater(n, 50)
        if harness.CARRIED:
            p = self.assert_carried(s.pid)
            self.assertIn(str(s.port), str(p['listeners'][0]), 'the listener is reported')

    def test_fairness(self):
        """A plain client is served while carried connections saturate the server."""
        self.need('valkey-benchmark')
        s = self.server()
        flood = self.spawn(['valkey-benchmark', '-h', harness.HOST, '-p', s.port, '-c', '50', '-P', '16', '-n', '100000000', '-t',
                            'set'], s.port, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        plain = s.plain()
        harness.wait('the flood', lambda: int(plain.info('clients')['connected_clients']) >= 50)
        for _ in range(20):
            newcomer = s.plain(timeout=5)
            for _ in range(20):
                self.assertEqual(newcomer('PING'), 'PONG')
        self.assertIsNone(flood.poll(), 'the flood ended early')
        flood.kill()

    def test_refused(self):
        """Where nothing listens a tool says so, also when it may not use TCP instead."""
        port = harness.free_port()
        for tool in ('valkey-cli', 'redis-cli'):
            self.need(tool)
            proc = self.spawn([tool, '-h', harness.HOST, '-p', port, 'PING'], port)
            self.finish(proc, 20, expect=1)
            lines = [line for line in proc.err.splitlines() if not line.startswith(b'libvkrdma[')]
            for line in lines:
                self.assertIn(b'Connection refused', line)
            self.assertTrue(lines)
        self.proofs += 1  # nothing to be carried

    def test_unflagged_port(self):
        """Two ports of one server, one flagged: only that one is carried."""
        self.need('openssl')
        cert, key = os.path.join(self.dir, 'c.pem'), os.path.join(self.dir, 'k.pem')
        subprocess.run(['openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-subj', '/CN=x', '-keyout', key, '-out', cert],
                       check=True, capture_output=True, timeout=60)
        tls = harness.free_port()
        s = self.server('--tls-port', tls, '--tls-cert-file', cert, '--tls-key-file', key, '--tls-ca-cert-file', cert,
                        '--tls-auth-clients', 'no', listen=[tls])
        s.flagged = False  # the default proof does not fit
        tool = 'valkey-cli' if s.kind == 'valkey' else 'redis-cli'
        # The flag of the client names the other port: this connection stays TCP.
        out = self.run_client([tool, '-h', harness.HOST, '-p', s.port, 'SET', 'a', 'b'], tls)
        self.assertEqual(out, b'OK\n')
        self.assert_plain(s.pid, 'the server before any flagged connection')
        out = self.run_client([tool, '-h', harness.HOST, '-p', tls, '--tls', '--insecure', 'GET', 'a'], tls)
        self.assertEqual(out, b'b\n')
        if harness.CARRIED:
            self.assert_carried(s.pid, 'the server')

    def test_client_flag_alone(self):
        """A flagged client and a server that knows no RDMA: TCP within the time allowed, with the reason."""
        s = self.server(flagged=False)
        log = os.path.join(self.dir, 'alone.log')
        out = self.run_client(['redis-cli', '-h', harness.HOST, '-p', s.port, 'PING'], s.port, timeout=10,
                              env={'VKRDMA_FALLBACK': 'tcp', 'VKRDMA_LOG': 'info:' + log})
        self.assertEqual(out, b'PONG\n')
        self.assert_plain(s.pid, 'the server')
        if harness.CARRIED:
            with open(log, 'rb') as f:
                self.assertIn(b'tcp', f.read().lower(), 'the line of the connection says so')

    def test_hung_up_unheard(self):
        """Whoever is refused by RDMA and answers by TCP is not asked again for a moment, unless it hung up without a word."""
        listener = socket.create_server((harness.HOST, 0))
        port = listener.getsockname()[1]

        def serve():
            for word in (b'', b'', b'x', b'', b'x'):
                peer, _ = listener.accept()
                peer.sendall(word)
                peer.close()

        threading.Thread(target=serve, daemon=True).start()
        log = os.path.join(self.dir, 'again.log')
        self.run_client(self.script('to_the_end.py', port, 5), port, env={'VKRDMA_FALLBACK': 'tcp', 'VKRDMA_LOG': 'info:' + log})
        listener.close()
        self.proofs += 1
        if harness.CARRIED:
            with open(log, encoding='utf-8') as f:
                again = ['a moment ago' in line for line in f if ' is TCP ' in line]
            self.assertEqual(again, [False, False, False, True, True])

    def test_fallback_none(self):
        """Where TCP is forbidden, a server without RDMA is an error."""
        s = self.server(flagged=False)
        self.proofs += 1
        expect = 1 if harness.CARRIED else 0
        self.run_client(['redis-cli', '-h', harness.HOST, '-p', s.port, 'PING'], s.port, timeout=10, expect=expect)

    def no_rdma(self, wrap, env):
        """Server and client without any RDMA to be had: all works, one line each."""
        s = self.server(flagged=False, listen=[], start=False)
        s.env.update(env(s.port))
        s.env.pop('VKRDMA_LOG', None)
        s.argv = wrap + s.argv
        s.start()
        cli = [*wrap, 'redis-cli', '-h', harness.HOST, '-p', str(s.port)]
        value = os.urandom(100000).hex().encode()
        p = self.spawn([*cli, '-x', 'SET', 'k'], s.port, env={'VKRDMA_FALLBACK': 'tcp', **env(s.port)}, stdin=subprocess.PIPE)
        self.assertEqual(self.finish(p, 30, value), b'OK\n')
        with open(s.log, 'rb') as f:
            server_lines = shim_lines(f.read())
        self.assertEqual(s.plain()('GET', 'k'), value)
        self.assert_plain(s.pid)
        return server_lines, shim_lines(p.err)

    def check_one_line(self, wrap):
        def env(port):
            if not harness.CARRIED:
                return {}
            return {'VKRDMA_LISTEN': str(port), 'VKRDMA_CONNECT': str(port), 'VKRDMA_PROVIDER': 'verbs', 'VKRDMA_LOG': 'warn'}
        server_lines, client_lines = self.no_rdma(wrap, env)
        expect = 1 if harness.CARRIED else 0
        self.assertEqual(len(server_lines), expect, server_lines)
        self.assertEqual(len(client_lines), expect, client_lines)

    def test_no_device(self):
        if glob.glob('/sys/class/infiniband/*'):
            self.skipTest('this machine has an RDMA device')
        self.check_one_line([])

    def test_no_rdma_core(self):
        """The libraries are hidden by bind mounts in a mount namespace of the program's own."""
        hidden = [p for name in ('libibverbs.so.1', 'librdmacm.so.1') for p in glob.glob(f'/usr/lib/*/{name}')]
        mounts = ' && '.join(f'mount --bind /dev/null $(readlink -f {p})' for p in hidden) or 'true'
        wrap = ['unshare', '-m', 'env', '-u', 'LD_PRELOAD', 'sh', '-c', f'{mounts} && export LD_PRELOAD="$0" && exec "$@"',
                harness.SHIM if harness.CARRIED else '']
        ok = subprocess.run(['unshare', '-m', 'sh', '-c', mounts], capture_output=True, check=False)
        if ok.returncode:
            self.skipTest('no mount namespace here: ' + ok.stderr.decode().strip())
        self.check_one_line(wrap)

    def test_malformed_rule(self):
        """One error line that names the variable and the text; the program runs on plain TCP."""
        for variable, text, named in (('VKRDMA_LISTEN', '63x9', '63x9'), ('VKRDMA_CONNECT', '10.0.0.0/99:6379', '10.0.0.0/99'),
                                      ('VKRDMA_LISTEN', '6379,,7', 'character 6'), ('VKRDMA_CONNECT', '70000', '70000'),
                                      ('VKRDMA_FALLBACK', 'maybe', 'maybe')):
            def env(port, variable=variable, text=text):
                if not harness.CARRIED:
                    return {}
                good = {'VKRDMA_LISTEN': str(port), 'VKRDMA_CONNECT': str(port), 'VKRDMA_LOG': 'warn'}
                return {**good, variable: text}
            with self.subTest(variable=variable, text=text):
                for lines in self.no_rdma([], env):
                    if not harness.CARRIED:
                        self.assertEqual(lines, [])
                        continue
                    self.assertEqual(len(lines), 1, lines)
                    self.assertIn(variable.encode(), lines[0])
                    self.assertIn(named.encode(), lines[0])
                    self.assertIn(b'error', lines[0].lower())


if __name__ == '__main__':
    harness.main()
