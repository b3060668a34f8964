# SPDX-License-Identifier: BSD-2-Clause
"""subprocess and multiprocessing in a program with carried connections, their data under way."""
import multiprocessing
import os
import socket
import subprocess
import sys

import conf_py as conf

conf.start()


def square(x):
    return x * x


def own_connection(q):
    c, s = conf.pair()
    c.sendall(b"child's own")
    q.put(s.recv(11, 256))
    c.close()
    s.close()


def use_passed(s, q):
    """The socket came by inheritance, or through exec to a new interpreter."""
    q.put((s.recv(3, 256), s.getsockname(), s.getpeername()))
    s.settimeout(30)
    s.sendall(b"from the child")
    q.put(s.recv(100))
    s.close()


def send_passed(pipe):
    """The socket comes by SCM_RIGHTS."""
    s = pipe.recv()
    s.sendall(repr(s.getpeername()).encode())
    s.shutdown(socket.SHUT_WR)
    s.close()


def passed(ctx, method):
    c, s = conf.pair()
    names = (s.getsockname(), s.getpeername())
    q = ctx.Queue()
    c.sendall(b"for")
    p = ctx.Process(target=use_passed, args=(s, q))
    p.start()
    s.close()
    conf.check(q.get(timeout=30), (b"for", *names), method)
    conf.check(c.recv(14, 256), b"from the child", method)
    c.sendall(b"and back")
    conf.check(q.get(timeout=30), b"and back", method)
    conf.check(c.recv(1), b"", method)
    p.join(30)
    conf.check(p.exitcode, 0, method)
    c.close()
    c, s = conf.pair()
    here, there = ctx.Pipe()
    p = ctx.Process(target=send_passed, args=(there,))
    p.start()
    here.send(s)
    conf.check(c.recv(100, 256), repr(s.getpeername()).encode(), method)
    p.join(30)
    conf.check(p.exitcode, 0, method)
    s.close()
    c.close()


def alive(c, s):
    c.sendall(b"ping")
    conf.check(s.recv(4, 256), b"ping")
    s.sendall(b"pong")
    conf.check(c.recv(4, 256), b"pong")


if __name__ == "__main__":
    c, s = conf.pair()
    alive(c, s)
    for close_fds in (True, False):
        for _ in range(5):
            c.sendall(b"under way")
            out = subprocess.run(["cat"], input=b"text", stdout=subprocess.PIPE, check=True, close_fds=close_fds).stdout
            conf.check(out, b"text")
            conf.check(s.recv(9, 256), b"under way")
            alive(c, s)
    # preexec_fn forces fork in place of vfork
    subprocess.run(["true"], check=True, preexec_fn=os.getpid)
    alive(c, s)
    # the child is the same interpreter, preloaded as we are, with a connection of its own
    env = dict(os.environ, CONF_EXPECT_RDMA="0")
    subprocess.run([sys.executable, "-c", "import conf_py; c, s = conf_py.pair(); c.sendall(b'x'); assert s.recv(1) == b'x'"],
                   check=True, env=env, cwd=os.path.dirname(os.path.abspath(__file__)))
    for method in ("fork", "spawn"):
        ctx = multiprocessing.get_context(method)
        with ctx.Pool(2) as pool:
            conf.check(pool.map(square, range(10)), [x * x for x in range(10)], method)
        alive(c, s)
        q = ctx.Queue()
        p = ctx.Process(target=own_connection, args=(q,))
        p.start()
        conf.check(q.get(timeout=30), b"child's own", method)
        p.join(30)
        conf.check(p.exitcode, 0, method)
        alive(c, s)
        passed(ctx, method)
        alive(c, s)
    s.close()
    conf.check(c.recv(1), b"")
    conf.end()
