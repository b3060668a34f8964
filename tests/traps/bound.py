# SPDX-License-Identifier: BSD-2-Clause
"""bound.py SOURCE HOST PORT: connects from that address and reads what comes unasked."""
import socket
import sys

s = socket.socket()
s.bind((sys.argv[1], 0))
s.settimeout(10)
s.connect((sys.argv[2], int(sys.argv[3])))
print('connected')
print('read', s.recv(1000))
