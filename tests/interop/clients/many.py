# SPDX-License-Identifier: BSD-2-Clause
"""many.py PORT COUNT: opens COUNT connections, proves each with a PING, then obeys lines on stdin.

ping: another PING on each; quit: closes all and ends. Every answer is one line.
"""
import os
import socket
import sys

port, count = int(sys.argv[1]), int(sys.argv[2])


def ping(s):
    s.sendall(b'PING\r\n')
    got = b''
    while len(got) < 7:
        part = s.recv(7 - len(got))
        assert part, 'the server closed the connection'
        got += part
    assert got == b'+PONG\r\n', got


sockets = []
for _ in range(count):
    sock = socket.create_connection((os.environ['VKR_HOST'], port), 30)
    ping(sock)
    sockets.append(sock)
print('ready', flush=True)
for line in sys.stdin:
    if line.strip() == 'quit':
        break
    for sock in sockets:
        ping(sock)
    print('pong', flush=True)
for sock in sockets:
    sock.close()
print('closed', flush=True)
sys.stdin.readline()
