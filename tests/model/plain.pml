/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Waits past us (shim/plain_wait.h): threads that wait on a set which holds nothing of ours, and leave a note only;
 * somebody who puts a carried member into it, and claims its number first; the member, which becomes ready.
 *
 * A thread's plain stores go through a store buffer: others see them later, in order. membarrier() empties it, and finds
 * the instruction that takes a note away done or not begun. What is under the lock, and the kernel's part, is one step.
 *
 * NT  threads; each waits TURNS times. NO_HANDLER: no signals. NO_NATIVE: no events of the kernel's own.
 *
 * DUP2: the threads wait on the number of a plain set, which becomes the number of another, mixed one (vkr_sock_dup2()).
 * What is global below is the mixed set's then.
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
bool native[NT];

#ifdef DUP2
/* The number is the mixed set's: in the kernel, in our table. in_y: who is counted in the plain set. */
bool names_x, table_x, changing, pinned;
byte in_y;
bool on_x[NT]; /* the set that the thread sleeps in */
#define COUNTED in_y
#else
#define COUNTED in_kernel
#endif

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
		COUNTED = COUNTED - (t[i].hit_by_us -> 1 : 0);
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

#ifndef DUP2
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

#else

/* The kernel's wait by the number. */
inline kernel_by_number(i, marker)
{
	atomic { on_x[i] = names_x; t[i].asleep = true };
	atomic {
		if
		:: on_x[i] && (efd || noise) -> marker = true
		:: native[i] -> native[i] = false; marker = false
		fi;
		t[i].asleep = false;
		on_x[i] = true /* a wait on the mixed set is by a number of its own */
	}
}

/* wait_on() until that is the set which the number names */
inline counted(i, marker)
{
	do
	:: table_x -> mixed_wait(i, marker); break
	:: !table_x ->
		in_y++;
		if
#ifndef M_NO_RECHECK
		:: table_x -> in_y--
		:: !table_x ->
#else
		:: true ->
#endif
			kernel_by_number(i, marker);
			in_y--;
			if :: marker -> table_x /* vkr_ctl_lock */ :: else -> break fi
		fi
	od
}

proctype waiter(byte i)
{
	byte turn, h;
	bool marker;

	do
	:: turn < TURNS ->
		turn++;
		store(i, EV);
		if
		:: !t[i].knows ->
			leave(i, h);
			if
			:: h == HIT -> left(i)
			:: else
			fi;
			if
			:: table_x
			:: !table_x -> atomic { !lock; if :: !table_x && !changing -> t[i].knows = true :: else fi }
			fi;
			counted(i, marker)
		:: else ->
			kernel_by_number(i, marker);
			leave(i, h);
			if
			:: h == HIT -> left(i); if :: marker -> table_x; counted(i, marker) :: else fi
			:: else -> assert(!marker) /* the program would see it */
			fi
		fi
	:: else -> break
	od;
	t[i].out = true
}
#endif

inline barrier(i)
{
	i = 0;
	do
	:: i < NT -> atomic { !t[i].in_rmw; flush(i); i++ }
	:: else -> break
	od;
	i = 0
}

/* vkr_plain_claim() */
inline claim(i)
{
	i = 0;
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
			COUNTED++
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
		:: t[i].hit_by_us && t[i].note != LEFT && t[i].note != HIT -> t[i].hit_by_us = false; COUNTED--
		:: else
		fi;
		i++
	:: else -> break
	od;
#endif
	lock = false
}

#ifdef DUP2
/* vkr_sock_dup2() */
proctype maker()
{
	byte i, v;
	bool knew[NT];

	atomic { !lock -> lock = true };
#ifndef M_LEARNS
	changing = true;
#endif
#ifdef M_CLAIM_LATE
	lock = false;
	names_x = true;
	table_x = true;
	atomic { !lock -> lock = true };
	claim(i);
#else
	claim(i);
	names_x = true;
	table_x = true;
#endif
#ifndef M_NO_PIN
	atomic { if :: in_y > 0 -> in_kernel++; pinned = true :: else fi };
#endif
	changing = false;
	atomic {
		ready = true;
		efd = efd || sleepers > 0 || in_kernel > 0
	}
}
#else
/* vkr_epset_mix() */
proctype maker()
{
	byte i, v;
	bool knew[NT];

	atomic { !lock -> lock = true };
	claimed = true;
	claim(i);
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
#endif

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
#ifdef DUP2
		assert(!(t[i].asleep && on_x[i] && ready && !efd));
#else
		assert(!(t[i].asleep && ready && !efd));
#endif
		assert(t[i].asleep || t[i].out);
		i++
	:: else -> break
	od;
	/* Who has left is not counted: the set would write its eventfd for nobody, for ever. */
	i = 0;
	do
	:: i < NT -> if :: t[i].asleep -> break :: else -> i++ fi
#ifdef DUP2
	:: else -> assert(in_y == 0 && in_kernel == (pinned -> 1 : 0)); break
#else
	:: else -> assert(in_kernel == 0); break
#endif
	od;
	assert(!lock)
}

init {
	byte i;

	atomic {
#ifdef DUP2
		marked = true;
		mixed = true;
		if
		:: noise = true /* a completion of others', now or never */
		:: true
		fi;
		do
		:: i < NT -> on_x[i] = true; i++
		:: else -> i = 0; break
		od;
#endif
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
