# SPDX-License-Identifier: BSD-2-Clause
"""Suites of programs: stressors, measuring tools, servers and their clients, the kernel's own test of epoll."""
import json
import os
import re
import subprocess

from harness import fetched, free_port, program, suite


# ---------------------------------------------------------------- stress-ng

@suite('stress-ng', 'stress-ng')
def stress_ng(mode, work):
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

@suite('memcached', 'memcached', 'libmemcached-tools')
def memcached(mode, work):
    port, tests = free_port(), {}
    user = ['-u', 'root'] if os.getuid() == 0 else []
    with mode.server('memcached', '-l', '127.0.0.1', '-p', str(port), '-U', '0', *user, port=port):
        status, out = mode.run('memccapable', '-h', '127.0.0.1', '-p', str(port), timeout=120)
    for name, result in re.findall(r'^((?:ascii|binary) .*?)\s+\[(pass|FAIL|skip)\]', out, re.M):
        tests[name] = {'pass': 'ok', 'skip': 'skip'}.get(result, 'fail')
    tests['exit'] = 'ok' if status == 0 else 'fail'
    return tests


@suite('iperf3', 'iperf3')
def iperf3(mode, work):
    tests = {}
    for name, options in (('upload', []), ('download', ['-R']), ('both ways', ['--bidir']), ('four streams', ['-P', '4']),
                          ('a block', ['-n', '64M']), ('small writes', ['-l', '100', '-n', '4M']),
                          ('zero copy', ['-Z', '-n', '64M']), ('limited', ['-b', '50M'])):
        port = free_port()
        with mode.server('iperf3', '-s', '-1', '-p', str(port)) as server:
            mode.listening(port)
            status, out = mode.run('iperf3', '-c', '127.0.0.1', '-p', str(port), '-J', *options,
                                   *([] if '-n' in options else ['-t', '3']), timeout=60)
            try:
                tests[name] = 'ok' if status == 0 and json.loads(out)['end']['sum_received']['bytes'] > 0 else 'fail'
                server.wait(10)  # it has served its client, and is to know that
            except (ValueError, KeyError, subprocess.TimeoutExpired):
                tests[name] = 'fail'
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
    return path


@suite('nginx', 'nginx-light', 'wrk')
def nginx(mode, work):
    tests = {}
    for name, options in (('one process', {}), ('without sendfile', {'sendfile': 'off'}),
                          ('two workers', {'master': 'on', 'workers': 2})):
        port = free_port()
        config = nginx_config(mode, port, name.replace(' ', '-'), **options)
        with mode.server(program('nginx'), '-p', mode.dir, '-c', config, port=port):
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


@suite('haproxy', 'haproxy', 'nginx-light', 'wrk')
def haproxy(mode, work):
    tests, server = {}, free_port()
    config = nginx_config(mode, server, 'server')
    with mode.server(program('nginx'), '-p', mode.dir, '-c', config, port=server):
        for kind in ('http', 'tcp'):
            for threads in (1, 2):
                port = free_port()
                path = os.path.join(mode.dir, f'{kind}-{threads}.cfg')
                with open(path, 'w') as f:
                    f.write(HAPROXY.format(mode=kind, threads=threads, port=port, server=server))
                with mode.server(program('haproxy'), '-db', '-f', path, port=port):
                    for name in ('small', 'large'):
                        tests[f'{kind}, {threads} threads: {name}'] = wrk(mode, port, name)
    return tests



# ---------------------------------------------------------------- tools that measure

@suite('netperf', things=['netperf'])
def netperf(mode, work):
    """netserver forks for each client, or serves one client in its own process (-f), which it may not survive."""
    root, tests = os.path.join(fetched('netperf'), 'root', 'usr', 'bin'), {}
    for how, options, names in (('forking', [], ('TCP_STREAM', 'TCP_MAERTS', 'TCP_SENDFILE', 'TCP_RR', 'TCP_CRR')),
                                ('one process', ['-f'], ('TCP_STREAM', 'TCP_MAERTS', 'TCP_SENDFILE'))):
        for name in names:
            port = free_port()
            with mode.server(f'{root}/netserver', '-D', '-4', '-p', str(port), *options):
                mode.listening(port)
                status, out = mode.run(f'{root}/netperf', '-4', '-H', '127.0.0.1', '-p', str(port), '-t', name, '-l', '2', '-P', '0',
                                       *(['-F', f'{root}/netperf'] if name == 'TCP_SENDFILE' else []), timeout=40)
            figures = [float(n) for n in re.findall(r'(?:^|\s)(\d+\.\d+)(?=\s|$)', out)]
            tests[f'{how}: {name}'] = 'ok' if status == 0 and len(figures) >= 2 and figures[-1] > 0 else 'fail'
    return tests


