# SPDX-License-Identifier: BSD-2-Clause
"""Suites of Python: the interpreter's own tests of sockets, Tornado's, Twisted's and redis-py's."""
import glob
import os

import results
from debian import PYTHON
from harness import HERE, fetched, free_port, program, suite


def in_python(mode, runner, arguments, path=None, limit=60, timeout=1500, **env):
    """A test that hangs or kills the interpreter costs that one test: the runner goes on behind it."""
    out = os.path.join(mode.dir, 'results' if not mode.only else 'again')
    if mode.only:
        env['VKR_SUITE_ONLY'] = '\n'.join(mode.only)
    env['PYTHONPATH'] = f'{HERE}:{path}' if path else HERE
    tests, complete = {}, False
    for _ in range(20):
        if complete:
            break
        mode.run(PYTHON, os.path.join(HERE, runner), out, *arguments, timeout=timeout, VKR_SUITE_LIMIT=str(limit), **env)
        tests, complete = results.read(out)
    return tests


def cpython(name, **options):
    @suite(f'cpython-{name}', things=['cpython'], **options)
    def run(mode, work):
        path = fetched('cpython')
        if name == 'asyncio':
            modules = sorted('test.test_asyncio.' + os.path.basename(p)[:-3]
                             for p in glob.glob(f'{path}/test/test_asyncio/test_*.py') if 'windows' not in p)
        else:
            modules = [f'test.test_{name}']
        return in_python(mode, 'run_unittests.py', modules, path)


for module in ('socket', 'epoll', 'socketserver', 'ftplib', 'httplib', 'asyncio'):
    cpython(module)
for module in ('select', 'selectors', 'poll'):
    cpython(module, no_tcp=True)  # pipes and Unix sockets alone


@suite('tornado', 'python3-tornado')
def tornado(mode, work):
    names = ('iostream', 'tcpserver', 'tcpclient', 'netutil', 'httpserver', 'simple_httpclient', 'httpclient', 'websocket',
             'ioloop')
    return in_python(mode, 'run_unittests.py', [f'tornado.test.{n}_test' for n in names], ASYNC_TEST_TIMEOUT='30')


@suite('twisted', 'python3-twisted')
def twisted(mode, work):
    names = ('internet.test.test_tcp', 'internet.test.test_socket', 'internet.test.test_endpoints', 'internet.test.test_fdset',
             'internet.test.test_epollreactor', 'test.test_tcp', 'test.test_tcp_internals', 'test.test_ftp',
             'web.test.test_http')
    return in_python(mode, 'run_unittests.py', [f'twisted.{n}' for n in names])


@suite('redis-py', 'redis-server', 'python3-pytest', 'python3-pytest-asyncio', things=['redis-py'])
def redis_py(mode, work):
    """With a plain server: what wants modules, a cluster, sentinels or certificates is not chosen."""
    source, port = os.path.join(fetched('redis-py'), 'source'), free_port()
    names = ('', 'asyncio/')
    chosen = [f'{source}/tests/test_{n}{m}' for n in names for m in (
        'commands.py', 'connection.py', 'connection_pool.py', 'connect.py', 'encoding.py', 'lock.py', 'monitor.py', 'pipeline.py',
        'pubsub.py', 'retry.py', 'scripting.py', 'sentinel.py', 'hash.py', 'cwe_404.py', 'multiprocessing.py', 'cache.py',
        'function.py', 'helpers.py', 'utils.py')]
    with mode.server(program('redis-server'), '--port', str(port), '--save', '', '--enable-debug-command', 'yes',
                     '--enable-module-command', 'yes', port=port):
        return in_python(mode, 'run_pytest.py', [
            *[p for p in chosen if os.path.exists(p)], '-c', '/dev/null', '--rootdir', source, '-o', 'asyncio_mode=auto', '-q', '--capture=no',
            '-m', 'not onlycluster and not redismod and not ssl and not cp_integration and not replica',
            f'--redis-url=redis://127.0.0.1:{port}/0'], source, limit=90, timeout=2400)
