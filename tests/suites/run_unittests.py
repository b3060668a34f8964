#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause
"""Runs unittest modules and writes a line for each test as it starts and ends.

    run_unittests.py OUT MODULE...

OUT gets lines `start ID`, `ok ID`, `fail ID`, `skip ID`; a file that has some already is gone on with after the last
test in it: so a test that hangs or kills the interpreter costs that one test. A test has LIMIT seconds, then the
interpreter ends with every thread's stack on stderr. The last lines are `evidence RDMA TCP IMMEDIATES` (where the
process has counters) and `end`.
"""
import faulthandler
import importlib
import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT = int(os.environ.get('VKR_SUITE_LIMIT', '120'))


class Result(unittest.TextTestResult):
    def __init__(self, out):
        super().__init__(unittest.runner._WritelnDecorator(sys.stderr), True, 0)
        self.out, self.bad, self.skipped_here = out, set(), set()

    def startTest(self, test):
        super().startTest(test)
        self.out.write(f'start {test.id()}\n')
        faulthandler.dump_traceback_later(LIMIT, exit=True)

    def stopTest(self, test):
        faulthandler.cancel_dump_traceback_later()
        name = test.id()
        self.out.write(f"{'fail' if name in self.bad else 'skip' if name in self.skipped_here else 'ok'} {name}\n")
        super().stopTest(test)

    def _bad(self, test, err):
        name = test.id()
        self.bad.add(name)
        print(f'--- {name}\n{self._exc_info_to_string(err, test)}', file=sys.stderr, flush=True)
        if not isinstance(test, unittest.TestCase):  # a fixture of a class or module
            self.out.write(f'fail {name}\n')

    def addError(self, test, err):
        self._bad(test, err)

    def addFailure(self, test, err):
        self._bad(test, err)

    def addSubTest(self, test, subtest, err):
        if err:
            self._bad(test, err)

    def addUnexpectedSuccess(self, test):
        self.bad.add(test.id())

    def addSkip(self, test, reason):
        self.skipped_here.add(test.id())
        if not isinstance(test, unittest.TestCase):
            self.out.write(f'skip {test.id()}\n')


def flatten(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from flatten(item)
        else:
            yield item


def main():
    path, modules = sys.argv[1], sys.argv[2:]
    done = set()
    if os.path.exists(path):
        with open(path) as f:
            done = {line.split(None, 1)[1].strip() for line in f if ' ' in line}
    out = open(path, 'a', buffering=1)
    only = set(os.environ.get('VKR_SUITE_ONLY', '').split())
    tests = []
    for name in modules:
        try:
            module = importlib.import_module(name)
        except unittest.SkipTest as e:
            print(f'{name}: {e}', file=sys.stderr)
            out.write(f'skip {name}\n')
            continue
        found = list(flatten(unittest.defaultTestLoader.loadTestsFromModule(module)))
        tests += [t for t in found if t.id() not in done and (not only or t.id() in only)]
    result = Result(out)
    unittest.TestSuite(tests).run(result)
    faulthandler.cancel_dump_traceback_later()
    sys.path.insert(0, os.path.join(HERE, '..', 'conformance'))
    import conf_py
    e = conf_py.evidence()
    if e:
        out.write(f"evidence {e['rdma']} {e['tcp']} {e['immediates_out']}\n")
    out.write('end\n')
    out.close()
    os._exit(0)  # threads that a failed test left behind must not hold it


if __name__ == '__main__':
    main()
