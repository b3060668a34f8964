/* SPDX-License-Identifier: BSD-2-Clause */
/* RLIMIT_NOFILE as the application sees it, and signal dispositions. */
#include "intercept.h"
#include "nofile.h"

#include <unistd.h>

/* ------------------------------------------------------------------ limits */

int vkr_call_prlimit(pid_t pid, int resource, const struct rlimit *set, struct rlimit *old)
{
	if (vkr_likely(!vkr_on()) || resource != RLIMIT_NOFILE || (pid != 0 && pid != getpid()) || vkr_vforked())
		return vkr_real.prlimit(pid, resource, set, old);
	vkr_fork_check();
	VKR_ROUTE(vkr_limits_exchange(set, old), vkr_real.prlimit(pid, resource, set, old));
}
VKR_NAME(prlimit, vkr_call_prlimit);
VKR_NAME(prlimit64, vkr_call_prlimit);

int vkr_call_getrlimit(int resource, struct rlimit *l)
{
	if (vkr_likely(!vkr_on()) || resource != RLIMIT_NOFILE || !l)
		return vkr_real.getrlimit(resource, l);
	return vkr_call_prlimit(0, resource, NULL, l);
}
VKR_NAME(getrlimit, vkr_call_getrlimit);
VKR_NAME(getrlimit64, vkr_call_getrlimit);

int vkr_call_setrlimit(int resource, const struct rlimit *l)
{
	if (vkr_likely(!vkr_on()) || resource != RLIMIT_NOFILE || !l)
		return vkr_real.setrlimit(resource, l);
	return vkr_call_prlimit(0, resource, l, NULL);
}
VKR_NAME(setrlimit, vkr_call_setrlimit);
VKR_NAME(setrlimit64, vkr_call_setrlimit);

static long call_sysconf(int name)
{
	rlim_t soft;

	if (vkr_likely(!vkr_on()) || name != _SC_OPEN_MAX || !vkr_limits_seen(&soft))
		return vkr_real.sysconf(name);
	return soft == RLIM_INFINITY ? -1 : (long)soft;
}
VKR_NAME(sysconf, call_sysconf);
VKR_NAME(__sysconf, call_sysconf);

static int call_getdtablesize(void)
{
	rlim_t soft;

	if (vkr_likely(!vkr_on()) || !vkr_limits_seen(&soft))
		return vkr_real.getdtablesize();
	return (int)vkr_min(soft, (rlim_t)INT32_MAX);
}
VKR_NAME(getdtablesize, call_getdtablesize);

/* ------------------------------------------------------------------ signals: libc does them, SA_RESTART is remembered
 */

static void note_action(int sig, const struct sigaction *act)
{
	bool handler = act->sa_handler != SIG_DFL && act->sa_handler != SIG_IGN;

	vkr_signal_note(sig, handler, act->sa_flags & SA_RESTART);
}

/* Before the configuration is read the disposition is noted too: it will still hold when a rule turns out to be active.
 */
static bool noting(void)
{
	return vkr_depth == 0 && (vkr_load(&vkr_active) || !vkr_initialised()) && !vkr_vforked();
}

void vkr_note_signal(int sig)
{
	int saved = errno;
	struct sigaction now;

	if (noting() && vkr_real.sigaction(sig, NULL, &now) == 0)
		note_action(sig, &now);
	errno = saved;
}

static int call_sigaction(int sig, const struct sigaction *act, struct sigaction *old)
{
	int ret = vkr_real.sigaction(sig, act, old);

	if (ret == 0 && act)
		vkr_note_signal(sig);
	return ret;
}
VKR_NAME(sigaction, call_sigaction);
VKR_NAME(__sigaction, call_sigaction);

#define SIGNAL_CALL(name)                                                                                              \
	static sighandler_t call_##name(int sig, sighandler_t handler)                                                 \
	{                                                                                                              \
		sighandler_t ret = vkr_real.name(sig, handler);                                                        \
                                                                                                                       \
		if (ret != SIG_ERR)                                                                                    \
			vkr_note_signal(sig);                                                                          \
		return ret;                                                                                            \
	}                                                                                                              \
	VKR_NAME(name, call_##name)

SIGNAL_CALL(signal);
VKR_NAME(bsd_signal, call_signal);
VKR_NAME(ssignal, call_signal);
SIGNAL_CALL(__sysv_signal);
VKR_NAME(sysv_signal, call___sysv_signal);
SIGNAL_CALL(sigset);

static int call_sigignore(int sig)
{
	int ret = vkr_real.sigignore(sig);

	if (ret == 0)
		vkr_note_signal(sig);
	return ret;
}
VKR_NAME(sigignore, call_sigignore);

static int call_siginterrupt(int sig, int flag)
{
	int ret = vkr_real.siginterrupt(sig, flag);

	if (ret == 0)
		vkr_note_signal(sig);
	return ret;
}
VKR_NAME(siginterrupt, call_siginterrupt);
