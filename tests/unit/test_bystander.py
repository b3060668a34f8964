# SPDX-License-Identifier: BSD-2-Clause
"""test_bystander.py BUILD: a whole redis-server (or valkey-server) with nothing flagged: the library's share of its
instructions, counted by callgrind, is under one in a hundred, without a rule and beside a rule for another port."""
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

BUILD = sys.argv[1]
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'bench'))
sys.dont_write_bytecode = True
from part_instructions import by_function  # noqa: E402
from common import free_port, wait_port  # noqa: E402

SHARE = 0.01
REQUESTS = 3000
LIB = os.path.join(BUILD, 'libvkrdma.so')


def shares(env, server, benchmark):
    """(the library's, all) instructions of a server that answers REQUESTS."""
    with tempfile.TemporaryDirectory() as folder:
        lib, out, port = os.path.join(folder, 'libvkrdma.so'), os.path.join(folder, 'cg'), free_port()
        subprocess.check_call(['strip', '-g', '-o', lib, LIB])
        p = subprocess.Popen(['valgrind', '--tool=callgrind', f'--callgrind-out-file={out}', '-q', server, '--port', str(port),
                              '--bind', '127.0.0.1', '--save', '', '--dir', folder],
                             env={**os.environ, 'LD_PRELOAD': lib, **{k: str(v) for k, v in env.items()}},
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_port('127.0.0.1', port, p, 60)
            subprocess.check_call([benchmark, '-h', '127.0.0.1', '-p', str(port), '-n', str(REQUESTS), '-t', 'get', '-c', '20', '-q'],
                                  stdout=subprocess.DEVNULL, timeout=120)
        finally:
            p.send_signal(signal.SIGTERM)
            try:
                p.wait(30)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()
        ours = every = 0
        for name in os.listdir(folder):
            if name == 'cg' or name.startswith('cg.'):
                for (where, _), n in by_function(os.path.join(folder, name)).items():
                    every += n
                    ours += n if where.startswith('libvkrdma.so') else 0
        return ours, every


def main():
    kind = next((k for k in ('redis', 'valkey') if shutil.which(f'{k}-server')), None)
    for need in ('valgrind', f'{kind}-server', f'{kind}-benchmark'):
        if not shutil.which(need):
            print(f'{need} is not installed')
            return 77
    if 'asan' in subprocess.check_output(['readelf', '-d', LIB], text=True):
        print('a sanitizer must come first in every program')
        return 77
    bad = 0
    for what, env in (('no rule', {}), ('a rule for another port', {'VKRDMA_LISTEN': 1, 'VKRDMA_CONNECT': 1})):
        ours, every = shares(env, f'{kind}-server', f'{kind}-benchmark')
        ok = 0 < ours < SHARE * every
        bad += not ok
        print(f'{kind}-server, {what}: {ours} of {every} instructions, {100 * ours / every:.2f} %{"" if ok else ": TOO MANY"}')
    return 1 if bad else 0


socket.setdefaulttimeout(30)
sys.exit(main())
