#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The preloaded library against libc: the same calls, the same programs, with and without it.

test_intercept.py LIBRARY FOLDER_WITH_THE_TEST_PROGRAMS
"""
import os
import re
import resource
import shutil
import signal
import subprocess
import sys

LIB, FOLDER = (os.path.abspath(a) for a in sys.argv[1:3])
CALLS, FORTIFIED, EARLY = (os.path.join(FOLDER, 'test_intercept_' + n) for n in ('calls', 'fortified', 'early.so'))
IDLE = {'LD_PRELOAD': LIB}
RULE = {'LD_PRELOAD': LIB, 'VKRDMA_LISTEN': '*', 'VKRDMA_CONNECT': '*', 'VKRDMA_LOG': 'none'}
MODES = {'native': {}, 'no rule': IDLE, 'every port': RULE}
START_S = 1.0       # what the preload may add to a program's start
failures = []
checks = 0


def run(argv, env, timeout=30):
    """(exit status or -signal, stdout, stderr, seconds of processor time: a busy machine stretches the other kind)"""
    begin = resource.getrusage(resource.RUSAGE_CHILDREN)
    full = {k: v for k, v in os.environ.items() if not k.startswith('VKR') and k != 'LD_PRELOAD'}
    full.update(env)
    try:
        p = subprocess.run(argv, env=full, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           timeout=timeout)
    except subprocess.TimeoutExpired:
        return 'timeout', b'', b'', timeout
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    return p.returncode, p.stdout, p.stderr, end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime


def check(name, good, detail=''):
    global checks
    checks += 1
    if not good:
        failures.append(name)
        print('not ok - %s %s' % (name, detail))


def calls():
    for case in subprocess.check_output([CALLS, '--list'], text=True).split():
        for mode, env in MODES.items():
            if mode == 'every port':
                env = dict(env, VKR_TEST_RAISED='1')
            status, _, err, _ = run([CALLS, case], env)
            check('%s (%s)' % (case, mode), status in (0, 77), 'status %s: %s' % (status, err.decode().strip()))


def fortified():
    for mode, env in MODES.items():
        status, _, err, _ = run([FORTIFIED], env)
        check('fortified, fits (%s)' % mode, status == 0, '%s %s' % (status, err))
        for name in ('read', 'recv', 'recvfrom', 'poll', 'ppoll'):
            status, _, err, _ = run([FORTIFIED, name], env)
            check('fortified %s overflows (%s)' % (name, mode), status == -signal.SIGABRT and b'overflow' in err,
                  '%s %s' % (status, err))


def programs():
    script = 'import subprocess, multiprocessing as m, socket, select, signal; socket.socket().close(); ' \
        'print(subprocess.run(["echo", "x"], stdout=-1, close_fds=True).stdout); ' \
        'p = m.Process(target=print, args=(1,)); p.start(); p.join(); print(select.select([], [], [], 0))'
    node = 'require("child_process").execFile("echo", ["x"], (e, o) => console.log(o)); ' \
        'require("net").createServer().listen(0, function () { this.close(); })'
    return [
        ['sh', '-c', 'echo a | cat; (exit 3)'],
        ['ls', '/'],
        ['perl', '-MSocket', '-e', 'socket(S, PF_INET, SOCK_STREAM, 0) or die; print `echo x`, system("exit 2"), "\n"'],
        ['/usr/bin/python3', '-c', script],
        ['node', '-e', node],
        ['gdb', '-q', '-batch', '-nx', '-ex', 'run', '-ex', 'p 1', '--args', '/bin/echo', 'x'],
        ['redis-server', '--version'],
        ['redis-cli', '--version'],
        ['ping', '-V'],
        ['su', '--help'],
        ['setpriv', '--reuid=65534', '--regid=65534', '--clear-groups', 'su', '--help'],
        ['bash', '-c', 'exec 9<>/dev/null; ulimit -n; echo $((1 + 1)) >&9'],
        ['awk', 'BEGIN { "echo x" | getline v; print v; exit 4 }'],
        ['tar', 'cf', '/dev/null', '/etc/hostname'],
        ['openssl', 'version'],
    ]


# What differs from run to run without any preload.
NOISE = [(rb'process \d+', b'process N'), (rb'0x[0-9a-f]+', b'0xN'), (rb'time[=<]?[\d. ]+m?s', b'time')]


def quiet(text):
    for pattern, to in NOISE:
        text = re.sub(pattern, to, text)
    return text


def same_program(name, argv, env, native):
    status, out, err, took = run(argv, env)
    want = native[:3]
    check(name, (status, quiet(out), quiet(err)) == (want[0], quiet(want[1]), quiet(want[2])),
          '%s instead of %s' % ((status, out, err), want))
    check(name + ': starts in time', took < native[3] + START_S, '%.2f s, natively %.2f s' % (took, native[3]))


def compare_programs():
    for argv in programs():
        if not shutil.which(argv[0]):
            print('# %s is not installed' % argv[0])
            continue
        native = run(argv, {})
        for mode, env in list(MODES.items())[1:]:
            same_program('%s (%s)' % (argv[0], mode), argv, env, native)


def neighbours():
    """Other preloaded libraries, before and after ours."""
    others = {'a constructor with sockets': EARLY}
    for name in ('jemalloc.so.2', 'tcmalloc_minimal.so.4', 'mimalloc.so.2'):
        for folder in ('/usr/lib/x86_64-linux-gnu', '/usr/lib/aarch64-linux-gnu', '/usr/lib'):
            path = '%s/lib%s' % (folder, name)
            if os.path.exists(path):
                others[name] = path
                break
        else:
            print('# lib%s is not installed' % name)
    argvs = [['/bin/echo', 'x'], ['sh', '-c', 'ls / | wc -l'],
             ['/usr/bin/python3', '-c', 'import socket, subprocess; print(subprocess.check_output(["echo", "x"]))']]
    for name, path in others.items():
        for argv in argvs:
            native = run(argv, {'LD_PRELOAD': path})
            check('%s, alone: %s' % (name, argv[0]), native[0] == 0, str(native))
            for mode, env in list(MODES.items())[1:]:
                for order in (path + ':' + LIB, LIB + ':' + path):
                    same_program('%s, %s: %s (%s)' % (name, 'first' if order.startswith(path) else 'second', argv[0],
                                                      mode), argv, dict(env, LD_PRELOAD=order), native)


def all_together():
    paths = [p for p in (EARLY, LIB) if os.path.exists(p)]
    status, _, err, _ = run([CALLS, 'exec_forms'], dict(RULE, LD_PRELOAD=':'.join(paths)))
    check('the calls beside another library', status == 0, str(err))


def main():
    dynamic = subprocess.check_output(['readelf', '-d', LIB], text=True)
    if re.search(r'lib(asan|tsan)', dynamic):
        print('# a sanitizer must come first in every program: skipped')
        sys.exit(77)
    for part in (calls, fortified, compare_programs, neighbours, all_together):
        part()
    print('%d checks, %d failed' % (checks, len(failures)))
    sys.exit(1 if failures else 0)


main()
