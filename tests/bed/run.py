# SPDX-License-Identifier: BSD-2-Clause
"""Runs the test bed's lists and prints a line a test, with the proof that RDMA carried it.

The lists are tests/bed/*.list; tests/bed/README.md tells what a line says. Here a test's command runs with the variables
that device.sh prints; the device's packet counters are read before and after it, and what the kernel still holds of the
device afterwards is compared with what it held before. A test that ought to use the device and leaves the counters alone
has failed, and so has one that leaves something behind.
"""
import argparse
import contextlib
import fnmatch
import glob
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
NEEDS = {'rdma', 'tcp', 'any', 'own', 'user'}
TIERS = {'core': {'core'}, 'full': {'core', 'full'}, 'bench': {'bench'}}  # of each list
FEWEST = 8  # packets: less than any connection with a byte on it takes
TAIL = 60


class Test:
    def __init__(self, tier, name, seconds, needs, command, env=None, cwd=None):
        self.tier, self.name, self.seconds, self.command = tier, name, int(seconds), command
        self.needs, self.env, self.cwd = set(needs.split(',')), env or {}, cwd
        if not self.needs <= NEEDS or len(self.needs & {'rdma', 'tcp', 'any'}) != 1:
            raise ValueError(f'{name}: {needs} should be one of rdma, tcp and any, and perhaps own or user')
        if tier not in ('core', 'full', 'bench'):
            raise ValueError(f'{name}: tier {tier}')


def from_ctest(options, tier, name, seconds, needs, words):
    """@ctest NAMES-REGEX [NAME=VALUE]...: those tests of the build, with other words in their environment."""
    pattern, changes = re.compile(words[0]), dict(w.split('=', 1) for w in words[1:])
    with open(os.path.join(options.out, 'ctest.json'), encoding='utf-8') as f:
        for t in json.load(f)['tests']:
            if not pattern.search(t['name']):
                continue
            if 'command' not in t:
                raise ValueError(f'{t["name"]} has not been built')
            properties = {p['name']: p['value'] for p in t.get('properties', [])}
            if properties.get('DISABLED'):
                continue
            env = dict(e.split('=', 1) for e in properties.get('ENVIRONMENT', []))
            env.update(changes)
            short = re.sub(pattern, '', t['name'])
            yield Test(tier, name.replace('*', short), seconds, needs, shlex.join(t['command']), env,
                       properties.get('WORKING_DIRECTORY'))


def read_lists(options):
    tests = {}
    for path in sorted(glob.glob(os.path.join(HERE, '*.list'))):
        with open(path, encoding='utf-8') as f:
            for number, line in enumerate(f, 1):
                if not line.strip() or line.startswith('#'):
                    continue
                try:
                    tier, name, seconds, needs, command = line.split(None, 4)
                    if command.startswith('@ctest '):
                        found = list(from_ctest(options, tier, name, seconds, needs, command.split()[1:]))
                        if not found:
                            raise ValueError('no such tests in this build')
                    else:
                        found = [Test(tier, name, seconds, needs, command.strip())]
                except ValueError as e:
                    sys.exit(f'{path}:{number}: {e}')
                for t in found:
                    # The first line that names a test decides, so that a list's core part comes before "all the rest".
                    tests.setdefault(t.name, t)
    return list(tests.values())


class Device:
    """Counters and objects of the device, as the kernel has them."""

    PAIRS = (('hw_counters/sent_pkts', 'hw_counters/rcvd_pkts'),  # soft-RoCE
             ('counters/port_xmit_packets', 'counters/port_rcv_packets'))

    def __init__(self):
        self.name = os.environ.get('BED_RDMADEV', '')
        self.own = os.environ.get('BED_OWN') == '1'
        self.base = f'/sys/class/infiniband/{self.name}/ports/1/'

    def packets(self):
        """(sent, received), or None while there is no device."""
        for pair in self.PAIRS:
            with contextlib.suppress(OSError):
                return tuple(int(open(self.base + name, encoding='ascii').read()) for name in pair)
        return None

    def counters(self):
        out = {}
        for path in sorted(glob.glob(self.base + 'hw_counters/*')):
            with contextlib.suppress(OSError, ValueError):
                out[os.path.basename(path)] = int(open(path, encoding='ascii').read())
        return out

    def held(self):
        """How many objects of each kind programs hold."""
        out = subprocess.run(['rdma', '-j', 'resource', 'show'], capture_output=True, text=True, check=False).stdout
        with contextlib.suppress(ValueError):
            for d in json.loads(out):
                if d.get('ifname') == self.name:
                    return {k: v for k, v in d.items() if k in ('qp', 'cq', 'mr', 'pd', 'cm_id', 'ctx', 'srq')}
        return {}

    def mend(self):
        subprocess.run([os.path.join(HERE, 'device.sh'), 'up'], stdin=subprocess.DEVNULL, check=False)


