# SPDX-License-Identifier: BSD-2-Clause
"""commands.py SCENARIO PORT: one habit of real applications, checked by the program itself (python3-redis)."""
import os
import random
import sys
import threading
import time

import redis
import redis.backoff
import redis.retry

PORT = int(sys.argv[2])


def new(**kwargs):
    return redis.Redis(os.environ['VKR_HOST'], PORT, **kwargs)


def mget():
    """MSET and MGET of thousands of keys: requests and replies larger than any ring."""
    r = new()
    for count, size in ((1000, 10), (5000, 100), (20000, 300)):
        pairs = {f'm:{i}': bytes([i % 251]) * size for i in range(count)}
        assert r.mset(pairs)
        assert r.mget(list(pairs)) == list(pairs.values())
    pipe = r.pipeline(transaction=False)
    for i in range(20000):
        pipe.get(f'm:{i}')
    assert sum(map(len, pipe.execute())) == 20000 * 300


def lrange():
    """LRANGE of 600 items, many times, from several connections."""
    r = new()
    items = [b'item-%d' % i for i in range(600)]
    r.rpush('list', *items)
    failed = []

    def worker():
        c = new()
        for _ in range(300):
            if c.lrange('list', 0, 599) != items:
                failed.append(1)
    threads = [threading.Thread(target=worker) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed


def pubsub():
    """A subscriber that reads nothing while megabytes are published, beside one that keeps up."""
    slow, fast = new().pubsub(ignore_subscribe_messages=True), new().pubsub(ignore_subscribe_messages=True)
    for p in (slow, fast):
        p.subscribe('news')
        assert p.get_message(timeout=5) is None  # the confirmation
    count, payload = 3000, b'x' * 4000
    published = threading.Event()
    seen = []

    def reader():
        while len(seen) < count:
            m = fast.get_message(timeout=10)
            if m:
                seen.append(m['data'])
    t = threading.Thread(target=reader)
    t.start()
    r = new()
    for i in range(count):
        assert r.publish('news', b'%d:' % i + payload) == 2, i
    published.set()
    t.join(30)
    assert len(seen) == count, len(seen)
    got = 0
    while got < count:
        m = slow.get_message(timeout=10)
        assert m is not None, f'the slow subscriber got {got} of {count}'
        assert m['data'].startswith(b'%d:' % got), m['data'][:20]
        got += 1


def monitor():
    """MONITOR sees another connection's commands in order."""
    r, n = new(), 500
    with new().monitor() as m:
        for i in range(n):
            r.set(f'watched:{i}', i)
        seen = []
        while len(seen) < n:
            command = m.next_command()['command']
            if not command.startswith('CLIENT SETINFO'):  # newer clients introduce themselves
                seen.append(command)
        assert seen == [f'SET watched:{i} {i}' for i in range(n)], seen[:3]


def multi():
    """Optimistic transactions under contention."""
    r = new()
    r.set('balance', 0)

    def worker():
        c = new()
        for _ in range(100):
            c.transaction(lambda p: (lambda v: (p.multi(), p.set('balance', v + 1)))(int(p.get('balance'))), 'balance')
    threads = [threading.Thread(target=worker) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert int(r.get('balance')) == 400
    pipe = r.pipeline(transaction=True)
    for i in range(1000):
        pipe.incr('counter')
    assert pipe.execute()[-1] == 1000


def blpop():
    """Blocked clients are woken in order; a timeout is a timeout."""
    r = new()
    t0 = time.monotonic()
    assert new().blpop('empty', timeout=1) is None
    assert 0.9 <= time.monotonic() - t0 < 5
    popped = []

    def worker():
        c = new()
        while True:
            key, value = c.blpop(['queue'], timeout=30)
            if value == b'stop':
                return
            popped.append(int(value))
    threads = [threading.Thread(target=worker) for _ in range(5)]
    for t in threads:
        t.start()
    for i in range(1000):
        r.rpush('queue', i)
        if random.random() < 0.02:
            time.sleep(0.002)  # lets the consumers block again
    for _ in threads:
        r.rpush('queue', 'stop')
    for t in threads:
        t.join(30)
    assert sorted(popped) == list(range(1000)), len(popped)


def script():
    """EVAL, EVALSHA, a large reply, an error reply, SCRIPT FLUSH."""
    r = new()
    assert r.eval('return {KEYS[1], ARGV[1], 3}', 1, 'k', 'v') == [b'k', b'v', 3]
    add = r.register_script('return redis.call("INCRBY", KEYS[1], ARGV[1])')
    assert [add(keys=['n'], args=[2]) for _ in range(200)][-1] == 400
    assert r.script_exists(add.sha) == [True]
    assert r.eval('return string.rep("z", 5000000)', 0) == b'z' * 5000000
    try:
        r.eval('return redis.error_reply("MY error")', 0)
        raise SystemExit('no error was raised')
    except redis.ResponseError as e:
        assert 'MY error' in str(e) or 'error' in str(e)
    r.script_flush()
    assert r.script_exists(add.sha) == [False]
    assert add(keys=['n'], args=[1]) == 401


def client_kill():
    """A killed client sees the end of its connection, blocked or not, and can come back."""
    r = new()
    never = redis.retry.Retry(redis.backoff.NoBackoff(), 0)  # newer clients reconnect silently otherwise
    victims = [new(single_connection_client=True, retry=never) for _ in range(10)]
    ids = [v.client_id() for v in victims]
    ended = []

    def blocked(v):
        try:
            v.blpop('never', timeout=60)
        except redis.ConnectionError:
            ended.append(1)
    threads = [threading.Thread(target=blocked, args=(v,)) for v in victims[:5]]
    for t in threads:
        t.start()
    deadline = time.monotonic() + 20
    while r.info('clients')['blocked_clients'] < 5:
        assert time.monotonic() < deadline
    for i in ids:
        assert r.client_kill_filter(_id=i) == 1
    for t in threads:
        t.join(20)
    assert len(ended) == 5, ended
    for v in victims[5:]:
        try:
            v.connection.send_command('PING', check_health=False)
            v.connection.read_response()
            raise SystemExit('a killed client got a reply')
        except redis.ConnectionError:
            pass
    assert all(new().ping() for _ in range(10))
    wait = time.monotonic() + 20
    while any(i in {int(c['id']) for c in r.client_list()} for i in ids):
        assert time.monotonic() < wait


def large_both_ways():
    """Each side writes megabytes before it reads: neither may wait for the other for ever."""
    r = new()
    payload = b'p' * 100000
    pipe = r.pipeline(transaction=False)
    for i in range(400):
        pipe.set(f'both:{i}', payload)
        pipe.get(f'both:{i}')
    replies = pipe.execute()
    assert len(replies) == 800 and all(x == payload for x in replies[1::2])


globals()[sys.argv[1]]()
print('ok')
