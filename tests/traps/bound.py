# SPDX-License-Identifier: BSD-2-Clause
"""bound.py SOURCE HOST PORT: connects from that address and reads what comes unasked."""
import errno
import socket
import sys

s = socket.socket()
s.bind((sys.argv[1], 0))
s.settimeout(10)
try:
    s.connect((sys.argv[2], int(sys.argv[3])))
    print('connected')
    print('read', s.recv(1000))
except OSError as e:
    print(errno.errorcode.get(e.errno, e))