def limits_of_user():
    """An ordinary user with little memory to lock, as Debian's default was for long."""
    import resource  # pylint: disable=import-outside-toplevel
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)


def survivors(group):
    """Processes of a test that ended: what they are."""
    out = []
    for pid in filter(str.isdigit, os.listdir('/proc')):
        with contextlib.suppress(OSError):
            with open(f'/proc/{pid}/stat', encoding='ascii', errors='replace') as f:
                fields = f.read().rsplit(')', 1)[1].split()
            if int(fields[3]) == group and fields[0] not in 'ZX':
                with open(f'/proc/{pid}/cmdline', encoding='ascii', errors='replace') as f:
                    out.append((int(pid), f.read().replace('\0', ' ')[:60]))
    return out


class Runner:
    def __init__(self, options):
        self.options, self.device = options, Device()
        self.count = {'PASS': 0, 'FAIL': 0, 'SKIP': 0}
        self.problems, self.totals = [], {}
        self.held = self.device.held()  # what the last test left, and the next one finds
        self.table = open(os.path.join(options.out, 'table'), 'w', encoding='utf-8')

    def say(self, text):
        print(text, flush=True)
        print(text, file=self.table, flush=True)

    def command(self, test, log, proof):
        env = dict(os.environ, BED_SRC=self.options.src, BED_BUILD=self.options.build, BED_OUT=self.options.out, BED_PROOF=proof,
                   BED_TIER=self.options.list, PYTHONDONTWRITEBYTECODE='1')
        env.update({name: os.path.expandvars(value) for name, value in test.env.items()})
        limits = None
        if 'user' in test.needs:
            limits = limits_of_user
            env['HOME'] = '/nonexistent'
        return subprocess.Popen(['bash', '-c', test.command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
                                cwd=test.cwd or self.options.src, start_new_session=True, preexec_fn=limits)

    def wait(self, test, process):
        """The exit code; None when the time was up. Whatever the test left running is ended, and told."""
        code = None
        try:
            code = process.wait(test.seconds)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
        deadline = time.monotonic() + 3
        left = survivors(process.pid)
        while left and code is not None and time.monotonic() < deadline:
            time.sleep(0.1)
            left = survivors(process.pid)
        for pid, _ in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        return code, left if code is not None else []

    def settled(self, before):
        """What is still held of the device though it was not before; the kernel frees some things a little later."""
        deadline = time.monotonic() + 8
        while True:
            now = self.held = self.device.held()
            more = {k: now[k] - before.get(k, 0) for k in now if now[k] > before.get(k, 0)}
            if not more or time.monotonic() > deadline:
                return more
            time.sleep(0.2)

    def judge(self, test, code, left, log_path, moved, more):
        if code is None:
            return f'no end within {test.seconds} s'
        if code == 77:
            return None
        if code:
            return f'exit code {code}'
        if left:
            return 'left running: ' + '; '.join(text for _, text in left)
        if more:
            return 'held afterwards: ' + ', '.join(f'{v} {k}' for k, v in more.items())
        if 'rdma' in test.needs and moved < FEWEST:
            return f'the device moved {moved} packets: RDMA did not carry this'
        if 'tcp' in test.needs and moved:
            return f'the device moved {moved} packets, and should not have'
        return ''

    def immediates(self, proof):
        """What vkrdma-stat, or the process itself, said at the end of each part of the test."""
        total = [0, 0]
        with contextlib.suppress(OSError):
            with open(proof, encoding='ascii') as f:
                for line in f:
                    words = line.split()
                    total = [total[0] + int(words[0]), total[1] + int(words[1])]
        return f'{total[0]}/{total[1]}' if any(total) else '-'

    def one(self, test):
        log_path, proof = (os.path.join(self.options.out, kind + test.name) for kind in ('log-', 'proof-'))
        open(proof, 'w', encoding='ascii').close()
        os.chmod(proof, 0o666)
        if 'own' in test.needs and not self.device.own:
            self.count['SKIP'] += 1
            self.say(f'SKIP  {test.name:34s} it would break a device that is not the test bed\'s own')
            return
        before, packets, counters = self.held, self.device.packets() or (0, 0), self.device.counters()
        start = time.monotonic()
        with open(log_path, 'wb') as log:
            code, left = self.wait(test, self.command(test, log, proof))
        seconds = time.monotonic() - start
        after = self.device.packets() or (0, 0)
        moved = sum(after) - sum(packets)
        if 'own' in test.needs:
            if moved <= 0:  # a new device, that counts from nothing
                moved, counters = sum(after), {}
            self.device.mend()
        self.total(counters)
        why = self.judge(test, code, left, log_path, moved, self.settled(before))
        with open(log_path, encoding='utf-8', errors='replace') as f:
            lines = f.read().splitlines()
        result = 'SKIP' if why is None else 'FAIL' if why else 'PASS'
        self.count[result] += 1
        text = f'{result}  {test.name:34s} {seconds:6.1f} s  {moved:8d}  {self.immediates(proof):>17s}'
        if result == 'SKIP':
            said = [line.strip() for line in lines if 'skip' in line.lower()]
            text += '  ' + (said[-1] if said else 'no reason was given')[:150]
        self.say(text + (f'  {why}' if why else ''))
        if why:
            self.problems.append(f'{test.name}: {why}')
            for line in lines[-TAIL:]:
                print('      | ' + line[:300])
            print(f'      (all of it: {log_path})', flush=True)

    def total(self, before):
        for name, value in self.device.counters().items():
            self.totals[name] = self.totals.get(name, 0) + value - before.get(name, 0)

    def proof(self):
        self.say(f'\nPackets and events counted by {self.device.name} over all tests:')
        for name, value in self.totals.items():
            if value > 0 and name != 'lifespan':
                self.say(f'  {name:28s} {value:10d}')

    def matrix(self):
        """Each client with each server, from what the tests of tests/native left."""
        folder = os.path.join(self.options.out, 'native-matrix')
        if os.path.isdir(folder):
            table = os.path.join(HERE, '..', 'native', 'table.py')
            self.say('\nThe interoperation matrix:\n')
            self.say(subprocess.run([sys.executable, table, folder], capture_output=True, text=True, check=True).stdout.rstrip())

    def run(self, tests):
        self.say(f'{"":6s}{"test":34s} {"time":>8s}  {"packets":>8s}  {"immediates in/out":>17s}')
        start = time.monotonic()
        for test in tests:
            self.one(test)
        self.matrix()
        self.proof()
        self.say(f'\n{self.count["PASS"]} passed, {self.count["FAIL"]} failed, {self.count["SKIP"]} skipped in '
                 f'{time.monotonic() - start:.0f} s')
        for text in self.problems:
            self.say('  ' + text)
        return 1 if self.problems or not self.count['PASS'] else 0


def chosen(options):
    if options.run:
        return [Test('core', 'run', 3600, 'any', options.run)]
    tests = read_lists(options)
    if not options.only:
        return [t for t in tests if t.tier in TIERS[options.list]]
    for pattern in options.only:
        if not any(fnmatch.fnmatchcase(t.name, pattern) for t in tests):
            sys.exit(f'no test is called {pattern}; --names prints them')
    return [t for t in tests if any(fnmatch.fnmatchcase(t.name, p) for p in options.only)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ('src', 'build', 'out'):
        parser.add_argument('--' + name, required=True)
    parser.add_argument('--list', default='core', choices=sorted(TIERS))
    parser.add_argument('--only', action='append', default=[])
    parser.add_argument('--run')
    parser.add_argument('--names', action='store_true')
    options = parser.parse_args()
    tests = chosen(options)
    if options.names:
        for t in tests:
            print(f'{t.tier}  {t.name}')
        return 0
    if options.run:
        # Seen as it comes, without a table.
        env = dict(os.environ, BED_SRC=options.src, BED_BUILD=options.build, BED_OUT=options.out)
        return subprocess.run(['bash', '-c', options.run], stdin=subprocess.DEVNULL, env=env, cwd=options.src, check=False).returncode
    return Runner(options).run(tests)


if __name__ == '__main__':
    sys.exit(main())
