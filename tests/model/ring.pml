/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One direction of the continuous ring with credits (docs/wire.md; shim/rdma_credit.c, rdma_ring.c, rdma_send.c), for
 * spin. README.md beside this file says what is modelled, what is not, and names the mutants.
 *
 * Everything is small: messages of one byte, a ring of RING bytes, BOUND messages that may be outstanding. Positions
 * only grow and never wrap here. A queue pair is a FIFO; a byte lands in the reader's memory the moment it is posted,
 * which is the worst for what lies there unread. The writer's device takes plain writes of the credit word by itself,
 * at any time after they were posted; immediates wait for the program.
 *
 * All sources are finite, so each run comes to rest; the monitor says what must hold then.
 *
 *   GROW         the reader offers a ring of LONG bytes when it is asked for credit, once
 *   LEND         a writer without room may ask for a ring on loan, at any time; the reader lends one of LONG bytes or does not;
 *                the writer may have come to its end meanwhile
 *   RIDES        credit also goes out early, with data of the other direction
 *   STOPS        the reader's application may stop reading for ever, at any time
 *   LAZY         receives are posted again so many together, and told of then
 *   LYING_READER words of any value are written into the credit word
 *   LYING_WRITER bytes are sent without credit
 */
#ifndef TOTAL
#define TOTAL 11
#endif
#define RING    4
#define LONG    6
#define BOUND   3
#ifdef LEND
#define SPARE   4
#else
#define SPARE   3 /* receives beyond the bound, for what is not data */
#endif
#define ENOUGH  2 /* what a wake request is answered with: a quarter of the ring, of the bound */
#define ENOUGH_M 2
#define UNASKED 3 /* what is told unasked: half */
#define UNASKED_M 3
#ifndef LAZY
#define LAZY 1
#endif
#if defined(LYING_READER) || defined(LYING_WRITER)
#define LYING
#endif

mtype = {NONE, DATA, WAKE_BYTES, WAKE_MESSAGES, SWITCH, CREDIT, GRANT, OFFER, MUCH, RETURN};

/* Posted and not yet processed by the reader's program: each holds a receive. */
chan to_reader = [BOUND + SPARE] of {mtype, byte};
/* The other way; then what the writer's device made of it. Their receives are not the matter here. */
chan to_writer = [6] of {mtype, byte, byte};
chan arrived = [4] of {mtype};

byte word_b, word_m; /* the credit word */
byte taken;          /* receives that were used and are not posted again */

byte unread[2];      /* bytes in each of the reader's rings that have landed and were not copied out */
byte len_of[2];
byte pos;            /* bytes written */
byte consumed;       /* bytes read by the application */
bool stopped;        /* the application reads no more */
bool broken;         /* one side ended the connection for what the other did */
bool asleep;         /* the writer waits for credit */
bool borrowed;       /* it writes to the ring on loan */
bool loan;           /* the reader has that ring */

/* ------------------------------------------------------------------ the writer */

#ifdef M_RETURN_EARLY
#define KNOWN_READ true
#else
#define KNOWN_READ (word_b >= from)
#endif
#ifdef M_ASK_AGAIN
#define ASKED_READ true
#else
#define ASKED_READ (acked_b >= asked_at)
#endif
#ifdef LEND
#define STAYS (!must_switch && !must_return)
#else
#define STAYS (!must_switch)
#endif

#define ROOM (cap - (pos - floor))
#ifdef M_NO_BOUND
#define MAY (ROOM > 0)
#else
#define MAY (ROOM > 0 && msgs - acked_m < BOUND)
#endif

inline look()
{
	d_step {
		if
#ifdef M_TRUST
		:: true ->
#else
		:: word_b >= acked_b && word_b <= pos && word_m >= acked_m && word_m <= msgs ->
#endif
			acked_b = word_b;
			acked_m = word_m;
			if
			:: acked_b > floor -> floor = acked_b
			:: else
			fi
#ifndef M_TRUST
		:: else -> broken = true
#endif
		fi;
		/* Whatever was in the word: never more room than a ring, never more messages than the bound. */
#ifndef LYING_WRITER
		assert(floor <= pos && acked_m <= msgs && pos - floor <= cap)
#endif
	}
}

/* Each message takes a receive: with none left the queue pair would be lost. */
inline post(t, v)
{
#ifndef LYING
	assert(len(to_reader) + taken < BOUND + SPARE);
#endif
	to_reader!t, v;
	msgs++
}

