#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause
"""Conformance tests, carried, while libc or the device fails (README.md).

    run.py --build build --kind alloc [--seed N] [--odds N] [--jobs N] [TEST...]

TEST is a conformance test's name, or the beginning of one. Without a seed or tests: FEW of them with seed 1, or all with that
and with a random seed where VKR_TIER is full. Ends with what was injected, and 1 if any test ended as it must not.
"""
import argparse
import concurrent.futures
import glob
import os
import random
import re
import resource
import struct
import subprocess
import sys
import tempfile

KINDS = ('alloc', 'fds', 'intr', 'short', 'again')  # trouble.h
FIRST = 4096  # descriptors from here on are the library's: the program's soft limit

# kind: (environment for one of N, usual N, is the program to notice nothing)
MODES = {
    'alloc': ('VKR_TROUBLE=alloc={n}', 25, False),
    'fds': ('VKR_TROUBLE=fds={n}', 40, False),
    'memlock': ('VKRDMA_SOFT_FAULT=seed={seed},odds_reg_mr={n},odds_create_qp={n},odds_create_cq={n}', 12, False),
    'post': ('VKRDMA_SOFT_FAULT=seed={seed},odds_post={n}', 150, False),
    'late': ('VKRDMA_SOFT_FAULT=seed={seed},late={n}', 2000, True),
    'intr': ('VKR_TROUBLE=intr={n}', 3, True),
    'short': ('VKR_TROUBLE=short={n}', 2, True),
    'again': ('VKR_TROUBLE=again={n}', 1, True),
}
# Tests that say nothing here, by kind.
LEFT_OUT = {
    'pr_constructor': None,                            # needs another preload
    'sg_mixed_handlers': None, 'sk_rlimit_emfile': None,  # not promised
    'sk_accept_order': False, 'sk_backlog_negative': False, 'sk_names_args': False,  # the order of TCP and RDMA connections
    'sk_listener_poll': False, 'sk_connect_already': False,  # the same
    'sk_churn': False, 'sk_churn_threads': False, 'sk_many': False, 'sk_connect_close': False,  # count from before there was an engine; churn.c does it
    'fk_child_reconnected': False, 'fk_heirs_cost_nothing': False, 'to_connect': False,  # ask whether they are carried
    'sk_rlimit_huge': True,                            # the program's own number is as high as the library's
    'po_args': True, 'po_efault': True,                # bad pointers: the preload would fault
}
# Connections of every sort, shared ones, sleepers, bulk: what touches most of what can fail.
FEW = ('trouble_churn', 'ep_level', 'ep_nested_edge', 'ep_two_sets', 'fk_child_bulk', 'fk_child_closes', 'fk_child_shares', 'fk_exec_inherit', 'fk_passing',
       'fk_prefork', 'fk_spawn', 'io_random_threads', 'io_sizes', 'io_splice', 'io_stdio', 'po_several', 'po_wake', 'sk_accept_flags',
       'sk_churn', 'sk_close_unread', 'sk_connect_nonblock', 'sk_linger', 'sk_options', 'th_readers')
# What a program may be told when memory, descriptors or a connection are gone.
LACK = r'\b(ENOMEM|ENOBUFS|EMFILE|ENFILE|ENOSPC)\b|cannot be given to the process that accepts it|handed over ends|cannot be shared with'


# A waiter that has no eventfd looks every millisecond: it does not stay asleep.
RESTLESS = 'never blocked'


def limits():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (FIRST, hard))


def judge(mode, status, text):
    """None, or what is wrong."""
    if status == 0:
        return None
    if status in (77, 'skip'):
        return None
    lack = not MODES[mode][2] and re.search(LACK, text)
    if status == 124 and lack:
        return None  # one process of the test was told, and ended: the other waits for it
    if status == 'timeout' or status == 124:
        return 'hangs'
    if status < 0 and not ((lack or mode == 'post') and status == -13):  # SIGPIPE: the other end has given up
        return f'ends by signal {-status}'
    if MODES[mode][2]:
        return f'exit {status}'
    if lack or mode == 'fds' and RESTLESS in text:
        return None
    if mode == 'post' and not re.search(r'byte \d+ of the stream', text):
        return None  # one that was told of the end of its connection may say anything about it
    return f'exit {status}, and not for want of anything'


def run(args, test, seed, counts, spec=None):
    mode = MODES[args.kind]
    name, value = (spec or mode[0]).format(n=args.odds or mode[1], seed=seed, kind=args.kind).split('=', 1)
    env = {k: v for k, v in os.environ.items() if not k.startswith(('VKR_', 'VKRDMA_', 'CONF_')) and k != 'LD_PRELOAD'}
    env.update({'LD_PRELOAD': f'{args.build}/libvkrdma.so:{args.trouble}', 'VKRDMA_PROVIDER': 'soft', 'VKRDMA_LISTEN': '*',
                'VKRDMA_CONNECT': '*', 'VKRDMA_LOG': 'info', 'VKR_TROUBLE_SEED': str(seed), 'VKR_TROUBLE_COUNTS': counts,
                'VKR_TROUBLE_FIRST': str(FIRST), name: value})
    if mode[2]:
        env['CONF_EXPECT_RDMA'] = '1'
    with tempfile.TemporaryFile() as out:
        p = subprocess.Popen([test], env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, preexec_fn=limits,
                             start_new_session=True)
        try:
            status = p.wait(args.timeout)
        except subprocess.TimeoutExpired:
            status = 'timeout'
            os.killpg(p.pid, 9)
            p.wait()
        out.seek(0)
        text = out.read().decode(errors='replace')
    return status, text


