/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Waits past us (shim/plain_wait.h): threads that wait on a set which holds nothing of ours, and leave a note only;
 * somebody who puts a carried member into it, and claims its number first; the member, which becomes ready.
 *
 * A thread's plain stores go through a store buffer: others see them later, in order. membarrier() empties it, and finds
 * the instruction that takes a note away done or not begun. What is under the lock, and the kernel's part, is one step.
 *
 * NT  threads; each waits TURNS times. NO_HANDLER: no signals. NO_NATIVE: no events of the kernel's own.
 */
#ifndef NT
#define NT 2
#endif
#ifndef TURNS
#define TURNS 2
#endif

/* A note's values. */
#define IDLE 0
#define LEFT 1 /* taken away, and it was hit */
#define EV   2 /* where events go */
#define HIT  3

typedef thread {
	byte note;      /* as others see it */
	byte own;       /* as the thread itself does, but for HIT */
	bool knows;     /* the number */
	bool hit_by_us; /* p->set */
	bool in_rmw;    /* within vkr_plain_leave()'s instruction, where that is none */
	bool asleep, past_us, out
};
thread t[NT];
chan buffer[NT] = [3] of { byte };

bool lock;
bool claimed, marked, mixed, ready, efd, noise;
byte in_kernel, sleepers;

inline flush(i)
{
	do
	:: nempty(buffer[i]) -> buffer[i]?v; t[i].note = v
	:: empty(buffer[i]) -> break
	od
}

inline store(i, value)
{
	buffer[i]!value;
	t[i].own = value
}

/* The store buffers empty themselves whenever they like. */
proctype memory(byte i)
{
	byte v;

end:	do
	:: atomic { buffer[i]?v -> t[i].note = v }
	od
}

/* vkr_plain_leave(): h is what it found. */
inline leave(i, h)
{
	atomic {
		/* A store of the thread's own that is still buffered is what it reads. */
		if
		:: nempty(buffer[i]) -> h = t[i].own
		:: empty(buffer[i]) -> h = t[i].note
		fi;
		t[i].in_rmw = true
	};
	atomic {
		nfull(buffer[i]);
		t[i].in_rmw = false;
		if
		:: h == HIT -> store(i, LEFT)
		:: else -> store(i, IDLE)
		fi
	}
}

/* vkr_plain_left() */
inline left(i)
{
	atomic {
		!lock && nfull(buffer[i]);
		in_kernel = in_kernel - (t[i].hit_by_us -> 1 : 0);
		t[i].hit_by_us = false;
		store(i, IDLE)
	}
}

/* The kernel's wait: ends with a marker, or with an event of its own. The eventfd and the channel are level-triggered. */
inline kernel(i, marker)
{
	atomic { t[i].asleep = true };
	atomic {
		if
		:: marked && (efd || noise) -> marker = true
		:: native[i] -> native[i] = false; marker = false
		fi;
		t[i].asleep = false
	}
}
bool native[NT];

/* The member is still ready for others. */
inline leave_rest()
{
	atomic { efd = efd || (ready && (sleepers > 0 || in_kernel > 0)) }
}

/* A wait on the mixed set, counted (sleep.pml has the rest of it). */
inline mixed_wait(i, marker)
{
	do
	:: ready -> break
	:: !ready ->
		sleepers++;
		if
		:: ready
		:: !ready -> kernel(i, marker); if :: marker -> atomic { efd = false; noise = false } :: else fi
		fi;
		sleepers--;
		if :: !marker -> break :: else fi
	od;
	leave_rest()
}

/* plain_wait(): counted */
inline counted(i, marker)
{
	in_kernel++;
	if
	:: mixed -> in_kernel--; mixed_wait(i, marker)
	:: else ->
		kernel(i, marker);
		in_kernel--;
		if
		:: marker -> atomic { efd = false; noise = false }; mixed; mixed_wait(i, marker)
		:: else
		fi
	fi
}

/* A signal's handler, which looks whether there is anything on the set. Where the thread knows the number and is not in
 * a wait it does so past us. */
