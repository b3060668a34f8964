#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause
"""Other people's test suites, each natively and carried, and what differs (scripts/suites.sh runs this).

    run.py [--work DIR] [--list] [NAME...]

A suite is a function that is given a Mode and returns its tests: a dictionary of name -> 'ok', 'fail' or 'skip'. In carried
mode every listener and every connection is flagged. The library's log, a line for each connection, is the evidence: how many
were RDMA, how many TCP, and why. Differences that are explained stand in README.md beside this file, one line each.
"""
import argparse
import collections
import contextlib
import glob
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILD = os.path.abspath(os.environ.get('VKR_BUILD', os.path.join(ROOT, 'build')))
PYTHON = '/usr/bin/python3'  # Debian's: its test suite belongs to it
SUITES = {}
NO_TCP = {'cpython-select', 'cpython-selectors', 'cpython-poll'}  # pipes and Unix sockets alone


class Skip(Exception):
    """The suite cannot run here, with the reason."""


class Mode:
    def __init__(self, suite, name, work):
        self.name, self.carried = name, name == 'carried'
        self.dir = os.path.join(work, suite, name)
        shutil.rmtree(self.dir, ignore_errors=True)
        os.makedirs(self.dir)
        self.log = os.path.join(self.dir, 'vkrdma.log')
        self.only = None  # some tests, once more

    def env(self, **more):
        env = dict(os.environ, PYTHONDONTWRITEBYTECODE='1', LC_ALL='C.UTF-8', **more)
        env.pop('LD_PRELOAD', None)
        if self.carried:
            env.update(LD_PRELOAD=os.path.join(BUILD, 'libvkrdma.so'), VKRDMA_LISTEN='*', VKRDMA_CONNECT='*',
                       VKRDMA_LOG=f'info:{self.log}')
            env.setdefault('VKRDMA_PROVIDER', 'soft')
        return env

    def run(self, *command, timeout=120, **env):
        """The exit status (124: it took too long) and the output, which is also kept in a file."""
        with open(os.path.join(self.dir, 'output'), 'ab+') as out:
            at = out.tell()
            p = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                 env=self.env(**env), cwd=self.dir, start_new_session=True)
            try:
                status = p.wait(timeout)
            except subprocess.TimeoutExpired:
                status = 124
            with contextlib.suppress(ProcessLookupError):
                os.killpg(p.pid, signal.SIGKILL)  # what it left behind
            p.wait()
            out.seek(at)
            return status, out.read().decode(errors='replace')

    @contextlib.contextmanager
    def server(self, *command, port, **env):
        with open(os.path.join(self.dir, 'server'), 'ab') as out:
            p = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self.env(**env),
                                 cwd=self.dir, start_new_session=True)
        try:
            self.wait_for(port, p)
            yield p
        finally:
            p.terminate()
            try:
                p.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(p.pid, signal.SIGKILL)
                p.wait()

    @staticmethod
    def wait_for(port, process):
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.closing(socket.socket()) as s:
                if s.connect_ex(('127.0.0.1', port)) == 0:
                    return
            time.sleep(0.05)
        raise Skip(f'the server did not come up on port {port}')

    def evidence(self):
        """Connections by transport, and why those by TCP were."""
        count, why = collections.Counter(), collections.Counter()
        if os.path.exists(self.log):
            with open(self.log, errors='replace') as f:
                for line in f:
                    if ' is RDMA (' in line:
                        count['rdma'] += 1
                    elif m := re.search(r' is TCP \(rule .*?\): (.*)', line):
                        count['tcp'] += 1
                        why[re.sub(r'\d+', 'N', m.group(1))] += 1
        return count['rdma'], count['tcp'], why


def suite(name):
    def note(function):
        SUITES[name] = function
        return function
    return note


def need(*programs):
    for p in programs:
        if not shutil.which(p, path=os.environ['PATH'] + ':/usr/sbin:/sbin'):
            raise Skip(f'{p} is not installed (scripts/install-deps.sh --suites)')


def free_port():
    with contextlib.closing(socket.socket()) as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


# ---------------------------------------------------------------- Python's unittest suites

def unittests(mode, modules, path=None, limit=60, timeout=1500, **env):
    """A test that hangs or kills the interpreter costs that one test: run_unittests.py goes on behind it."""
    out = os.path.join(mode.dir, 'results' if not mode.only else 'again')
    if mode.only:
        env['VKR_SUITE_ONLY'] = ' '.join(mode.only)
    if path:
        env['PYTHONPATH'] = path
    for _ in range(20):
        mode.run(PYTHON, os.path.join(HERE, 'run_unittests.py'), out, *modules, timeout=timeout,
                 VKR_SUITE_LIMIT=str(limit), **env)
        with open(out) as f:
            lines = f.read().splitlines()
        if lines and lines[-1] == 'end':
            break
    tests = {}
    for line in lines:
        what, _, name = line.partition(' ')
        if what == 'start':
            tests[name] = 'fail'  # unless its end is there
        elif what in ('ok', 'fail', 'skip'):
            tests[name] = what
    return tests


