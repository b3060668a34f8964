# SPDX-License-Identifier: BSD-2-Clause
"""connect_twice.py HOST PORT: connect() without blocking, again when poll() says that it has ended, and once more."""
import errno
import select
import socket
import sys

s = socket.socket()
s.setblocking(False)
to = (sys.argv[1], int(sys.argv[2]))
print(errno.errorcode[s.connect_ex(to)])
p = select.poll()
p.register(s, select.POLLOUT)
assert p.poll(10000)
for _ in range(2):
    print(errno.errorcode.get(s.connect_ex(to), 'connected'))
