# SPDX-License-Identifier: BSD-2-Clause
"""The preload in the environment of programs that have nothing to do with it: not a byte of difference."""
import os
import pwd
import re
import shutil
import subprocess
import time

import harness


class Strangers(harness.Case):
    def setUp(self):
        super().setUp()
        # Readable by anybody: some of these programs run as another user.
        self.shim = os.path.join(self.dir, 'libvkrdma.so')
        if harness.CARRIED:
            shutil.copy(harness.SHIM, self.shim)
            os.chmod(self.shim, 0o755)

    def run_one(self, argv, preload, rules, **kwargs):
        env = {k: v for k, v in os.environ.items() if not k.startswith(('VKRDMA_', 'LD_PRELOAD'))}
        if preload:
            env['LD_PRELOAD'] = f'{harness.ASAN}:{self.shim}' if harness.ASAN else self.shim
            env['ASAN_OPTIONS'] = 'detect_leaks=0:verify_asan_link_order=0'
            if rules:
                env.update({'VKRDMA_LISTEN': '*', 'VKRDMA_CONNECT': '*'})
        t0 = time.monotonic()
        p = subprocess.run(argv, capture_output=True, env=env, timeout=60, cwd='/', check=False,
                           **{'stdin': subprocess.DEVNULL, **kwargs})
        stdout = re.sub(rb'process \d+', b'process N', p.stdout)  # gdb names its inferior
        return (p.returncode, stdout, p.stderr), time.monotonic() - t0

    def same(self, *argv, rules=True, **kwargs):
        self.need(argv[0])
        plain, _ = self.run_one(argv, False, False, **kwargs)
        again, slow = self.run_one(argv, harness.CARRIED, False, **kwargs)
        self.assertEqual(again, plain, f'{argv}, no rule')
        if rules:
            again, slow = self.run_one(argv, harness.CARRIED, True, **kwargs)
            self.assertEqual(again, plain, f'{argv}, with rules')
        self.assertLess(slow, 30)
        self.proofs += 1
        return plain

    def test_sh(self):
        out = self.same('sh', '-c', 'echo out; echo err >&2; echo a | cat; exec 5>&1; echo five >&5; (exit 4); echo $?; exit 3')
        self.assertEqual(out, (3, b'out\na\nfive\n4\n', b'err\n'))
        self.same('bash', '-c', 'for i in 1 2 3; do echo $i & wait; done; exec 9</etc/passwd; read -u 9 x; echo "$x"; cat <(echo y)')

    def test_ls(self):
        self.assertIn(b'etc', self.same('ls', '-la', '/usr')[1] + self.same('ls', '/')[1])
        self.same('ls', '/nonexistent')
        self.same('find', '/etc/apt', '-type', 'f')

    def test_python(self):
        code = ('import socket,select,os,sys,subprocess;s=socket.socket();a,b=socket.socketpair();a.send(b"x");print(b.recv(9));'
                'print(select.select([b],[a],[],0)[1]==[a]);print(subprocess.run(["echo","c"],capture_output=True).stdout);'
                'u=socket.socket(socket.AF_INET,socket.SOCK_DGRAM);u.bind(("127.0.0.1",0));u.sendto(b"u",u.getsockname());'
                'print(u.recv(9));print(sorted(map(int,os.listdir("/proc/self/fd")))[:4]);sys.exit(5)')
        self.assertEqual(self.same(harness.PYTHON, '-c', code)[0], 5)

    def test_node(self):
        code = ('const n=require("net");const s=n.createServer(c=>c.pipe(c)).listen("/tmp/vkr-"+process.pid,()=>{const c='
                'n.connect("/tmp/vkr-"+process.pid,()=>c.end("hello"));let d="";c.on("data",x=>d+=x);c.on("end",()=>{console.log(d);'
                's.close();console.log(require("child_process").execSync("echo child").toString())})})')
        self.assertEqual(self.same('node', '-e', code)[1], b'hello\nchild\n\n')

    def test_gdb(self):
        self.need('gdb')
        if harness.ASAN:
            self.skipTest('gdb hangs under AddressSanitizer, also without the library')
        out = self.same('gdb', '-nx', '-batch', '-ex', 'print 6*7', '-ex', 'info line main', harness.PYTHON)
        self.assertIn(b'$1 = 42', out[1])
        # A debugger that starts a program, both under the preload.
        out = self.same('gdb', '-nx', '-batch', '-ex', 'run', '--args', 'sh', '-c', 'echo inferior; exit 6')
        self.assertIn(b'inferior', out[1])

    def test_setuid(self):
        """A program that gains privilege must see no rule and say nothing."""
        self.need('su', 'passwd')
        if os.geteuid() == 0:
            user = pwd.getpwnam('nobody')
            kwargs = {'user': user.pw_uid, 'group': user.pw_gid, 'extra_groups': []}
        else:
            kwargs = {}
        self.same('passwd', '-S', **kwargs)
        self.same('su', '-c', 'true', 'root', **kwargs)

    def test_tools(self):
        self.same('git', '--version')
        self.same('perl', '-e', 'print "perl $$\n" =~ s/\\d+//r; socket(S,2,1,0); print fileno(S), "\n"; exec "echo", "done"')
        self.same('sh', '-c', 'yes | head -n 100000 | md5sum; seq 100000 | sort -n | tail -n 1 | xargs -n1 echo')
        self.same('tar', 'cf', '-', '--sort=name', '-C', '/etc', 'apt')

    def test_constructor_order(self):
        """With jemalloc, in either order: up in under a second (case 26)."""
        found = [p for p in ('/usr/lib/x86_64-linux-gnu/libjemalloc.so.2', '/usr/lib/aarch64-linux-gnu/libjemalloc.so.2')
                 if os.path.exists(p)]
        if not found:
            self.skipTest('libjemalloc is not installed')
        if harness.ASAN:
            self.skipTest('two replacements of malloc do not go together')
        self.proofs += 1
        if not harness.CARRIED:
            return
        for order in (f'{found[0]}:{self.shim}', f'{self.shim}:{found[0]}'):
            env = {**os.environ, 'LD_PRELOAD': order, 'VKRDMA_LISTEN': '*', 'VKRDMA_CONNECT': '*'}
            t0 = time.monotonic()
            out = subprocess.run(['sh', '-c', 'echo up'], env=env, capture_output=True, timeout=30, check=True)
            self.assertEqual((out.stdout, out.stderr), (b'up\n', b''), order)
            self.assertLess(time.monotonic() - t0, 1, order)


if __name__ == '__main__':
    harness.main()
