# SPDX-License-Identifier: BSD-2-Clause
"""procs.py SCENARIO PORT: child processes of a program that holds carried connections (case 55)."""
import concurrent.futures
import multiprocessing
import os
import subprocess
import sys

import redis

PORT = int(sys.argv[2])


def new():
    return redis.Redis(os.environ['VKR_HOST'], PORT)


def square(n):
    return n * n


def child_with_own_connection(n):
    """The child opens its own flagged connection; it does not touch the parent's."""
    return int(new().incrby('total', n))


def held_connections(count=5):
    clients = [new() for _ in range(count)]
    for i, c in enumerate(clients):
        assert c.set(f'held:{i}', i)
    return clients


def check(clients):
    for i, c in enumerate(clients):
        assert c.get(f'held:{i}') == b'%d' % i


def run():
    """subprocess.run in every style, between requests."""
    clients = held_connections()
    for _ in range(20):
        assert subprocess.run(['echo', 'hello'], capture_output=True, check=True).stdout == b'hello\n'
        assert subprocess.run('echo $((6*7))', shell=True, capture_output=True, check=True).stdout == b'42\n'
        assert subprocess.run(['cat'], input=b'x' * 100000, capture_output=True, check=True, close_fds=False).stdout == b'x' * 100000
        check(clients)
    with subprocess.Popen(['sleep', '0.2']) as p:  # the clients are used while a child lives
        while p.poll() is None:
            check(clients)
    assert os.system('true') == 0
    assert os.popen('echo popen').read() == 'popen\n'
    check(clients)


def preexec():
    """preexec_fn forces fork instead of vfork."""
    clients = held_connections()
    for _ in range(10):
        p = subprocess.run(['echo', 'x'], preexec_fn=lambda: os.setpgid(0, 0), capture_output=True, check=True)
        assert p.stdout == b'x\n'
        check(clients)


def fork_pool():
    clients = held_connections()
    context = multiprocessing.get_context('fork')
    with context.Pool(4) as pool:
        assert pool.map(square, range(200)) == [n * n for n in range(200)]
        check(clients)
    with context.Pool(4) as pool:
        pool.map(child_with_own_connection, range(20))
    check(clients)
    assert int(clients[0].get('total')) == sum(range(20))


def spawn_pool():
    clients = held_connections()
    context = multiprocessing.get_context('spawn')
    with context.Pool(2) as pool:
        pool.map(child_with_own_connection, range(10))
    check(clients)
    assert int(clients[0].get('total')) == sum(range(10))


def executor():
    clients = held_connections()
    with concurrent.futures.ProcessPoolExecutor(3, mp_context=multiprocessing.get_context('forkserver')) as pool:
        assert list(pool.map(square, range(50))) == [n * n for n in range(50)]
    check(clients)


def fork_exit():
    """Children that leave by every door while the parent goes on."""
    clients = held_connections()
    for how in (0, 1, 2):
        pid = os.fork()
        if pid == 0:
            if how == 0:
                os._exit(7)
            if how == 1:
                sys.exit(7)
            os.execvp('sh', ['sh', '-c', 'exit 7'])
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7, how
        check(clients)


if __name__ == '__main__':
    globals()[sys.argv[1]]()
    print('ok')
