# SPDX-License-Identifier: BSD-2-Clause
"""Harness of the Python conformance tests: a watchdog, pairs over loopback, and the evidence from the counters.

The layout read here is that of shim/stats.h, version 2."""
import faulthandler
import os
import socket
import struct
import sys

MAGIC, VERSION = 0x31534B56, 2
CONN_SIZE, LISTENER_SIZE, LISTENERS = 512, 256, 256


def start(limit=60):
    faulthandler.dump_traceback_later(limit, exit=True)


ADDR4, ADDR6 = os.environ.get("CONF_ADDR4", "127.0.0.1"), os.environ.get("CONF_ADDR6", "::1")


def listener(family=socket.AF_INET, backlog=16):
    s = socket.socket(family, socket.SOCK_STREAM)
    s.bind((ADDR4 if family == socket.AF_INET else ADDR6, 0))
    s.listen(backlog)
    return s


def pair():
    lst = listener()
    c = socket.create_connection(lst.getsockname())
    s, _ = lst.accept()
    lst.close()
    return c, s


def check(got, want, what=""):
    if got != want:
        raise AssertionError(f"{what}: got {got!r}, expected {want!r}")


def evidence():
    """Counters of this process, or None where it has none."""
    for fd in os.listdir("/proc/self/fd"):
        try:
            if "vkrdma-stats" not in os.readlink(f"/proc/self/fd/{fd}"):
                continue
        except OSError:
            continue
        with open(f"/proc/self/fd/{fd}", "rb") as f:
            head = f.read(4096)
            magic, version = struct.unpack_from("=II", head, 0)
            check((magic, version), (MAGIC, VERSION), "counters")
            if struct.unpack_from("=i", head, 24)[0] != os.getpid():
                continue
            rdma, tcp, _, _, _, _, imm_out = struct.unpack_from("=7Q", head, 168)
            high, = struct.unpack_from("=I", head, 168 + 18 * 8 + 9 * 8)
            f.seek(4096 + LISTENERS * LISTENER_SIZE)
            for _ in range(high):
                conn = f.read(CONN_SIZE)
                if struct.unpack_from("=I", conn, 0)[0]:
                    imm_out += struct.unpack_from("=Q", conn, 12 + 4 + 56 + 72 + 96 + 8 + 3 * 8)[0]
        return {"rdma": rdma, "tcp": tcp, "immediates_out": imm_out}
    return None


def end(tcp_too=False):
    if os.environ.get("CONF_EXPECT_RDMA") == "1":
        e = evidence()
        if not e or e["rdma"] == 0 or e["immediates_out"] == 0 or (e["tcp"] and not tcp_too):
            print("no evidence of RDMA:", e, file=sys.stderr)
            sys.exit(1)
    sys.exit(0)
