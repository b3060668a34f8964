/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One queue pair and the connections that it serves one after another (docs/decisions/0012; shim/rdma_keep.c,
 * rdma_close.c, rdma_listen.c), for spin. README.md beside this file says what is modelled, what is not, and names the
 * mutants.
 *
 * A message is posted, lands in the peer's completion queue some time later, is taken from there by whoever polls, and
 * is then treated under the stream's lock. Each carries the number of the connection that its sender meant by it, which
 * no code looks at: only the assertions do. The program of either end may write, read or not, shut down, close and
 * reset, at any time; the acceptor accepts what comes.
 *
 * All sources are finite and what is kept grows old, so each run comes to rest with nothing left; the monitor says so.
 *
 *   CONNS            connections that the connector makes, at most
 *   BYTES_C, BYTES_A bytes a connection, at most, from either end
 *   WAITS            the connector's program does not close before it has heard that the other has
 *   CLOSES           the acceptor's program closes its listener, at any time
 *   NEWCOMER         the acceptor needs a descriptor for somebody else, at any time
 *   EXITS            one of the two processes exits, at any time
 *   SLOW             some time passes between the taking of a message from the completion queue and its treatment
 *   LYING_CONNECTOR, LYING_ACCEPTOR  sends LIES messages of any kind, whenever it likes
 */
#ifndef CONNS
#define CONNS 2
#endif
#ifndef BYTES_C
#define BYTES_C 0
#endif
#ifndef BYTES_A
#define BYTES_A 0
#endif
#ifndef LIES
#define LIES 4
#endif
#if defined(LYING_CONNECTOR) || defined(LYING_ACCEPTOR)
#define LYING
#define HONEST(what) true
#else
#define HONEST(what) (what)
#endif

#define C 0 /* the connector */
#define A 1 /* the acceptor */
#define PEER(x) (1 - (x))

/* On the wire BACK is RESET: the acceptor keeps the queue pair no longer. */
mtype = {NONE, DATA, FIN, RESET, BACK, KEEP, OPEN};

/* Phases; GONE from the moment when the queue pair is taken down. */
#define IN_USE   0
#define DRAINING 1
#define PROOF    2
#define KEPT     3
#define GONE     4

chan posted[2] = [6] of {mtype, byte}; /* by x */
chan landed[2] = [8] of {mtype, byte}; /* for x */
bool left[2];                          /* the CM has the message for x that its peer has disconnected */

/* struct vkr_stream */
byte phase[2], inq[2];
bool app_closed[2], wr_shut[2], peer_fin[2], peer_closed[2], broken[2], granted[2];
bool cut[2];     /* a reset was sent */
bool exits[2];     /* the process exits */
bool task[2];    /* the next step, where that does not follow from the rest */
bool ticket;     /* A's: what the next connection needs is there */
bool coming;     /* A's: the listener that it waits for */
bool locked;     /* A's lock, where it is held for more than one step */

bool polling[2]; /* somebody has the completion queue's lock */
bool turn[2];    /* somebody is the progress thread */

/* struct vkr_listener */
bool closing, closed, freed, waiting;
byte n_kept;

/* What only the assertions know. */
byte conn[2];      /* the connection that either end believes to serve */
byte unread_of[2]; /* which one the latest unread byte was sent for */
bool late;         /* the second is over within which the connector opens */
bool shut;         /* the listener's close() has returned */
bool needed;       /* what is kept is taken back before it is old: a newcomer, an exit */
bool told;         /* the connector knows of a reset */

#define UNLOCKED(x) (x == C || !locked)
#define READY(x) (!broken[x] && !peer_closed[x] && phase[x] != GONE)
#define SPOILED(x) (broken[x] || peer_closed[x])

#ifdef M_HALF
#define PEER_ENDED(x) true
#else
#define PEER_ENDED(x) peer_fin[x]
#endif
#ifdef M_UNREAD
#define NOTHING_UNREAD(x) true
#else
#define NOTHING_UNREAD(x) (inq[x] == 0)
#endif
#ifdef M_CUT
#define IN_ORDER(x) (!exits[x] && !SPOILED(x))
#else
#define IN_ORDER(x) (!exits[x] && !SPOILED(x) && !cut[x])
#endif
#define CLEAN(x) (app_closed[x] && PEER_ENDED(x) && NOTHING_UNREAD(x) && IN_ORDER(x))