@suite('rstream', 'rdmacm-utils')
def rstream(mode, work):
    """rdma-core's rstream on plain sockets (-T s)."""
    tests = {}
    for name, options in (('mixed sizes', ['-T', 'v', '-S', 'all']), ('blocking', ['-T', 'b', '-T', 'v']),
                          ('nonblocking', ['-T', 'n', '-T', 'v']), ('poll', ['-T', 'a', '-T', 'v']), ('forking', ['-T', 'f', '-T', 'v']),
                          ('keepalive', ['-k', '1', '-T', 'v']), ('IPv6', ['-f', 'ipv6', '-T', 'v'])):
        port, host = free_port(), '::1' if name == 'IPv6' else '127.0.0.1'
        common = ['rstream', '-p', str(port), '-T', 's', '-S', '16384', '-I', '100', '-C', '10', *options]
        with mode.server(*common, '-b', host) as server:
            mode.listening(port)
            status, out = mode.run(*common, '-s', host, timeout=100)
            good = status == 0 and re.search(r'\d+\.\d+', out) and 'fail' not in out
            try:
                good = server.wait(10) == 0 and good
            except subprocess.TimeoutExpired:
                good = False
        tests[name] = 'ok' if good else 'fail'
    return tests


# ---------------------------------------------------------------- tests that are in source packages

@suite('hiredis', 'redis-server', things=['hiredis'])
def hiredis(mode, work):
    """Its test program over TCP, a Unix socket and an inherited descriptor, blocking and by libevent."""
    binary, port, tests = os.path.join(fetched('hiredis'), 'source', 'hiredis-test'), free_port(), {}
    unix, heading, seen = os.path.join(mode.dir, 'redis.sock'), 'alone', {}
    with mode.server(program('redis-server'), '--port', str(port), '--save', '', '--unixsocket', unix, '--enable-debug-command',
                     'local', port=port):
        status, out = mode.run('stdbuf', '-oL', binary, '-h', '127.0.0.1', '-p', str(port), '-s', unix, timeout=200)
    for line in re.sub(r'\x1b\[[\d;]*m', '', out).splitlines():
        if m := re.match(r'Testing against ([\w ]+?)(?: connection)? \(', line):
            heading = m.group(1)
        elif m := re.match(r'#\d+ (.*?):? *(PASSED|FAILED|SKIPPED)?$', line):
            name = f'{heading}: {m.group(1)}'
            seen[name] = seen.get(name, 0) + 1
            name += f' ({seen[name]})' if seen[name] > 1 else ''
            # What it prints between a test's name and its result stands on lines of its own.
            tests[name] = {'PASSED': 'ok', 'SKIPPED': 'skip'}.get(m.group(2), 'fail')
            last = name
        elif re.match(r'\t\(\d+x .*: [\d.]+s\)$', line):
            tests[last] = 'ok'  # of Throughput, which says how long it took
        elif m := re.match(r'.*(PASSED|SKIPPED)$', line):
            tests[last] = {'PASSED': 'ok', 'SKIPPED': 'skip'}[m.group(1)]
    tests['exit'] = 'ok' if status == 0 else 'fail'
    return tests


@suite('epoll-wakeup', things=['epoll-wakeup'])
def epoll_wakeup(mode, work):
    """The kernel's selftest; a test of it runs in a process of its own."""
    status, out = mode.run(os.path.join(fetched('epoll-wakeup'), 'epoll_wakeup_test'), timeout=900)
    tests = {name: 'fail' if bad else 'ok' for bad, name in re.findall(r'^(not )?ok \d+ (\S+)', out, re.M)}
    planned = re.search(r'^1\.\.(\d+)', out, re.M)
    tests['all ran'] = 'ok' if planned and len(tests) == int(planned.group(1)) else 'fail'
    return tests
