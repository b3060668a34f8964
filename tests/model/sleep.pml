/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The sleep and wake protocol of shim/rdma.h ("The sleep protocol") and of the progress thread (design.md, sections 2
 * and 3), for spin. README.md beside this file says what is modelled, what is not, and how to read a counterexample.
 *
 * Every completion source is finite and every loop of the protocol ends in a blocking wait, so each run comes to rest.
 * Lost wake-ups are then a safety question: the monitor looks at the state in which nothing can move any more.
 *
 * LAYOUT  1  two threads, a set each, a stream in each set
 *         2  the same, one stream that is in both sets
 *         3  two threads waiting on one set of two streams
 *         4  a thread in our wait; another asleep on its set's eventfd alone, uncounted (epoll in epoll, poll on an
 *            epoll fd, another process): the progress thread must deliver to it
 *         5  two threads, a set each, one stream in the first set: the other thread only takes events from it
 */
#ifndef LAYOUT
#define LAYOUT 1
#endif
#ifndef SENDS
#define SENDS 1 /* completions a stream */
#endif

#define NT 2
#if LAYOUT == 2 || LAYOUT == 5
#define NS 1
#else
#define NS 2
#endif

#if LAYOUT == 2
#define SET_OF(t) (t)
#define IN_SET(s, e) true
#elif LAYOUT == 3
#define SET_OF(t) 0
#define IN_SET(s, e) ((e) == 0)
#else
#define SET_OF(t) (t)
#define IN_SET(s, e) ((s) == (e))
#endif

#if LAYOUT == 4
#define FOREIGN(t) ((t) == 1)
#else
#define FOREIGN(t) false
#endif

/* The provider: one CQ on one completion channel. */
byte cqe[NS];    /* completions in the CQ, a stream */
bool armed;      /* ibv_req_notify_cq is in force: one shot, one for all sleepers */
byte events;     /* queued in the channel's descriptor */
byte unacked;    /* events taken from the channel and not acknowledged */

/* The engine. */
bool cq_lock, event_lock;
byte sleepers;     /* threads between sleep_begin and sleep_end */
bool polled;       /* an application thread polled since the last tick */
#ifdef QUIET_MODE
bool tick_stopped; /* QUIET: whoever comes back kicks */
bool kicked;       /* the progress thread's eventfd */
#endif

/* The layers above. */
bool ready[NS];      /* stored state: unread data of the stream */
byte set_sleepers[2];
bool efd[2];         /* the set's eventfd is readable */
bool busy[NT];       /* the thread never waits again: it computes, or sleeps somewhere else */
bool asleep[NT];     /* for the monitor */

/* A stream of set e is ready: one look at the stored state. */
#if NS == 1
#define READY(e) (IN_SET(0, e) && ready[0])
#define CQ_EMPTY (cqe[0] == 0)
#else
#define READY(e) ((IN_SET(0, e) && ready[0]) || (IN_SET(1, e) && ready[1]))
#define CQ_EMPTY (cqe[0] == 0 && cqe[1] == 0)
#endif

/* vkr_pollable_set() with an edge, down to the sets' eventfds: written where somebody sleeps. */
inline fire(s)
{
#ifdef M_NO_FIRE
	s = 0
#else
	d_step {
		efd[0] = efd[0] || (IN_SET(s, 0) && set_sleepers[0] > 0);
		efd[1] = efd[1] || (IN_SET(s, 1) && set_sleepers[1] > 0);
		s = 0
	}
#endif
}

/*
 * ibv_poll_cq until empty, dispatched to the streams. cq_lock held on entry and given back. A stream's state is stored
 * before the eventfds are written.
 */
inline drain_unlock()
{
	do
	:: !CQ_EMPTY ->
		d_step {
			do
			:: cqe[i] == 0 -> i++
			:: else -> break
			od;
			cqe[i]--;
			ready[i] = true
		};
		fire(i)
	:: atomic { CQ_EMPTY -> cq_lock = false; break }
	od
}

inline kick()
{
#if defined(QUIET_MODE) && !defined(M_NO_KICK)
	kicked = kicked || tick_stopped
#else
	skip
#endif
}

/* vkr_engine_poll(): does not wait for another poller. */
inline engine_poll()
{
	atomic {
		polled = true;
		kick()
	};
	if
	:: atomic { !cq_lock -> cq_lock = true };
		drain_unlock()
	:: cq_lock
	fi
}

inline sleep_begin()
{
#ifdef M_NO_COUNT
	polled = true;
#else
	atomic { sleepers++; polled = true };
#endif
	atomic {
		!cq_lock;
#ifndef M_NO_ARM
		armed = true;
#endif
#ifdef M_NO_POLL_AFTER_ARM
	}
#else
		cq_lock = true
	};
	drain_unlock()
#endif
}

inline sleep_end()
{
#ifndef M_NO_COUNT
	sleepers--;
#endif
	kick()
}

/*
 * vkr_engine_event(): the channel's descriptor was readable. It may be empty by now: another sleeper took the event.
 */
inline engine_event()
{
#ifndef M_BLOCKING_GET
	atomic { !event_lock -> event_lock = true };
#endif
	atomic {
#ifdef M_BLOCKING_GET
		events > 0;
#endif
		if
		:: events > 0 -> unacked++; events--; assert(unacked > 0); unacked--
#ifdef M_ACK_TWICE
		:: else -> assert(unacked > 0); unacked--
#else
		:: else
#endif
		fi
	};
	atomic { !cq_lock -> cq_lock = true };
#ifdef M_REARM_AFTER_POLL
	drain_unlock();
	atomic { !cq_lock -> cq_lock = true };
#endif
#ifndef M_NO_REARM
	armed = armed || sleepers > 0;
#endif
#ifdef M_REARM_AFTER_POLL
	cq_lock = false;
#else
	drain_unlock();
#endif
	event_lock = false
}