inline post(x, t)
{
	if
#ifndef LYING /* else nobody listens */
	:: READY(x) -> assert(nfull(posted[x])); posted[x]!t, conn[x]
#endif
	:: else
	fi
}

/* ------------------------------------------------------------------ the network, and time */

proctype device(byte x)
{
	mtype t;
	byte k;

end:	do
	:: d_step { nempty(posted[x]) && (phase[PEER(x)] == GONE || nfull(landed[PEER(x)])) ->
		posted[x]?t, k;
		if
		:: phase[PEER(x)] == GONE
		:: else -> landed[PEER(x)]!t, k
		fi;
		t = 0;
		k = 0 }
	od
}

proctype clock()
{
end:	do
	:: atomic { granted[C] && !late -> late = true }
	od
}

/* The connector opens for one second from when it hears of the grant, the acceptor waits for three: so much later all
 * that was posted has landed. */
#if defined(LYING) || defined(M_SAME_TIME)
#define OLD_ENOUGH(x) true
#else
#define OLD_ENOUGH(x) (x == C || ((late || conn[C] > conn[A]) && empty(posted[C])))
#endif

/* ------------------------------------------------------------------ messages: one step, under the stream's lock */

inline break_off(x)
{
	broken[x] = true;
	if
	:: x == C && conn[A] != conn[C] -> told = true
	:: else
	fi
}

inline violation(x)
{
	assert(HONEST(false));
	break_off(x)
}

inline renew(x)
{
	assert(inq[x] == 0);
	conn[x]++;
	app_closed[x] = false;
	wr_shut[x] = false;
	peer_fin[x] = false;
#ifndef M_GRANT_STAYS
	granted[x] = false;
#endif
	phase[x] = IN_USE
}

inline on_data(x, k)
{
	assert(HONEST(k == conn[x]));
	if
#ifndef M_LATE_DATA
	:: peer_fin[x] -> violation(x)
#endif
	:: else ->
		inq[x]++;
		unread_of[x] = k;
		if
		:: app_closed[x] -> cut[x] = true; post(x, RESET)
		:: else
		fi
	fi
}

inline on_fin(x, k)
{
	assert(HONEST(k == conn[x]));
	if
	:: peer_fin[x] -> violation(x)
	:: else -> peer_fin[x] = true
	fi
}

inline on_reset(x, t, k)
{
	if
#ifndef M_TAKEN_BACK
	:: granted[x] && phase[x] != KEPT ->
		/* Nobody waits for anything that this says. */
		assert(peer_fin[x] && (app_closed[x] || wr_shut[x]));
		granted[x] = false
#endif
	:: else ->
		/* It was sent for the connection that is reset; or it has crossed an open, which mere age does not bring
		 * about. */
		assert(HONEST(k == conn[x] || (t == BACK && k + 1 == conn[x] && (closing || needed))));
		/* A program that has seen both ends sees no error. */
		assert(HONEST(t != BACK || phase[x] == KEPT || k < conn[x]));
		break_off(x)
	fi
}

inline on_keep(x, k)
{
	assert(HONEST(k == conn[x]));
	if
#ifdef M_TRUST_KEEP
	:: x == C ->
#else
	:: x == C && peer_fin[x] && (app_closed[x] || wr_shut[x]) && !granted[x] ->
#endif
		granted[x] = true
	:: else -> violation(x)
	fi
}

#ifdef M_TRUST_OPEN
#define WAS_KEPT true
#else
#define WAS_KEPT granted[A]
#endif
#if defined(M_TRUST_OPEN) || defined(M_NO_PHASE)
#define IS_KEPT true
#else
#define IS_KEPT (phase[A] == KEPT)
#endif

/* The lock stays held. */
inline on_open(x, k)
{
	if
	:: x == C || !WAS_KEPT -> violation(x)
	:: x == A && WAS_KEPT && !IS_KEPT -> break_off(x)
	:: x == A && WAS_KEPT && IS_KEPT ->
		renew(x);
		assert(HONEST(k == conn[x]));
		locked = true;
		if
#ifndef M_EXIT
		:: exits[x] -> task[x] = true
#endif
		:: else
		fi
	fi
}

