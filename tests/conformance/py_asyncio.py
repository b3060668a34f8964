# SPDX-License-Identifier: BSD-2-Clause
"""asyncio: streams server and many clients, large transfers with drain, half close, cancellation, wait_for, sock_*."""
import asyncio
import os
import socket

import conf_py as conf

conf.start()
served = 0


async def handle(reader, writer):
    global served
    served += 1
    while True:
        head = await reader.read(4)
        if not head:
            break
        while len(head) < 4:
            head += await reader.readexactly(4 - len(head))
        data = await reader.readexactly(int.from_bytes(head, "big"))
        writer.write(head + data)
        await writer.drain()
    writer.close()
    await writer.wait_closed()


async def client(port, sizes):
    reader, writer = await asyncio.open_connection(conf.ADDR4, port)
    for size in sizes:
        data = os.urandom(size)
        writer.write(size.to_bytes(4, "big") + data)
        await writer.drain()
        conf.check(int.from_bytes(await reader.readexactly(4), "big"), size)
        assert await reader.readexactly(size) == data, size
    writer.write_eof()
    conf.check(await reader.read(), b"")
    writer.close()
    await writer.wait_closed()


async def cancelled(port):
    reader, writer = await asyncio.open_connection(conf.ADDR4, port)
    try:
        await asyncio.wait_for(reader.read(1), 0.05)
        raise AssertionError("read returned")
    except asyncio.TimeoutError:
        pass
    writer.write((3).to_bytes(4, "big") + b"yes")
    conf.check(await asyncio.wait_for(reader.readexactly(7), 5), b"\0\0\0\3yes")
    writer.close()
    await writer.wait_closed()


async def raw():
    loop = asyncio.get_running_loop()
    lst = conf.listener()
    lst.setblocking(False)
    c = socket.socket()
    c.setblocking(False)
    acc = asyncio.ensure_future(loop.sock_accept(lst))
    await loop.sock_connect(c, lst.getsockname())
    s, _ = await acc
    s.setblocking(False)
    big = os.urandom(3 << 20)
    send = asyncio.ensure_future(loop.sock_sendall(c, big))
    got = b""
    while len(got) < len(big):
        got += await loop.sock_recv(s, 1 << 16)
    await send
    assert got == big
    for x in (c, s, lst):
        x.close()


async def refused():
    lst = conf.listener()
    port = lst.getsockname()[1]
    lst.close()
    try:
        await asyncio.open_connection(conf.ADDR4, port)
        raise AssertionError("connected to nobody")
    except ConnectionRefusedError:
        pass


async def main():
    server = await asyncio.start_server(handle, conf.ADDR4, 0)
    port = server.sockets[0].getsockname()[1]
    await asyncio.gather(*(client(port, [0, 1, 1000, 70000, 5]) for _ in range(40)))
    await client(port, [4 << 20, 1, 4 << 20])
    await cancelled(port)
    await raw()
    await refused()
    server.close()
    await server.wait_closed()
    conf.check(served, 42)


asyncio.run(main())
conf.end(tcp_too=True)  # the refused one is TCP's answer
