# SPDX-License-Identifier: BSD-2-Clause
"""A file with a line for each test as it starts and ends: `start ID`, `ok ID`, `fail ID`, `skip ID`, at last `end`.

A file that has some already is gone on with behind the last test in it: so a test that hangs or kills the interpreter costs
that one test. A test has VKR_SUITE_LIMIT seconds, then the interpreter ends with every thread's stack on stderr.
"""
import faulthandler
import os

LIMIT = int(os.environ.get('VKR_SUITE_LIMIT', '120'))


class Results:
    def __init__(self, path):
        self.done = set()
        if os.path.exists(path):
            with open(path) as f:
                self.done = {line.split(None, 1)[1].strip() for line in f if ' ' in line}
        self.only = set(filter(None, os.environ.get('VKR_SUITE_ONLY', '').split('\n')))
        self.file = open(path, 'a', buffering=1)

    def wanted(self, name):
        return name not in self.done and (not self.only or name in self.only)

    def start(self, name):
        self.file.write(f'start {name}\n')
        faulthandler.dump_traceback_later(LIMIT, exit=True)

    def stop(self, name, what):
        faulthandler.cancel_dump_traceback_later()
        self.file.write(f'{what} {name}\n')

    def end(self):
        faulthandler.cancel_dump_traceback_later()
        self.file.write('end\n')
        self.file.close()
        os._exit(0)  # threads that a failed test left behind must not hold it


def read(path):
    """The tests of such a file, and whether it is complete."""
    with open(path) as f:
        lines = f.read().splitlines()
    tests = {}
    for line in lines:
        what, _, name = line.partition(' ')
        if what == 'start':
            tests[name] = 'fail'  # unless its end is there
        elif what in ('ok', 'fail', 'skip'):
            tests[name] = what
    return tests, bool(lines) and lines[-1] == 'end'
