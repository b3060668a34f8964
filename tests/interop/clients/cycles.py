# SPDX-License-Identifier: BSD-2-Clause
"""cycles.py PORT COUNT THREADS: connect, PING, close, COUNT times; then waits for a line on stdin.

Prints the descriptors and the resident kilobytes after the first tenth and at the end: nothing may grow.
"""
import os
import socket
import sys
import threading

ADDRESS = (os.environ['VKR_HOST'], int(sys.argv[1]))
COUNT, THREADS = int(sys.argv[2]), int(sys.argv[3])
failed = []


def usage():
    with open('/proc/self/status', encoding='ascii') as f:
        kb = next(int(line.split()[1]) for line in f if line.startswith('VmRSS'))
    return len(os.listdir('/proc/self/fd')), kb


def cycle(turn):
    with socket.create_connection(ADDRESS, 30) as s:
        s.sendall(b'*1\r\n$4\r\nPING\r\n')
        got = s.recv(7, socket.MSG_WAITALL)
        assert got == b'+PONG\r\n', (turn, got)


def worker(count):
    try:
        for turn in range(count):
            cycle(turn)
    except (OSError, AssertionError) as e:
        failed.append(f'{type(e).__name__}: {e}')


def run(count):
    threads = [threading.Thread(target=worker, args=(count // THREADS,)) for _ in range(THREADS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


run(COUNT // 10)
print('early', *usage(), flush=True)
run(COUNT - COUNT // 10)
if failed:
    sys.exit('\n'.join(failed))
print('late', *usage(), flush=True)
sys.stdin.readline()
print('later', *usage(), flush=True)
