#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause
"""Runs pytest and writes what became of each test (see results.py).

    run_pytest.py OUT ARGUMENT...
"""
import sys

import pytest
import results


class Plugin:
    def __init__(self, out):
        self.out, self.what = out, {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        items[:] = [i for i in items if self.out.wanted(i.nodeid)]

    def pytest_runtest_logstart(self, nodeid):
        self.what[nodeid] = 'ok'
        self.out.start(nodeid)

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.what[report.nodeid] = 'fail'
            print(f'--- {report.nodeid} ({report.when})\n{report.longreprtext}', file=sys.stderr, flush=True)
        elif report.skipped and self.what[report.nodeid] == 'ok':
            self.what[report.nodeid] = 'skip'

    def pytest_runtest_logfinish(self, nodeid):
        self.out.stop(nodeid, self.what.pop(nodeid))

    def pytest_collectreport(self, report):
        if report.failed:
            self.out.stop(report.nodeid, 'fail')
            print(f'--- {report.nodeid}\n{report.longreprtext}', file=sys.stderr, flush=True)


def main():
    out = results.Results(sys.argv[1])
    pytest.main(sys.argv[2:] + ['-p', 'no:cacheprovider', '--continue-on-collection-errors'], plugins=[Plugin(out)])
    out.end()


if __name__ == '__main__':
    main()
