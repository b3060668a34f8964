# SPDX-License-Identifier: BSD-2-Clause
"""Python's subprocess and multiprocessing inside a program that holds carried connections; programs with RDMA of their own."""
import contextlib
import os
import pwd
import signal
import socket
import subprocess

import harness


class Processes(harness.Case):
    def scenario(self, name, **env):
        s = self.server()
        out = self.run_client(self.script('procs.py', name, s.port), s.port, timeout=90, env=env)
        self.assertEqual(out, b'ok\n')

    def test_run(self):
        self.scenario('run')

    def test_preexec(self):
        self.scenario('preexec')

    def test_fork_pool(self):
        if not harness.DEVICE:
            return self.scenario('fork_pool')
        # librdmacm cannot be used in a child: there the children's own connections are TCP, and say why.
        self.scenario('fork_pool', VKRDMA_FALLBACK='tcp')
        with open(os.path.join(self.dir, 'client-shim.log'), encoding='utf-8') as f:
            tcp = [line for line in f if ' is TCP ' in line]
        self.assertGreater(len(tcp), 0)
        self.assertEqual([line for line in tcp if 'forked from one that uses RDMA' not in line], [])

    def test_spawn_pool(self):
        self.scenario('spawn_pool')

    def test_executor(self):
        self.scenario('executor')

    def test_fork_exit(self):
        self.scenario('fork_exit')

    NGINX = """worker_processes 2; pid {dir}/pid; error_log {dir}/error.log;
events {{ worker_connections 64; }}
http {{ access_log off; {temps} server {{ listen {host}:{port}; root {dir}; }} }}
"""
    GET = """import socket, sys
for _ in range(8):
    s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 30)
    s.sendall(b"GET /data HTTP/1.0\\r\\n\\r\\n")
    got = b""
    while True:
        part = s.recv(65536)
        if not part:
            break
        got += part
    assert got.split(b"\\r\\n\\r\\n", 1)[1] == open(sys.argv[3], "rb").read(), len(got)
    s.close()
print("ok")
"""

    def nginx(self, daemon):
        """Workers that accept on the listener of their master, which waits for nothing but signals."""
        self.need('nginx')
        # On a device a daemon's listener is TCP: what listened has forked and ended, and librdmacm cannot be used in a child.
        carried = harness.CARRIED and not (harness.DEVICE and daemon == 'on')
        port, data, conf = harness.free_port(), os.path.join(self.dir, 'data'), os.path.join(self.dir, 'nginx.conf')
        with open(data, 'wb') as f:
            f.write(os.urandom(400000))
        temps = ' '.join(f'{what}_temp_path {self.dir}/{what};' for what in ('client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'))
        with open(conf, 'w', encoding='utf-8') as f:
            f.write(self.NGINX.format(dir=self.dir, temps=temps, host=harness.HOST, port=port))
        log = os.path.join(self.dir, 'shim.log')
        env = harness.preload_env(listen=[port], extra={'VKRDMA_LOG': 'info:' + log})
        user = f'user {pwd.getpwuid(os.getuid()).pw_name};' if os.getuid() == 0 else ''
        self.track(subprocess.Popen(['nginx', '-c', conf, '-e', self.dir + '/error.log', '-g', f'daemon {daemon}; {user}'], env=env,
                                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        pid = os.path.join(self.dir, 'pid')
        harness.wait('nginx to start', lambda: os.path.exists(pid) and os.path.getsize(pid))
        with open(pid, encoding='ascii') as f:
            master = int(f.read())
        try:
            with contextlib.closing(socket.create_connection((harness.HOST, port), 30)):
                pass  # a worker has waited for the listener, and knows whose it is
            if carried:
                harness.wait('the listener', lambda: any(
                    x['transport'] == 'rdma' and x['local'].endswith(f':{port}') for p in harness.stat_all() for x in p['listeners']))
            self.assertEqual(self.run_client([harness.PYTHON, '-c', self.GET, harness.HOST, port, data], port,
                                             env=None if carried else {'VKRDMA_FALLBACK': 'tcp'}), b'ok\n')
            if carried:
                with open(log, encoding='utf-8') as f:
                    self.assertEqual(len([line for line in f if 'connection from' in line and ' is RDMA ' in line]), 8)
            elif harness.CARRIED:
                with open(log, encoding='utf-8') as f:
                    self.assertRegex(f.read(), 'by TCP only .*: this process was forked from one that uses RDMA')
            self.proofs += 1
        finally:
            os.kill(master, signal.SIGTERM)
            harness.wait('nginx to end', lambda: not os.path.exists(pid))

    def test_nginx(self):
        self.nginx('off')

    def test_nginx_daemon(self):
        self.nginx('on')

    def test_rdma_libraries(self):
        """A program that has rdma-core's libraries itself: their names and ours do not mix."""
        cache = subprocess.run(['/sbin/ldconfig', '-p'], capture_output=True, text=True, check=True).stdout
        libraries = [line.split('=> ')[1] for line in cache.splitlines() if 'libibverbs.so.1 ' in line or 'librdmacm.so.1 ' in line]
        self.assertGreaterEqual(len(libraries), 2, 'rdma-core is not installed')
        s = self.server()
        env = {}
        if harness.CARRIED:
            env['LD_PRELOAD'] = ':'.join([harness.preload_env(connect=[s.port])['LD_PRELOAD'], *libraries])
        out = self.run_client(['redis-cli', '-h', harness.HOST, '-p', s.port, 'PING'], s.port, env=env)
        self.assertEqual(out, b'PONG\n')


if __name__ == '__main__':
    harness.main()
