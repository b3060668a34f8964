# SPDX-License-Identifier: BSD-2-Clause
"""TLS runs inside the carried stream: OpenSSL reads and writes the descriptor as it would a TCP socket's."""
import os
import subprocess

import harness


class Tls(harness.Case):
    def setUp(self):
        super().setUp()
        self.need('openssl')
        self.cert, self.key = os.path.join(self.dir, 'cert.pem'), os.path.join(self.dir, 'key.pem')
        subprocess.run(['openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2', '-subj', '/CN=localhost',
                        '-addext', f'subjectAltName=IP:{harness.HOST}', '-keyout', self.key, '-out', self.cert],
                       check=True, capture_output=True, timeout=60)

    def tls_server(self, kind, tool):
        self.need(f'{kind}-server', tool)
        for program in (f'{kind}-server', tool):
            linked = subprocess.run(['sh', '-c', f'ldd "$(command -v {program})"'], capture_output=True, check=True).stdout
            if b'libssl' not in linked:
                self.skipTest(f'{program} is built without TLS')
        tls_port = harness.free_port()
        return tls_port, self.server(
            '--tls-port', tls_port, '--tls-cert-file', self.cert, '--tls-key-file', self.key, '--tls-ca-cert-file', self.cert,
            '--tls-auth-clients', 'no', kind=kind, listen=[tls_port])

    def round_trips(self, kind, tool):
        tls_port, s = self.tls_server(kind, tool)
        base = [tool, '-h', harness.HOST, '-p', tls_port, '--tls', '--cacert', self.cert]
        for size in (0, 1, 16384, 1048577, 8 << 20):
            value = os.urandom(size // 2).hex().encode()
            self.assertEqual(self.run_client([*base, '-x', 'SET', 'k'], tls_port, data=value), b'OK\n')
            self.assertEqual(self.run_client([*base, 'GET', 'k'], tls_port), value + b'\n')
        out = self.run_client([*base, '-r', '500', 'INCR', 'n'], tls_port)
        self.assertEqual(out.split()[-1], b'500')
        self.assertEqual(s.plain()('GET', 'n'), b'500')

    def test_valkey_cli(self):
        self.round_trips('valkey', 'valkey-cli')

    def test_redis_cli(self):
        self.round_trips('redis', 'redis-cli')

    def test_valkey_benchmark(self):
        if harness.ASAN:
            self.skipTest('valkey-benchmark does not run with the runtime of AddressSanitizer, with or without the library')
        tls_port, _ = self.tls_server('valkey', 'valkey-benchmark')
        out = self.run_client(['valkey-benchmark', '-h', harness.HOST, '-p', tls_port, '--tls', '--cacert', self.cert, '-t',
                               'set,get', '-n', '5000', '-c', '20', '-d', '3000', '--csv'], tls_port, timeout=90)
        self.assertEqual(len(out.splitlines()), 3, out)

    def test_python(self):
        tls_port, _ = self.tls_server('valkey', 'valkey-cli')
        code = ('import redis,sys;r=redis.Redis(sys.argv[1],int(sys.argv[2]),ssl=True,ssl_ca_certs=sys.argv[3]);'
                'v=bytes(range(256))*9000;assert r.set("p",v);assert r.get("p")==v;print("ok")')
        out = self.run_client([harness.PYTHON, '-c', code, harness.HOST, tls_port, self.cert], tls_port)
        self.assertEqual(out, b'ok\n')


if __name__ == '__main__':
    harness.main()