def cpython_path(work):
    """Debian's package of Python's tests, unpacked beside what is installed: it wants its own interpreter's version."""
    version = subprocess.run([PYTHON, '-c', 'import sys; print("%d.%d" % sys.version_info[:2])'], capture_output=True,
                             text=True, check=True).stdout.strip()
    path = os.path.join(work, f'cpython-{version}')
    if os.path.exists(os.path.join(path, 'done')):
        return path
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(os.path.join(path, 'package'))
    if subprocess.run(['apt-get', 'download', f'libpython{version}-testsuite'], cwd=path, check=False,
                      capture_output=True).returncode:
        raise Skip(f'apt-get download libpython{version}-testsuite failed')
    subprocess.run(['dpkg', '-x', glob.glob(f'{path}/*.deb')[0], f'{path}/package'], check=True)
    for base in (f'/usr/lib/python{version}', f'{path}/package/usr/lib/python{version}'):
        shutil.copytree(f'{base}/test', f'{path}/test', dirs_exist_ok=True)
    shutil.rmtree(f'{path}/package')
    open(os.path.join(path, 'done'), 'w').close()
    return path


def cpython(name):
    @suite(f'cpython-{name}')
    def run(mode, work):
        path = cpython_path(work)
        if name == 'asyncio':
            modules = sorted('test.test_asyncio.' + os.path.basename(p)[:-3]
                             for p in glob.glob(f'{path}/test/test_asyncio/test_*.py') if 'windows' not in p)
        else:
            modules = [f'test.test_{name}']
        return unittests(mode, modules, path)


for module in ('socket', 'select', 'selectors', 'epoll', 'poll', 'socketserver', 'ftplib', 'httplib', 'asyncio'):
    cpython(module)


@suite('tornado')
def tornado(mode, work):
    names = ('iostream', 'tcpserver', 'tcpclient', 'netutil', 'httpserver', 'simple_httpclient', 'httpclient', 'websocket',
             'ioloop')
    if not glob.glob('/usr/lib/python3/dist-packages/tornado/test/iostream_test.py'):
        raise Skip('python3-tornado is not installed (scripts/install-deps.sh --suites)')
    return unittests(mode, [f'tornado.test.{n}_test' for n in names], ASYNC_TEST_TIMEOUT='30')


@suite('twisted')
def twisted(mode, work):
    names = ('internet.test.test_tcp', 'internet.test.test_socket', 'internet.test.test_endpoints', 'internet.test.test_fdset',
             'internet.test.test_epollreactor', 'test.test_tcp', 'test.test_tcp_internals', 'test.test_ftp',
             'web.test.test_http')
    if not glob.glob('/usr/lib/python3/dist-packages/twisted/test/test_tcp.py'):
        raise Skip('python3-twisted is not installed (scripts/install-deps.sh --suites)')
    return unittests(mode, [f'twisted.{n}' for n in names])


# ---------------------------------------------------------------- stress-ng

@suite('stress-ng')
def stress_ng(mode, work):
    need('stress-ng')
    tests = {}
    variants = [('sock', f'sock-{o}', ['--sock-opts', o]) for o in ('send', 'sendmsg', 'sendmmsg', 'random')]
    variants += [('sock', 'sock-ipv6', ['--sock-domain', 'ipv6']), ('sock', 'sock-nodelay', ['--sock-nodelay']),
                 ('epoll', 'epoll-ipv4', ['--epoll-domain', 'ipv4']), ('epoll', 'epoll-ipv6', ['--epoll-domain', 'ipv6']),
                 ('poll', 'poll', [])]
    for stressor, name, options in variants:
        port = ['--sock-port', '21000'] if stressor == 'sock' else ['--epoll-port', '22000'] if stressor == 'epoll' else []
        status, out = mode.run('stress-ng', f'--{stressor}', '1', '--verify', '--timeout', '5', '--metrics-brief',
                               *options, *port, timeout=60)
        done = re.search(rf'\] {stressor} +(\d+) ', out)
        tests[name] = 'ok' if status == 0 and done and int(done.group(1)) > 0 else 'fail'
    return tests


# ---------------------------------------------------------------- servers and their clients