inline handler(i, h)
{
	if
#ifndef M_NESTED
	:: t[i].own == IDLE ->
#else
	:: true ->
#endif
		store(i, EV);
		leave(i, h);
		if
		:: h == HIT -> left(i)
		:: else
		fi
	:: else
	fi
}

proctype waiter(byte i)
{
	byte turn, h;
	bool marker;

	do
	:: turn < TURNS ->
		turn++;
		if
		:: t[i].own == IDLE ->
#ifdef M_LOOK_FIRST
			bool knew = t[i].knows;
			store(i, EV);
			if
			:: !knew ->
#else
			store(i, EV);
			if
			:: !t[i].knows ->
#endif
				leave(i, h);
				if
				:: h == HIT -> left(i)
				:: else
				fi;
				atomic { !lock; t[i].knows = !claimed }; /* vkr_plain_learn() */
				counted(i, marker)
			:: else ->
#ifndef NO_HANDLER
				if
				:: true -> handler(i, h)
				:: true
				fi;
#endif
				t[i].past_us = true;
				kernel(i, marker);
				t[i].past_us = false;
				leave(i, h);
				if
				:: h == HIT ->
					left(i);
					if
					:: marker -> atomic { efd = false; noise = false }; mixed; mixed_wait(i, marker)
					:: else
					fi
				:: else ->
					/* The program would see a marker. */
					assert(!marker)
				fi
			fi
		:: else -> counted(i, marker)
		fi
	:: else -> break
	od;
	t[i].out = true
}

inline barrier(i)
{
	i = 0;
	do
	:: i < NT -> atomic { !t[i].in_rmw; flush(i); i++ }
	:: else -> break
	od;
	i = 0
}

/* make_mixed() and vkr_plain_claim() */
proctype maker()
{
	byte i, v;
	bool knew[NT];

	atomic { !lock -> lock = true };
	claimed = true;
	do
	:: i < NT -> knew[i] = t[i].knows; t[i].knows = false; i++
	:: else -> break
	od;
#ifndef M_NO_BARRIER
	barrier(i);
#endif
	i = 0;
	do
	:: i < NT ->
		if
		:: atomic { knew[i] && t[i].note == EV -> t[i].note = HIT };
			t[i].hit_by_us = true;
#ifndef M_NO_COUNT
			in_kernel++
#endif
		:: else
		fi;
		i++
	:: else -> break
	od;
#ifndef M_NO_SECOND_BARRIER
	barrier(i);
#endif
	i = 0;
#ifndef M_NO_SECOND_LOOK
	do
	:: i < NT ->
		if
		:: t[i].hit_by_us && t[i].note != LEFT && t[i].note != HIT -> t[i].hit_by_us = false; in_kernel--
		:: else
		fi;
		i++
	:: else -> break
	od;
#endif
	lock = false;
	marked = true;
	noise = true; /* a completion of others' */
	mixed = true;
	/* The member becomes ready: item_put(). */
	atomic {
		ready = true;
		efd = efd || sleepers > 0 || in_kernel > 0
	};
	/* The set's kernel members, now and then. */
}

proctype others()
{
	byte i;

	do
	:: i < NT ->
		if
		:: native[i] = true
		:: true
		fi;
		i++
	:: else -> break
	od
}

proctype monitor()
{
	byte i;

end:	timeout;
	do
	:: i < NT ->
		/* Nobody sleeps beside a ready member, of which nobody else will tell it. */
		assert(!(t[i].asleep && ready && !efd));
		assert(t[i].asleep || t[i].out);
		i++
	:: else -> break
	od;
	/* Who has left is not counted: the set would write its eventfd for nobody, for ever. */
	i = 0;
	do
	:: i < NT -> if :: t[i].asleep -> break :: else -> i++ fi
	:: else -> assert(in_kernel == 0); break
	od;
	assert(!lock)
}

init {
	byte i;

	atomic {
		do
		:: i < NT -> t[i].knows = true; run waiter(i); run memory(i); i++
		:: else -> break
		od;
		run maker();
#ifndef NO_NATIVE
		run others();
#endif
		run monitor()
	}
}