proctype writer()
{
	byte acked_b, acked_m, floor, msgs, cap = RING, ring;
	bool waking, must_switch;
#ifdef LEND
	byte from, asked_at; /* everything before `from` lies in its own ring */
	bool much, must_return;
#endif

end:	do
	:: broken -> break
	:: !broken && nempty(arrived) ->
		if
		:: arrived?GRANT -> waking = false; look()
#ifdef LEND
		/* Too late if it has come to its end: then it says so, and goes on where it is. */
		:: arrived?OFFER ->
			d_step {
				if
				:: much -> cap = LONG; must_switch = true; borrowed = true; from = pos; floor = pos
				:: else ->
#ifdef M_SILENT
					skip
#else
					must_return = true
#endif
				fi
			}
#else
		:: arrived?OFFER ->
			d_step {
				cap = LONG;
#ifdef M_NO_SWITCH
				ring = 1;
#else
				must_switch = true;
#endif
				floor = pos
			}
#endif
		fi
#ifdef LEND
	:: atomic { !broken && !much && pos < TOTAL && ROOM == 0 && ASKED_READ -> much = true; asked_at = pos; post(MUCH, pos) }
	:: much && STAYS && (!borrowed || KNOWN_READ) ->
		/* Its end, or the trimmer: what was lent goes back if all before it is known to be read. */
		look();
		atomic {
			if
			:: !broken && borrowed ->
				borrowed = false;
				must_return = true;
				cap = RING;
				floor = pos;
				much = false
			:: else -> much = false
			fi
		}
	:: atomic { !broken && must_return && !must_switch ->
		must_return = false;
#ifdef M_RETURN_LATE
		if
		:: pos < TOTAL && MAY && ring == 1 -> post(DATA, 0); unread[0]++; pos++
		:: else
		fi;
#endif
		post(RETURN, pos);
		ring = 0 }
#endif
	:: atomic { !broken && must_switch ->
		must_switch = false;
#ifdef M_SWITCH_LATE
		if
		:: pos < TOTAL && MAY -> post(DATA, 1); unread[1]++; pos++
		:: else
		fi;
#endif
		post(SWITCH, pos);
		ring = 1 }
	:: atomic { !broken && STAYS && pos < TOTAL && MAY ->
#ifndef LYING
		assert(unread[ring] < len_of[ring]);
		unread[ring]++;
#endif
		pos++;
progress:	post(DATA, ring) }
#ifdef LYING_WRITER
	:: atomic { !broken && pos < TOTAL && nfull(to_reader) ->
		pos++;
		post(DATA, ring) }
#endif
	:: !broken && STAYS && pos < TOTAL && !MAY && !waking ->
		/* What the look saw is what the request says: the word may change in between. */
		look();
		atomic {
			if
			:: !broken && !MAY ->
#ifndef M_NO_WAKE
				if
				:: ROOM == 0 -> post(WAKE_BYTES, floor)
#ifdef M_ONE_KIND
				:: else -> post(WAKE_BYTES, floor)
#else
				:: else -> post(WAKE_MESSAGES, acked_m)
#endif
				fi;
#endif
				waking = true
			:: else
			fi
		}
	:: atomic { !broken && STAYS && pos < TOTAL && !MAY && waking && empty(arrived) -> asleep = true };
		atomic { nempty(arrived) || broken -> asleep = false }
	od;
	asleep = false
}

proctype writer_device()
{
	byte a, b;

end:	do
	:: atomic { to_writer?CREDIT, a, b -> word_b = a; word_m = b }
	:: to_writer?GRANT, a, b -> word_b = a; word_m = b; arrived!GRANT
	:: to_writer?OFFER, a, b -> arrived!OFFER
	od
}

#ifdef LYING_READER
proctype liar()
{
	byte n;

	do
	:: atomic { n < 2 -> n++;
		if
		:: word_b = pos
		:: word_b = pos + 1
		:: word_b = 0
		:: word_m = word_m + 1
		fi }
	:: break
	od
}
#endif

/* ------------------------------------------------------------------ the reader */

inline tell(t)
{
	to_writer!t, consumed, now_m;
	ret_b = consumed;
	ret_m = now_m
}

#ifdef M_NO_POSITION
#define BEYOND (consumed >= ret_b + ENOUGH)
#define BEYOND_M (now_m >= ret_m + ENOUGH_M)
#else
#define BEYOND (consumed >= from + ENOUGH)
#define BEYOND_M (now_m >= from + ENOUGH_M)
#endif

/* Its own ring has been read, and the writer is in the one on loan: it must learn that it may come back. */
inline own_read()
{
#if defined(LEND) && !defined(M_UNTOLD)
	tell(CREDIT)
#else
	skip
#endif
}