@suite('memcached')
def memcached(mode, work):
    need('memcached', 'memccapable')
    port, tests = free_port(), {}
    user = ['-u', 'root'] if os.getuid() == 0 else []
    with mode.server('memcached', '-l', '127.0.0.1', '-p', str(port), '-U', '0', *user, port=port):
        status, out = mode.run('memccapable', '-h', '127.0.0.1', '-p', str(port), timeout=120)
    for name, result in re.findall(r'^((?:ascii|binary) .*?)\s+\[(pass|FAIL|skip)\]', out, re.M):
        tests[name] = {'pass': 'ok', 'skip': 'skip'}.get(result, 'fail')
    tests['exit'] = 'ok' if status == 0 else 'fail'
    return tests


@suite('iperf3')
def iperf3(mode, work):
    need('iperf3')
    tests = {}
    for name, options in (('upload', []), ('download', ['-R']), ('both ways', ['--bidir']), ('four streams', ['-P', '4']),
                          ('a block', ['-n', '64M']), ('small writes', ['-l', '100', '-n', '4M']),
                          ('zero copy', ['-Z', '-n', '64M']), ('limited', ['-b', '50M'])):
        port = free_port()
        server = subprocess.Popen(['iperf3', '-s', '-1', '-p', str(port)], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=mode.env())
        try:
            for _ in range(100):
                status, out = mode.run('iperf3', '-c', '127.0.0.1', '-p', str(port), '-J', *options,
                                       *([] if '-n' in options else ['-t', '3']), timeout=60)
                if 'Connection refused' not in out:
                    break
                time.sleep(0.05)
            try:
                end = json.loads(out)['end']
                good = status == 0 and end['sum_received']['bytes'] > 0
                tests[name] = 'ok' if good else 'fail'
            except (ValueError, KeyError):
                tests[name] = 'fail'
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                tests[name] = 'fail'
        finally:
            server.kill()
            server.wait()
    return tests


def wrk(mode, port, name, *options):
    """No error of any kind, and only good answers."""
    status, out = mode.run('wrk', '-t', '2', '-c', '32', '-d', '4', *options, f'http://127.0.0.1:{port}/{name}')
    requests = re.search(r'(\d+) requests in', out)
    good = status == 0 and requests and int(requests.group(1)) > 0
    return 'ok' if good and 'Socket errors' not in out and 'Non-2xx' not in out else 'fail'


NGINX = '''
daemon off; master_process {master}; worker_processes {workers}; pid {dir}/nginx.pid; error_log {dir}/error.log;
events {{ worker_connections 512; }}
http {{ access_log off; client_body_temp_path {dir}/b; proxy_temp_path {dir}/p; fastcgi_temp_path {dir}/f;
  uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s; sendfile {sendfile};
  server {{ listen 127.0.0.1:{port}; root {dir}/www; }} }}
'''


def nginx_config(mode, port, name, **options):
    www = os.path.join(mode.dir, 'www')
    os.makedirs(www, exist_ok=True)
    for n, size in (('small', 100), ('large', 300000)):
        with open(os.path.join(www, n), 'wb') as f:
            f.write(os.urandom(size))
    values = dict(dir=mode.dir, port=port, master='off', workers=1, sendfile='on')
    values.update(options)
    path = os.path.join(mode.dir, f'{name}.conf')
    with open(path, 'w') as f:
        f.write(('user root;' if os.getuid() == 0 else '') + NGINX.format(**values))
    os.chmod(mode.dir, 0o755)
    return path


@suite('nginx')
def nginx(mode, work):
    need('nginx', 'wrk')
    tests, binary = {}, shutil.which('nginx', path=os.environ['PATH'] + ':/usr/sbin')
    for name, options in (('one process', {}), ('without sendfile', {'sendfile': 'off'}),
                          ('two workers', {'master': 'on', 'workers': 2})):
        port = free_port()
        config = nginx_config(mode, port, name.replace(' ', '-'), **options)
        with mode.server(binary, '-p', mode.dir, '-c', config, port=port):
            tests[f'{name}: small'] = wrk(mode, port, 'small')
            tests[f'{name}: large'] = wrk(mode, port, 'large')
            tests[f'{name}: connection each'] = wrk(mode, port, 'small', '-H', 'Connection: close')
    return tests


HAPROXY = '''
global
  maxconn 400
  nbthread {threads}
defaults
  mode {mode}
  timeout connect 5s
  timeout client 30s
  timeout server 30s
frontend in
  bind 127.0.0.1:{port}
  default_backend out
backend out
  server one 127.0.0.1:{server}
'''