/* Any thread. */
proctype poller(byte x)
{
	mtype t;
	byte k;

end:	do
#ifdef SLOW
	:: atomic { !polling[x] && nempty(landed[x]) -> polling[x] = true; landed[x]?t, k };
		atomic { UNLOCKED(x) ->
#else
	:: atomic { !polling[x] && nempty(landed[x]) && UNLOCKED(x) ->
			polling[x] = true;
			landed[x]?t, k;
#endif
			if
			:: SPOILED(x) || phase[x] == GONE
			:: else ->
				if
				:: t == DATA -> on_data(x, k)
				:: t == FIN -> on_fin(x, k)
				:: t == RESET || t == BACK -> on_reset(x, t, k)
				:: t == KEEP -> on_keep(x, k)
				:: t == OPEN -> on_open(x, k)
				fi
			fi;
			k = 0;
			if
			:: t == OPEN && x == A && locked -> t = OPEN
			:: else -> t = NONE; polling[x] = false
			fi };
		if
		:: t == OPEN ->
#ifdef M_LISTENER_FIRST
			coming = false;
#endif
			atomic { assert(!freed && !waiting && n_kept > 0); n_kept--; waiting = true };
			atomic { coming = false; locked = false; t = NONE; polling[x] = false }
		:: else
		fi
	od
}

/* All that has landed has been treated. */
#define DRAINED(x) (!polling[x] && empty(landed[x]))

/* ------------------------------------------------------------------ the progress thread */

/* was_kept: and nobody opens it any more, and the peer knows. */
inline keep_leave(x)
{
	atomic { UNLOCKED(x) ->
#ifdef M_NO_RECHECK
		was_kept = true;
#else
		was_kept = phase[x] == KEPT;
#endif
		if
		:: was_kept ->
			phase[x] = DRAINING;
			if
			:: x == A -> coming = false; n_kept--; telling = READY(x); post(x, BACK)
			:: else
			fi
		:: else
		fi };
#ifndef M_NO_TELL
	if
#ifdef M_TELL_READY
	:: telling -> (empty(posted[x]) || !READY(x))
#else
	:: telling -> empty(posted[x])
#endif
	:: else
	fi;
#endif
	telling = false
}

inline free_stream()
{
	ticket = false
}

/* The queue pair is taken to the error state before the CM tells. */
inline tell_left(x)
{
	do
	:: posted[x]?_, _
	:: empty(posted[x]) -> break
	od;
	left[PEER(x)] = phase[PEER(x)] != GONE
}

inline teardown(x)
{
	keep_leave(x);
	atomic { UNLOCKED(x) ->
		/* A connection that the program has, or will be given, does not end in silence. */
		assert(HONEST(phase[x] != IN_USE || SPOILED(x) || exits[x]));
		phase[x] = GONE;
		tell_left(x) };
	atomic { DRAINED(x) ->
		was_kept = false;
		/* None of this is looked at any more. */
		wr_shut[x] = false;
		peer_fin[x] = false;
		peer_closed[x] = false;
		granted[x] = false;
		cut[x] = false;
		broken[x] = false;
		left[x] = false;
		inq[x] = 0;
		unread_of[x] = 0;
		late = late && x == A;
		if
		:: x == A && app_closed[x] -> free_stream()
		:: else
		fi }
}

inline disconnect(x)
{
	atomic { UNLOCKED(x) ->
		tell_left(x);
		if
		:: !app_closed[x] && !SPOILED(x) -> peer_fin[x] = true; peer_closed[x] = true
		:: else
		fi };
	teardown(x)
}

inline keep(x)
{
	phase[x] = KEPT;
	if
	:: x == A -> n_kept++; coming = true; granted[x] = true; post(x, KEEP)
	:: else
	fi
}

/* done: it is kept. */
inline keep_begin(x)
{
	atomic { UNLOCKED(x) ->
		if
		:: x == C && CLEAN(x) -> keep(x)
		:: x == A && CLEAN(x) && !closing && !closed -> assert(!ticket); ticket = true; keep(x)
#ifdef M_NO_TICKET
		:: x == A && CLEAN(x) && !closing && !closed -> keep(x)
#endif
		/* There may be none. */
		:: x == A
		:: x == C && !CLEAN(x)
		fi }
}

inline end_of(x)
{
	keep_begin(x);
	if
	:: phase[x] != KEPT && phase[x] != IN_USE -> disconnect(x)
	:: else
	fi
}

/* An open that came in time is found. */
inline take_back(x)
{
#ifndef M_NO_DRAIN
	DRAINED(x);
#endif
	keep_leave(x);
	if
	:: was_kept -> teardown(x)
	:: else
	fi
}

#define STEP(x, when) atomic { !turn[x] && UNLOCKED(x) && (when) -> turn[x] = true }

proctype progress(byte x)
{
	bool was_kept, telling, newcomer;

	newcomer = true;
end:	do
	:: STEP(x, phase[x] == IN_USE && SPOILED(x)); disconnect(x); turn[x] = false
	:: atomic { !turn[x] && UNLOCKED(x) && phase[x] == IN_USE && !SPOILED(x) && (app_closed[x] || task[x]) ->
		task[x] = false;
		phase[x] = DRAINING }
	:: STEP(x, phase[x] == DRAINING && (SPOILED(x) || empty(posted[x])));
		if
		:: SPOILED(x) -> disconnect(x)
		:: else ->
			if
			:: PEER_ENDED(x) || exits[x] -> end_of(x)
			:: else -> phase[x] = PROOF
			fi
		fi;
		turn[x] = false
	:: STEP(x, phase[x] == PROOF);
		if
		:: SPOILED(x) || PEER_ENDED(x) || exits[x] -> end_of(x)
		/* It has lingered for long. */
		:: disconnect(x)
		fi;
		turn[x] = false
	:: atomic { !turn[x] && UNLOCKED(x) && phase[x] == KEPT && (SPOILED(x) || exits[x] || OLD_ENOUGH(x)) ->
		turn[x] = true;
		task[x] = false };
		take_back(x);
		turn[x] = false
	:: STEP(x, left[x] && phase[x] != GONE);
		left[x] = false;
		DRAINED(x);
		atomic { UNLOCKED(x) ->
			assert(HONEST(phase[x] != IN_USE || app_closed[x] || peer_fin[x] || broken[x] || exits[PEER(x)]));
			peer_closed[x] = true;
			if
			:: !broken[x] -> peer_fin[x] = true
			:: else
			fi };
		turn[x] = false
#ifdef NEWCOMER
	:: STEP(x, x == A && newcomer && phase[x] == KEPT);
		newcomer = false;
		needed = true;
		take_back(x);
		turn[x] = false
#endif
	:: STEP(x, x == A && closing && !closed);
		do
#ifdef M_TORN
		:: coming -> DRAINED(x); teardown(x)
#else
		:: coming -> take_back(x)
#endif
		:: !coming -> break
		od;
		closed = true;
		turn[x] = false
	od
}

/* ------------------------------------------------------------------ the programs */

#define TOLD_BOTH(x) (peer_fin[x] && wr_shut[x])

/* hard: by a reset. */
inline close_it(x, hard)
{
	if
	:: READY(x) && (hard || inq[x] > 0) && (!TOLD_BOTH(x) || nempty(posted[x])) -> cut[x] = true; post(x, RESET)
	/* That the end has been told is known a little later. */
	:: READY(x) && (hard || inq[x] > 0) && TOLD_BOTH(x) -> cut[x] = true; post(x, RESET)
	:: READY(x) && (hard || inq[x] > 0) && TOLD_BOTH(x) && empty(posted[x])
	:: READY(x) && !hard && inq[x] == 0 && !wr_shut[x] -> post(x, FIN)
	:: READY(x) && !hard && inq[x] == 0 && wr_shut[x]
	:: !READY(x)
	fi;
	app_closed[x] = true;
	if
	:: x == A && phase[x] == GONE -> free_stream()
	:: else
	fi
}

#ifdef WAITS
#define MAY_CLOSE(x) (x == A || peer_fin[x] || !READY(x))
#else
#define MAY_CLOSE(x) true
#endif

inline use(x)
{
	do
	:: atomic { UNLOCKED(x) && wrote < (x == C -> BYTES_C : BYTES_A) && !wr_shut[x] && READY(x) -> post(x, DATA); wrote++ }
	:: atomic { UNLOCKED(x) && inq[x] > 0 && READY(x) ->
		assert(HONEST(unread_of[x] == conn[x]));
		inq[x]--;
		unread_of[x] = (inq[x] > 0 -> unread_of[x] : 0) }
	:: atomic { UNLOCKED(x) && !wr_shut[x] && READY(x) -> wr_shut[x] = true; post(x, FIN) }
	:: atomic { UNLOCKED(x) && MAY_CLOSE(x) -> close_it(x, false); wrote = 0; break }
	:: atomic { UNLOCKED(x) && MAY_CLOSE(x) -> close_it(x, true); wrote = 0; break }
	od
}

proctype connector()
{
	byte wrote;
	bool was_shut, opened;

	do
	:: use(C);
		opened = false;
		if
		:: conn[C] + 1 < CONNS ->
			atomic { !turn[C] -> turn[C] = true; was_shut = shut };
#ifndef M_NO_CATCH_UP
#ifdef M_BUSY
			(polling[C] || empty(landed[C]));
#else
			DRAINED(C);
#endif
#endif
			atomic {
				if
#ifdef M_NO_GRANT
				:: phase[C] == KEPT && CLEAN(C) ->
#else
				:: phase[C] == KEPT && CLEAN(C) && granted[C] && !late ->
#endif
					assert(HONEST(!was_shut));
					renew(C);
					late = false;
					post(C, OPEN);
					opened = true
				:: else
				fi;
				was_shut = false;
				turn[C] = false }
		:: else
		fi;
		if
		:: opened
		:: else -> break
		fi
	od
}

proctype acceptor()
{
	byte wrote;

end:	do
	:: use(A);
		atomic { waiting && !closing && !exits[A] -> waiting = false; assert(ticket); ticket = false }
	od
}

#ifdef CLOSES
/* Another thread of the acceptor's. */
proctype closer()
{
	closing = true;
	(closed);
	if
	:: atomic { waiting && UNLOCKED(A) -> waiting = false; assert(ticket); ticket = false; close_it(A, true) }
	:: !waiting
	fi;
	atomic { freed = true; shut = true }
}
#endif

#ifdef EXITS
proctype exiter()
{
	byte x;

	atomic {
		if
		:: x = C
		:: x = A
		fi;
		needed = true };
	atomic { UNLOCKED(x) ->
		if
		:: !app_closed[x] && inq[x] > 0 -> cut[x] = true; post(x, RESET)
		:: else
		fi;
		exits[x] = true;
		task[x] = true }
}
#endif

#ifdef LYING
proctype liar(byte x)
{
	byte n;

	do
	:: n < LIES && nfull(landed[PEER(x)]) ->
		n++;
		if
		:: landed[PEER(x)]!DATA, 0
		:: landed[PEER(x)]!FIN, 0
		:: landed[PEER(x)]!RESET, 0
		:: landed[PEER(x)]!KEEP, 0
		:: landed[PEER(x)]!OPEN, 0
		fi
	/* It goes; or stays, and says nothing any more. */
	:: left[PEER(x)] = true; break
	:: break
	od
}
#endif

/* ------------------------------------------------------------------ at rest */

proctype monitor()
{
end:	timeout;
#ifndef LYING_CONNECTOR
	assert(phase[C] == GONE);
#endif
#ifndef LYING_ACCEPTOR
	assert(phase[A] == GONE);
#endif
	assert(n_kept == 0 && (!ticket || waiting) && !coming && !locked && !turn[C] && !turn[A]);
	assert(!waiting || exits[A]);
	assert(closed == closing && shut == closing);
	/* What was opened has been taken for that by both, or its opener knows better. */
	assert(HONEST(conn[A] == conn[C] || told || closing || needed))
}

init {
	atomic {
#ifndef LYING
		run device(C);
		run device(A);
#endif
		run clock();
#ifdef LYING_CONNECTOR
		run liar(C);
#else
		run poller(C);
		run progress(C);
		run connector();
#endif
#ifdef LYING_ACCEPTOR
		run liar(A);
#else
		run poller(A);
		run progress(A);
		run acceptor();
#ifdef CLOSES
		run closer();
#endif
#endif
#ifdef EXITS
		run exiter();
#endif
		run monitor()
	}
}
