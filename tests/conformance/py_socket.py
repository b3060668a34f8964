# SPDX-License-Identifier: BSD-2-Clause
"""The socket module: sendall, makefile, timeouts, recv_into, sendmsg, shutdown, detach, errors, v6."""
import errno
import os
import socket
import tempfile
import threading
import time

import conf_py as conf

conf.start()

# sendall and recv_into across sizes
c, s = conf.pair()
for size in (0, 1, 31, 1023, 65536, 1048575, 1048576, 1048577):
    data = os.urandom(size)
    t = threading.Thread(target=c.sendall, args=(data,))
    t.start()
    buf = bytearray(size)
    view, got = memoryview(buf), 0
    while got < size:
        n = s.recv_into(view[got:])
        assert n > 0
        got += n
    t.join()
    assert bytes(buf) == data, size

# timeouts: socket.settimeout makes the descriptor non-blocking and polls
s.settimeout(0.05)
t0 = time.monotonic()
try:
    s.recv(1)
    raise AssertionError("recv returned")
except socket.timeout:
    assert time.monotonic() - t0 >= 0.05
s.setblocking(False)
try:
    s.recv(1)
    raise AssertionError("recv returned")
except BlockingIOError as e:
    conf.check(e.errno, errno.EAGAIN)
s.settimeout(None)
conf.check(s.getblocking(), True)

# sendmsg, recvmsg_into, MSG_PEEK, MSG_WAITALL
conf.check(c.sendmsg([b"ab", b"", b"cdef"]), 6)
conf.check(s.recv(6, socket.MSG_PEEK | socket.MSG_WAITALL), b"abcdef")
b1, b2 = bytearray(2), bytearray(10)
n, anc, flags, _ = s.recvmsg_into([b1, b2])
conf.check((n, anc, flags, bytes(b1), bytes(b2[:4])), (6, [], 0, b"ab", b"cdef"))

# sendfile
with tempfile.TemporaryFile() as f:
    f.write(bytes(range(256)) * 1000)
    f.seek(0)
    t = threading.Thread(target=c.sendfile, args=(f,))
    t.start()
    conf.check(s.recv(256000, socket.MSG_WAITALL), bytes(range(256)) * 1000)
    t.join()

# dup, detach, fileno, names
d = c.dup()
conf.check(d.getpeername(), s.getsockname())
conf.check(s.getpeername(), c.getsockname())
d.sendall(b"dup")
conf.check(s.recv(3, socket.MSG_WAITALL), b"dup")
fd = d.detach()
conf.check(os.write(fd, b"raw"), 3)
conf.check(s.recv(3, socket.MSG_WAITALL), b"raw")
os.close(fd)
conf.check(os.read(s.fileno(), 0), b"")

# options
c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
conf.check(c.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY), 1)
conf.check(c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), 0)
conf.check((c.family, c.type, c.proto), (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP))
x = socket.socket(fileno=os.dup(c.fileno()))  # asks SO_DOMAIN, SO_TYPE, SO_PROTOCOL
conf.check((x.family, x.type, x.proto), (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP))
x.close()

# makefile (recv_into underneath), half close
c.sendall(b"one\ntwo\n")
c.shutdown(socket.SHUT_WR)
conf.check(s.makefile("rb").readlines(), [b"one\n", b"two\n"])
s.sendall(b"back")
conf.check(c.recv(10), b"back")
s.close()
conf.check(c.recv(10), b"")
c.close()

# ended peer: BrokenPipeError (Python ignores SIGPIPE)
c, s = conf.pair()
s.close()
conf.check(c.recv(1), b"")
try:
    for _ in range(1000):
        c.send(b"x")
        time.sleep(0.001)
    raise AssertionError("send never failed")
except (BrokenPipeError, ConnectionResetError):
    pass
c.close()

# non-blocking connect_ex, IPv6
lst = conf.listener(socket.AF_INET6)
c = socket.socket(socket.AF_INET6)
c.settimeout(5)
conf.check(c.connect_ex(lst.getsockname()), 0)
# Linux: the first call after a non-blocking handshake may finish the connect
assert c.connect_ex(lst.getsockname()) in (0, errno.EISCONN)
conf.check(c.connect_ex(lst.getsockname()), errno.EISCONN)
lst.settimeout(5)
s, addr = lst.accept()
conf.check(addr[:2], c.getsockname()[:2])
s.sendall(b"six")
conf.check(c.recv(3, socket.MSG_WAITALL), b"six")

conf.end()