@suite('haproxy')
def haproxy(mode, work):
    need('haproxy', 'nginx', 'wrk')
    tests, server = {}, free_port()
    search = os.environ['PATH'] + ':/usr/sbin'
    config = nginx_config(mode, server, 'server')
    with mode.server(shutil.which('nginx', path=search), '-p', mode.dir, '-c', config, port=server):
        for kind in ('http', 'tcp'):
            for threads in (1, 2):
                port = free_port()
                path = os.path.join(mode.dir, f'{kind}-{threads}.cfg')
                with open(path, 'w') as f:
                    f.write(HAPROXY.format(mode=kind, threads=threads, port=port, server=server))
                with mode.server(shutil.which('haproxy', path=search), '-db', '-f', path, port=port):
                    for name in ('small', 'large'):
                        tests[f'{kind}, {threads} threads: {name}'] = wrk(mode, port, name)
    return tests


# ---------------------------------------------------------------- the table

def explained():
    """README.md's list: `- suite: test: why`; a test may end in * for all that begin so."""
    found = []
    with open(os.path.join(HERE, 'README.md')) as f:
        for line in f:
            if m := re.match(r'- `([\w-]+)`: `(.+?)`: (.+)', line):
                found.append(m.groups())
    return found


def explanation(known, name, test):
    for s, pattern, why in known:
        if s == name and (test == pattern or (pattern.startswith('*') and test.endswith(pattern[1:])) or
                          (pattern.endswith('*') and test.startswith(pattern[:-1]))):
            return why
    return None


def run_suite(name, work):
    results, evidence, again = {}, None, []
    for which in ('native', 'carried'):
        mode = Mode(name, which, work)
        started = time.monotonic()
        results[which] = SUITES[name](mode, work)
        print(f'  {name}, {which}: {time.monotonic() - started:.0f} s', flush=True)
        evidence = mode.evidence()
    native, carried = results['native'], results['carried']
    # Many of these tests have time limits of their own, and a busy machine: those that failed carried have one more try.
    mode.only = sorted(t for t, v in native.items() if v == 'ok' and carried.get(t) != 'ok')
    if mode.only:
        for test, result in SUITES[name](mode, work).items():
            if test in mode.only and result == 'ok':
                carried[test] = 'ok'
                again.append(test)
    return native, carried, evidence, again


def main():
    p = argparse.ArgumentParser()
    p.add_argument('--work', default=os.path.join(BUILD, 'suites'))
    p.add_argument('--list', action='store_true')
    p.add_argument('names', nargs='*')
    args = p.parse_args()
    work = os.path.abspath(args.work)
    if args.list:
        print('\n'.join(SUITES))
        return 0
    unknown = [n for n in args.names if n not in SUITES]
    if unknown:
        sys.exit(f'no such suite: {unknown[0]} (--list)')
    os.makedirs(work, exist_ok=True)
    rows, differences, known, bad = [], [], explained(), 0
    for name in args.names or SUITES:
        try:
            native, carried, (rdma, tcp, why), again = run_suite(name, work)
        except Skip as e:
            rows.append((name, 'skipped:', str(e)))
            continue
        both = sum(v == 'ok' and carried.get(k) == 'ok' for k, v in native.items())
        rows.append((name, len(native), sum(v == 'ok' for v in native.values()), sum(v == 'ok' for v in carried.values()),
                     both, rdma, tcp))
        for reason, n in why.most_common():
            differences.append(f'{name}: {n} connections by TCP: {reason}')
        differences += [f'{name}: {test}: passed carried at the second try' for test in again]
        for test in sorted(set(native) | set(carried)):
            a, b = native.get(test, 'missing'), carried.get(test, 'missing')
            if a == b or (a != 'ok' and b == 'ok'):
                continue
            reason = explanation(known, name, test)
            bad += not reason
            differences.append(f"{name}: {test}: natively {a}, carried {b}{': ' + reason if reason else ': UNEXPLAINED'}")
        if not rdma and name in NO_TCP:
            differences.append(f'{name}: makes no TCP connection: the library watches, and carries nothing')
        elif not rdma:
            bad += 1
            differences.append(f'{name}: no connection was carried')
    heads = ('suite', 'tests', 'native', 'carried', 'both', 'rdma', 'tcp')
    print('\n' + ''.join(h.ljust(22) if i == 0 else h.rjust(9) for i, h in enumerate(heads)))
    for row in rows:
        if row[1] == 'skipped:':
            print(row[0].ljust(22) + f'  skipped: {row[2]}')
        else:
            print(''.join(str(c).ljust(22) if i == 0 else str(c).rjust(9) for i, c in enumerate(row)))
    print('\n' + '\n'.join(differences) if differences else '\nNo difference.')
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main())