def rounds(args, tests, seed):
    print(f'kind {args.kind}, seed {seed}, {len(tests)} tests', flush=True)
    bad, told, rdma = [], 0, 0
    with tempfile.NamedTemporaryFile() as counts, concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        counts.write(bytes(16 * len(KINDS)))
        counts.flush()
        jobs = {pool.submit(run, args, t, seed + i, counts.name): t for i, t in enumerate(tests)}
        for job in concurrent.futures.as_completed(jobs):
            name = os.path.basename(jobs[job])
            status, text = job.result()
            rdma += len(re.findall(r' is RDMA', text))
            wrong = judge(args.kind, status, text)
            told += wrong is None and status not in (0, 77)
            if wrong:
                bad.append(name)
                said = [line for line in text.splitlines() if not line.startswith('libvkrdma[') or 'error' in line]
                print(f'FAILED {name}: {wrong}\n' + ''.join(f'    {line}\n' for line in said[-12:]), end='', flush=True)
        with open(counts.name, 'rb') as f:
            numbers = struct.unpack(f'{2 * len(KINDS)}Q', f.read())
    done = ', '.join(f'{k} {numbers[len(KINDS) + i]} of {numbers[i]}' for i, k in enumerate(KINDS) if numbers[i])
    print(f'injected: {done or "by softverbs"}; {rdma} RDMA connections; {len(tests) - len(bad) - told} passed, '
          f'{told} were told, {len(bad)} failed: {" ".join(sorted(bad))}', flush=True)
    if not rdma or ('VKR_TROUBLE' in MODES[args.kind][0] and not sum(numbers[len(KINDS):])):
        print('nothing was carried, or nothing was injected')
        return 1
    return 1 if bad else 0


def each(args, tests):
    """Every opportunity of a process, one a run."""
    bad, n, rdma, kind = 0, 0, 0, KINDS.index(args.kind)
    for test in tests:
        for n in range(1, 10000):
            args.odds = n
            with tempfile.NamedTemporaryFile() as counts:
                counts.write(bytes(16 * len(KINDS)))
                counts.flush()
                status, text = run(args, test, args.seed, counts.name, 'VKR_TROUBLE={kind}@{n}')
                done = struct.unpack_from('Q', open(counts.name, 'rb').read(), 8 * (len(KINDS) + kind))[0]
            rdma += bool(re.search(r' is RDMA', text))
            wrong = judge(args.kind, status, text)
            if wrong:
                bad += 1
                print(f'FAILED {os.path.basename(test)} {args.kind}@{n}: {wrong}\n{text}', flush=True)
            if not done:
                break
        print(f'{os.path.basename(test)}: {n - 1} opportunities, {rdma} runs with RDMA, {bad} failed', flush=True)
    return 1 if bad or n < 2 or not rdma else 0


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument('--build', default='build')
    ap.add_argument('--trouble')
    ap.add_argument('--tests')
    ap.add_argument('--kind', choices=MODES, required=True)
    ap.add_argument('--seed', type=int, default=0, help='names the sequence of random numbers')
    ap.add_argument('--odds', type=int)
    ap.add_argument('--each', action='store_true', help='every opportunity, one after the other: fds and alloc')
    ap.add_argument('--jobs', type=int, default=2)
    ap.add_argument('--timeout', type=int, default=100)
    ap.add_argument('names', nargs='*')
    args = ap.parse_args()
    args.build = os.path.abspath(args.build)
    args.trouble = args.trouble or f'{args.build}/libvkr-trouble.so'
    folder = args.tests or f'{args.build}/tests/conformance'
    tests = sorted(t for t in glob.glob(f'{folder}/conf-*') if os.access(t, os.X_OK))
    for name, when in LEFT_OUT.items():
        if when is None or when == MODES[args.kind][2]:
            tests = [t for t in tests if not t.endswith(f'/conf-{name}')]
    full = os.environ.get('VKR_TIER') == 'full'
    few = args.names or (() if full or args.seed else FEW)
    if few:
        tests = [t for t in tests if os.path.basename(t)[5:].startswith(tuple(few))]
    if not tests:
        sys.exit(f'run.py: no tests in {folder}')
    if args.each:
        sys.exit(each(args, tests))
    seeds = [args.seed] if args.seed else [1, random.randrange(2, 1 << 31)] if full else [1]
    sys.exit(max(rounds(args, tests, seed) for seed in seeds))


if __name__ == '__main__':
    main()
