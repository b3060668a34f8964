# SPDX-License-Identifier: BSD-2-Clause
"""selectors: every kind over carried and plain descriptors; register, modify, unregister, timeouts, closed files."""
import os
import select
import selectors
import time

import conf_py as conf

conf.start()


def ready(sel, n):
    """What is ready, over several selects: n distinct entries, which may come in portions."""
    got, end = {}, time.monotonic() + 5
    while len(got) < n and time.monotonic() < end:
        got.update((k.data, ev) for k, ev in sel.select(5))
    return got


for kind in (selectors.SelectSelector, selectors.PollSelector, selectors.EpollSelector, selectors.DefaultSelector):
    name = kind.__name__
    with kind() as sel:
        c, s = conf.pair()
        r, w = os.pipe()
        sel.register(s, selectors.EVENT_READ, "carried")
        sel.register(r, selectors.EVENT_READ, "pipe")
        t0 = time.monotonic()
        conf.check(sel.select(0.03), [], name)
        # selectors round an epoll timeout up to a millisecond, and poll's too
        assert time.monotonic() - t0 >= 0.03, name
        c.sendall(b"x")
        conf.check([k.data for k, _ in sel.select(5)], ["carried"], name)
        os.write(w, b"x")
        conf.check(sorted(ready(sel, 2)), ["carried", "pipe"], name)
        sel.modify(s, selectors.EVENT_READ | selectors.EVENT_WRITE, "both")
        conf.check(ready(sel, 2), {"both": selectors.EVENT_READ | selectors.EVENT_WRITE, "pipe": selectors.EVENT_READ}, name)
        conf.check(s.recv(10), b"x", name)
        os.read(r, 1)
        sel.modify(s, selectors.EVENT_READ, "carried")
        conf.check(sel.select(0), [], name)
        c.close()
        conf.check([k.data for k, _ in sel.select(5)], ["carried"], name)
        conf.check(s.recv(10), b"", name)
        sel.unregister(s)
        conf.check(sel.select(0), [], name)
        s.close()
        os.close(r)
        os.close(w)

# the raw epoll object: masks, and an unregistered descriptor
c, s = conf.pair()
ep = select.epoll()
ep.register(s.fileno(), select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
c.sendall(b"abc")
conf.check(ep.poll(5), [(s.fileno(), select.EPOLLIN)])
conf.check(ep.poll(0.02), [])
c.close()
conf.check(ep.poll(5), [(s.fileno(), select.EPOLLIN | select.EPOLLRDHUP)])
ep.unregister(s.fileno())
try:
    ep.modify(s.fileno(), select.EPOLLIN)
    raise AssertionError("modify after unregister")
except FileNotFoundError:
    pass
ep.close()

conf.end()
