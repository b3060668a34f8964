# SPDX-License-Identifier: BSD-2-Clause
"""The link and the device between the two ends, that go and come back.

On the test bed they are the guest's own; on softverbs what VKRDMA_SOFT_FAULT makes of them, in the processes that were given
Link.env. Either way both ends are struck at once, and what they send fails.
"""
import os
import subprocess

import peers
from peers import harness

BED = os.path.join(peers.ROOT, 'tests', 'bed')
NETDEV, RDMADEV = os.environ.get('BED_NETDEV', ''), os.environ.get('BED_RDMADEV', '')
# A device that is not the test bed's own must not be broken.
BREAKABLE = peers.SOFT or os.environ.get('BED_OWN') == '1'


def run(*argv, timeout=60):
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise AssertionError(f'{argv}: exit code {done.returncode}: {done.stderr}')


class Link:
    def __init__(self, case):
        self.broken, self.renewed, self.removal = False, False, None
        self.release = lambda: None  # ends what would hold a device for ever: native programs
        self.script = os.path.join(case.dir, 'link')
        self.env = {}
        if peers.SOFT:
            self._tell('')
            self.env = {'VKRDMA_SOFT_FAULT': f'script={self.script}'}
        case.addCleanup(self._end, case)

    def _end(self, case):
        """A test that failed in the midst of it: nobody may hold the device."""
        for p in case.procs if self.broken else []:
            p.kill()
        self.mend()

    def _tell(self, text):
        with open(self.script, 'a', encoding='ascii') as f:
            f.write(text)

    def _strike(self, word, *argv):
        self.broken = True
        if peers.SOFT:
            self._tell(word + '\n')
        else:
            run(*argv)

    def down(self):
        self._strike('down', 'ip', 'link', 'set', NETDEV, 'down')

    def remove(self):
        """The kernel waits for every program that has the device open; a native one never lets go before it ends."""
        self.broken = True
        if peers.SOFT:
            self._tell('remove\n')
        else:
            self.removal = subprocess.Popen(['rdma', 'link', 'delete', RDMADEV], stdin=subprocess.DEVNULL)

    def gone(self):
        """Nobody holds the device any more, where that can be seen."""
        return not self.removal or self.removal.poll() is not None

    def up(self):
        self.mend('join')

    def back(self):
        """There is a device again."""
        self.mend('return')
        self.renewed = True

    def mend(self, word='join'):
        """
        Where a connection was open as the link went down, soft-RoCE of Linux 6.1 makes no new ones (docs/testbed.md): the
        device is then made anew, and what a program without the library holds of the old one is worthless.
        """
        if not self.broken:
            return
        self.broken = False
        if peers.SOFT:
            self._tell(word + '\n')
            return
        if self.removal:
            self.removal.wait(60)
        run(os.path.join(BED, 'device.sh'), 'up')
        if not self.removal and subprocess.run([os.path.join(BED, 'rping.sh')], stdin=subprocess.DEVNULL, capture_output=True,
                                               timeout=60, check=False).returncode:
            self.renewed = True
            removal = subprocess.Popen(['rdma', 'link', 'delete', RDMADEV], stdin=subprocess.DEVNULL)
            self.release()
            removal.wait(60)
            run(os.path.join(BED, 'device.sh'), 'up')


def open_by_rdma(pid):
    """Connections that the program has not closed."""
    p = harness.stat(pid)
    return sum(c['transport'] == 'rdma' and c['state'] == 'open' for c in p['connections']) if p else 0


def device_files(pid):
    """Descriptors of RDMA devices."""
    return {k: n for k, n in harness.fd_kinds(pid).items() if 'infiniband' in k and 'uverbs' in k}
