#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause
"""Runs unittest modules one test after the other and writes what became of them (see results.py).

    run_unittests.py OUT MODULE...
"""
import importlib
import sys
import unittest

import results


class Result(unittest.TextTestResult):
    def __init__(self, out):
        super().__init__(unittest.runner._WritelnDecorator(sys.stderr), True, 0)
        self.out, self.bad, self.skipped_here = out, set(), set()

    def startTest(self, test):
        super().startTest(test)
        self.out.start(test.id())

    def stopTest(self, test):
        name = test.id()
        self.out.stop(name, 'fail' if name in self.bad else 'skip' if name in self.skipped_here else 'ok')
        super().stopTest(test)

    def _bad(self, test, err):
        name = test.id()
        self.bad.add(name)
        print(f'--- {name}\n{self._exc_info_to_string(err, test)}', file=sys.stderr, flush=True)
        if not isinstance(test, unittest.TestCase):  # a fixture of a class or module
            self.out.stop(name, 'fail')

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
            self.out.stop(test.id(), 'skip')


def flatten(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from flatten(item)
        else:
            yield item


def main():
    out = results.Results(sys.argv[1])
    tests = []
    for name in sys.argv[2:]:
        try:
            module = importlib.import_module(name)
        except unittest.SkipTest as e:
            print(f'{name}: {e}', file=sys.stderr)
            out.stop(name, 'skip')
            continue
        tests += [t for t in flatten(unittest.defaultTestLoader.loadTestsFromModule(module)) if out.wanted(t.id())]
    unittest.TestSuite(tests).run(Result(out))
    out.end()


if __name__ == '__main__':
    main()
