# SPDX-License-Identifier: BSD-2-Clause
"""many_until.py HOST PORT LIMIT: opens connections until descriptors run out or LIMIT is reached, asks each PING twice,
prints "open N ERROR" and stays until standard input ends. Run under the shim with few descriptors."""
import errno
import socket
import sys

host, port, limit = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
socks, why = [], 'none'


def ask(s):
    s.sendall(b'PING\r\n')
    got = b''
    while len(got) < 7:
        part = s.recv(7 - len(got))
        if not part:
            raise SystemExit(f'connection {len(socks)}: end of file')
        got += part
    if got != b'+PONG\r\n':
        raise SystemExit(f'connection {len(socks)}: {got!r}')


while len(socks) < limit:
    try:
        s = socket.socket()
    except OSError as e:
        why = errno.errorcode[e.errno]
        break
    s.settimeout(20)
    s.connect((host, port))
    ask(s)
    socks.append(s)
for s in socks:
    ask(s)
print('open', len(socks), why, flush=True)
sys.stdin.read()
