# SPDX-License-Identifier: BSD-2-Clause
"""hold.py PORT HOW: waits in one manner for a server that is about to die; prints how the connection ended.

HOW: recv (blocking), timeout (SO_RCVTIMEO set), poll, epoll, select, asyncio, writer.
"""
import asyncio
import os
import select
import socket
import struct
import sys

ADDRESS, HOW = (os.environ['VKR_HOST'], int(sys.argv[1])), sys.argv[2]


def read_to_end(s):
    while s.recv(65536):
        pass


def wait_recv(s):
    read_to_end(s)


def wait_timeout(s):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack('ll', 60, 0))
    read_to_end(s)


def wait_poll(s):
    s.setblocking(False)
    p = select.poll()
    p.register(s, select.POLLIN)
    assert p.poll(60000)
    read_to_end(s)


def wait_epoll(s):
    s.setblocking(False)
    p = select.epoll()
    p.register(s, select.EPOLLIN | select.EPOLLRDHUP)
    assert p.poll(60)
    read_to_end(s)


def wait_select(s):
    assert select.select([s], [], [], 60)[0]
    read_to_end(s)


def wait_writer(s):
    """Fills the way to a server that has stopped reading."""
    while True:
        s.sendall(b'*1\r\n$4\r\nPING\r\n' * 1000)


async def wait_asyncio():
    reader, writer = await asyncio.open_connection(*ADDRESS)
    writer.write(b'PING\r\n')
    assert await reader.readline() == b'+PONG\r\n'
    print('ready', flush=True)
    if await asyncio.wait_for(reader.read(), 60) == b'':
        return


try:
    if HOW == 'asyncio':
        asyncio.run(wait_asyncio())
    else:
        sock = socket.create_connection(ADDRESS, 30)
        sock.settimeout(None)
        sock.sendall(b'PING\r\n')
        assert sock.recv(7, socket.MSG_WAITALL) == b'+PONG\r\n'
        print('ready', flush=True)
        globals()['wait_' + HOW](sock)
    print('end')
except OSError as e:  # of a lost link it is TimeoutError
    print(type(e).__name__)