inline credit_due()
{
	if
	:: (wanted == WAKE_BYTES && BEYOND) || (wanted == WAKE_MESSAGES && BEYOND_M) ->
		wanted = NONE;
		tell(GRANT)
	:: else ->
		if
		:: consumed - ret_b >= UNASKED || now_m - ret_m >= UNASKED_M -> tell(CREDIT)
		:: else
		fi
	fi;
#ifdef M_FORGET
	wanted = NONE
#else
	skip
#endif
}

proctype reader()
{
	byte received, now_m, ret_b, ret_m, from, rd, wr, v;
	byte left[2]; /* announced by immediates, not copied out */
	bool offered;
#ifdef LEND
	bool loan_wanted;
#endif
	mtype t, wanted = NONE;

end:	do
	:: broken -> break
	/* A completion. Receives are posted again before anything is said of them. */
	:: atomic { !broken && nempty(to_reader) ->
		to_reader?t, v;
		taken++;
#ifdef M_EARLY_COUNT
		now_m++;
#endif
		if
		:: taken == LAZY ->
#ifndef M_EARLY_COUNT
			now_m = now_m + taken;
#endif
			taken = 0
		:: else
		fi;
		if
		:: t == DATA ->
#ifndef M_NO_ROOM_CHECK
			if
			:: left[wr] == len_of[wr] -> broken = true
			:: else ->
#endif
#ifndef LYING_WRITER
				assert(v == wr);
#endif
				received++;
				left[wr]++;
				assert(left[wr] <= len_of[wr])
#ifndef M_NO_ROOM_CHECK
			fi
#endif
		:: t == WAKE_BYTES || t == WAKE_MESSAGES ->
			wanted = t;
			from = v;
#ifdef GROW
			if
			:: !offered && t == WAKE_BYTES -> offered = true; to_writer!OFFER, 0, 0
			:: else
			fi
#endif
			skip
#ifdef LEND
		:: t == MUCH ->
			loan_wanted = true
		:: t == RETURN ->
			assert(v == received && loan);
			if
			:: offered -> offered = false; loan = false
			:: else ->
				/* All that was in its own ring before has been read. */
				assert(rd == wr && wr == 1);
				wr = 0;
				if
				:: left[1] == 0 -> rd = 0; loan = false
				:: else
				fi
			fi
#endif
		:: t == SWITCH ->
			assert(v == received && offered);
			wr = 1;
#ifdef LEND
			offered = false;
#endif
			if
			:: left[0] == 0 -> rd = 1; own_read()
			:: else
			fi
		fi;
#ifdef M_FREE_EARLY
		/* Credit for what has arrived instead of for what was copied out. */
		consumed = received;
#endif
#ifndef M_READ_ONLY
		if
		:: !broken -> credit_due()
		:: else
		fi;
#endif
		t = NONE;
		v = 0 }
	/* The application copies a byte out. */
	:: atomic { !broken && !stopped && left[rd] > 0 ->
progress:	left[rd]--;
#ifndef LYING
		unread[rd]--;
#endif
#ifndef M_FREE_EARLY
		consumed++;
#endif
		if
		:: rd == 0 && wr == 1 && left[0] == 0 -> rd = 1; own_read()
#ifdef LEND
		:: rd == 1 && wr == 0 && left[1] == 0 -> rd = 0; loan = false
#endif
		:: else
		fi;
		credit_due() }
#ifdef LEND
	/* Once the application has read on, or not at all. */
	:: atomic { !broken && loan_wanted ->
		loan_wanted = false;
		if
		:: !offered && rd == wr && wr == 0 && !loan -> offered = true; loan = true; to_writer!OFFER, 0, 0
		:: true
		fi }
#endif
#ifdef RIDES
	:: atomic { !broken && (consumed - ret_b >= ENOUGH || now_m - ret_m >= ENOUGH_M) -> tell(CREDIT) }
#endif
#ifdef STOPS
	:: !broken && !stopped -> stopped = true
#endif
	od
}

/* ------------------------------------------------------------------ at rest */

proctype monitor()
{
end:	timeout;
#ifdef LYING
	/* A liar harms itself alone: the assertions on the way are what counts. */
	skip
#else
	assert(!broken);
	/* Everything was read, or the application has stopped and the ring it left is as good as full: less than what a
	 * wake request is answered with is free. */
	assert(stopped || consumed == TOTAL);
	assert(pos == TOTAL || unread[0] + ENOUGH > RING || unread[1] + ENOUGH > LONG);
	assert(pos == TOTAL || asleep);
	/* Nothing stays on loan without a use, but where the application has stopped. */
	assert(stopped || !borrowed && !loan)
#endif
}

init {
	atomic {
		len_of[0] = RING;
		len_of[1] = LONG;
		run writer();
		run writer_device();
#ifdef LYING_READER
		run liar();
#endif
		run reader();
		run monitor()
	}
}
