# SPDX-License-Identifier: BSD-2-Clause
"""What the bed's own tests add to the harness of tests/interop: the device, and its addresses."""
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ADDR4, ADDR6 = os.environ['BED_ADDR4'], os.environ['BED_ADDR6']
NETDEV, RDMADEV = os.environ['BED_NETDEV'], os.environ['BED_RDMADEV']
os.environ.update(VKR_MODE='carried', VKR_PROVIDER='verbs', VKR_BUILD=os.environ['BED_BUILD'],
                  VKR_HOST=os.environ.get('VKR_HOST', ADDR4), VKR_TIER='quick', VKR_CONNECT_TIMEOUT='8000')
sys.path.insert(0, os.path.join(HERE, '..', 'interop'))
import harness  # noqa: E402  pylint: disable=wrong-import-position


def run(*argv, timeout=60):
    """A command that must succeed; what it printed."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise AssertionError(f'{argv}: exit code {done.returncode}: {done.stderr}')
    return done.stdout


def device_up():
    run(os.path.join(HERE, 'device.sh'), 'up')


def device_works():
    """Whether connections can be made at all, by rdma-core's own program."""
    return subprocess.run([os.path.join(HERE, 'rping.sh')], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, timeout=60, check=False).returncode == 0


def device_renew():
    run('rdma', 'link', 'delete', RDMADEV)
    device_up()


def held():
    """What the kernel says programs hold of the device: {'qp': 2, ...}; None when there is no such device."""
    for d in json.loads(run('rdma', '-j', 'resource', 'show')):
        if d.get('ifname') == RDMADEV:
            return {k: v for k, v in d.items() if k in ('qp', 'cq', 'mr', 'pd', 'cm_id', 'ctx')}
    return None


def device_files(pid):
    """Descriptors of the device that a process has open."""
    return {k: n for k, n in harness.fd_kinds(pid).items() if 'infiniband' in k}


# Servers here also listen on 127.0.0.1, where no device stands: that way they can be asked while the device is gone.
harness.Server.host = '127.0.0.1'


class Case(harness.Case):

    def server(self, *args, bind=None, **kwargs):
        bind = bind or [ADDR4, '127.0.0.1']
        return super().server(*args, '--bind', *bind, **kwargs)

    def tool(self, server):
        return 'valkey-cli' if server.kind == 'valkey' else 'redis-cli'

    def ask(self, server, *words, host=None, **kwargs):
        """One command by the stock cli, over RDMA and nothing else unless told otherwise."""
        return self.run_client([self.tool(server), '-h', host or harness.HOST, '-p', server.port, *words], server.port, **kwargs)

    def carried_now(self, server):
        """How many of the server's connections are RDMA."""
        p = harness.stat(server.pid)
        return [c['transport'] for c in p['connections']].count('rdma') if p else 0