/*
 * A wait on set e0 (poll_emul.c). The sleeper is counted in its set before the last look, so that a stream that becomes
 * ready after the look writes the eventfd; the eventfd is emptied before the next look, never after it.
 */
inline wait_on(t, e0)
{
	do
	:: true ->
		engine_poll();
		if
		:: READY(e0) -> break
		:: !READY(e0)
		fi;
		sleep_begin();
#ifndef M_LOOK_BEFORE_COUNT
		set_sleepers[e0]++;
#endif
		if
		:: READY(e0)
		:: atomic { !READY(e0) ->
#ifdef M_LOOK_BEFORE_COUNT
			skip
		   };
			set_sleepers[e0]++;
			atomic {
#endif
			asleep[t] = true
		   };
			atomic { efd[e0] || events > 0; asleep[t] = false };
#ifdef M_LOOK_BEFORE_COUNT
			set_sleepers[e0]--
#endif
		fi;
		sleep_end();
#ifndef M_LOOK_BEFORE_COUNT
		set_sleepers[e0]--;
#endif
		efd[e0] = false;
#ifndef M_NO_CONSUME
		if
		:: events > 0 -> engine_event()
		:: events == 0
		fi
#endif
	od
}

/* Asleep on the eventfd alone; another thread's poll or the progress thread must write it. */
inline wait_foreign(t, e0)
{
	set_sleepers[e0]++;
	do
	:: READY(e0) -> break
	:: atomic { !READY(e0) -> asleep[t] = true };
		atomic { efd[e0] -> asleep[t] = false; efd[e0] = false }
	od;
	set_sleepers[e0]--
}

/* The application reads each ready stream of its set to the end. */
inline consume(e0)
{
	d_step {
		ready[0] = ready[0] && !IN_SET(0, e0);
#if NS > 1
		ready[1] = ready[1] && !IN_SET(1, e0);
#endif
	}
}

proctype app(byte t)
{
	byte i;

	do
	:: true ->
		if
		:: FOREIGN(t) -> wait_foreign(t, SET_OF(t))
		:: else -> wait_on(t, SET_OF(t))
		fi;
progress:	consume(SET_OF(t))
	:: busy[t] = true; break
	od
}

proctype peer(byte s)
{
	byte n;

	do
	:: n < SENDS ->
		atomic { n++; cqe[s]++ };
		/* The completion is visible first; the arm bit is tested and taken in one step (exchange). */
		atomic {
			if
			:: armed -> armed = false; events++
			:: else
			fi
		}
	:: else -> break
	od
}

#define TICK 0
#define QUIET 1
#define GUARD 2

/*
 * engine_progress.c. Ticks are as frequent as the search likes; how many of them pass before the mode changes is left
 * open. QUIET_MODE is the variant of design.md in which the thread, seeing a sleeper, stops without arming anything and
 * relies on the first thread that comes back.
 */
proctype progress_thread()
{
	byte i, mode;

	mode = TICK;
end:	do
	:: mode == TICK ->
		if
		:: atomic { polled -> polled = false }
#ifdef QUIET_MODE
		:: !polled && sleepers > 0 ->
			tick_stopped = true;
			/* The flag first, then a second look: who came back in between has not seen the flag. */
			if
#ifdef M_NO_RECHECK
			:: true -> mode = QUIET
#else
			:: sleepers > 0 -> mode = QUIET
			:: sleepers == 0 -> tick_stopped = false
#endif
			fi
		:: !polled && sleepers == 0 ->
#else
		:: !polled ->
#endif
			if
			:: atomic { sleepers == 0 && !cq_lock -> cq_lock = true };
				drain_unlock()
			:: sleepers > 0 || cq_lock
			fi;
			mode = GUARD;
			sleep_begin();
			polled = false;
#ifdef M_GUARD_UNCOUNTED
			sleepers--
#endif
		fi
	:: mode == QUIET ->
#ifdef QUIET_MODE
end_quiet:	kicked;
		atomic { tick_stopped = false; kicked = false; mode = TICK }
#else
		assert(false)
#endif
	:: mode == GUARD ->
end_guard:	events > 0;
		engine_event();
		if
		:: polled ->
#ifndef M_GUARD_UNCOUNTED
			sleep_end();
#endif
			mode = TICK
		:: !polled
		fi
	od
}

/* Nothing can move any more: what must hold then. */
proctype monitor()
{
	byte s, t;

end:	timeout;
	s = 0;
	do
	:: s < NS ->
		/* Drained, whatever the application does: receives reposted, control messages answered. */
		assert(cqe[s] == 0);
		t = 0;
		do
		:: t < NT ->
			/* No sleeper beside data. */
			assert(!(asleep[t] && IN_SET(s, SET_OF(t)) && ready[s]));
			/* Not asleep and not busy: stuck in the protocol itself. */
			assert(asleep[t] || busy[t]);
			t++
		:: else -> break
		od;
		s++
	:: else -> break
	od;
	assert(!cq_lock);
	assert(unacked == 0)
}

init {
	atomic {
		run app(0);
		run app(1);
		run peer(0);
#if NS > 1
		run peer(1);
#endif
		run progress_thread();
		run monitor()
	}
}
