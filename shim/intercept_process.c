/* SPDX-License-Identifier: BSD-2-Clause */
/* Processes: fork, exec, spawn, the ends of a process. */
#include "intercept.h"
#include "nofile.h"

#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

/* ------------------------------------------------------------------ fork and vfork */

/*
 * All locks are held from here to the other two. Handlers that were registered before ours run in between, in this
 * thread: the raised depth lets their calls go straight to libc instead of waiting for a lock that is ours.
 */
static void fork_prepare(void)
{
	vkr_depth++;
	vkr_socket_fork_prepare();
}

static void fork_parent(void)
{
	vkr_socket_fork_parent();
	vkr_depth--;
}

static void fork_child(void)
{
	vkr_socket_fork_child();
	vkr_depth--;
}

static void prepare_once(void)
{
	pthread_atfork(fork_prepare, fork_parent, fork_child);
}

void vkr_process_prepare(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	vkr_depth++;
	pthread_once(&once, prepare_once);
	vkr_depth--;
}

/*
 * vfork returns twice into one stack frame, so it cannot be wrapped in C. The return address waits in a register, as in
 * libc. The child shares our memory: the depth is raised around it, so that all its calls go straight to libc, and the
 * parent, which runs again when the child has gone, lowers it.
 */
int vkr_vfork_failed(int error);
__attribute__((used)) int vkr_vfork_failed(int error)
{
	errno = -error;
	return -1;
}

#if defined(__x86_64__)
__asm__(".pushsection .text\n"
	".globl vfork\n"
	".globl __vfork\n"
	".type vfork, @function\n"
	".type __vfork, @function\n"
	".p2align 4\n"
	"vfork:\n"
	"__vfork:\n"
	"	.cfi_startproc\n"
	"	popq %rdi\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	.cfi_register %rip, %rdi\n"
	"	movq vkr_depth@gottpoff(%rip), %rsi\n"
	"	incl %fs:(%rsi)\n"
	"	movl $58, %eax\n" /* SYS_vfork; clobbers rcx, r11 */
	"	syscall\n"
	"	pushq %rdi\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	.cfi_rel_offset %rip, 0\n"
	"	testl %eax, %eax\n"
	"	jz 2f\n"
	"	decl %fs:(%rsi)\n"
	"	cmpl $-4095, %eax\n"
	"	jae 1f\n"
	"2:	ret\n"
	"1:	movl %eax, %edi\n"
	"	jmp vkr_vfork_failed\n"
	"	.cfi_endproc\n"
	".size vfork, .-vfork\n"
	".size __vfork, .-__vfork\n"
	".popsection\n");
#elif defined(__aarch64__)
__asm__(".pushsection .text\n"
	".globl vfork\n"
	".globl __vfork\n"
	".type vfork, %function\n"
	".type __vfork, %function\n"
	".p2align 4\n"
	"vfork:\n"
	"__vfork:\n"
	"	hint #34\n" /* bti c */
	"	adrp x9, :gottprel:vkr_depth\n"
	"	ldr x9, [x9, #:gottprel_lo12:vkr_depth]\n"
	"	mrs x10, tpidr_el0\n"
	"	add x9, x9, x10\n"
	"	ldr w11, [x9]\n"
	"	add w11, w11, #1\n"
	"	str w11, [x9]\n"
	"	mov x0, #0x4111\n" /* CLONE_VM | CLONE_VFORK | SIGCHLD */
	"	mov x1, #0\n"
	"	mov x8, #220\n" /* SYS_clone */
	"	svc #0\n"
	"	cbz x0, 2f\n"
	"	ldr w11, [x9]\n"
	"	sub w11, w11, #1\n"
	"	str w11, [x9]\n"
	"	cmn x0, #4095\n"
	"	b.cs 1f\n"
	"2:	ret\n"
	"1:	b vkr_vfork_failed\n"
	".size vfork, .-vfork\n"
	".size __vfork, .-__vfork\n"
	".popsection\n");
#endif

/* ------------------------------------------------------------------ exec */

/* What is to be put right when the exec fails. */
struct exec {
	bool sockets, limits;
};

/* Ends what this process carries and gives the application's limit back. A vforked child only does the latter: its
 * limits are its own, its memory is not. */
static struct exec exec_begin(bool likely_to_work)
{
	int saved = errno;
	struct exec e = {.limits = false};

	if (vkr_likely(!vkr_load(&vkr_active)))
		return e;
	if (likely_to_work)
		vkr_socket_exec();
	e.sockets = likely_to_work;
	e.limits = vkr_limits_restore();
	errno = saved;
	return e;
}

static int exec_failed(struct exec e, int ret)
{
	int saved = errno;

	vkr_limits_restore_undo(e.limits);
	if (e.sockets)
		vkr_socket_exec_failed();
	errno = saved;
	return ret;
}

/* An exec that will fail with ENOENT or EACCES must not cost the connections. */
static bool runnable(const char *path)
{
	int saved = errno;
	struct stat st;
	bool ok =
	    vkr_load(&vkr_active) && path && access(path, X_OK) == 0 && stat(path, &st) == 0 && S_ISREG(st.st_mode);

	errno = saved;
	return ok;
}

/* A bare name is looked for along PATH by libc, whose failures are nearly always a forked child's. */
static bool runnable_in_path(const char *file)
{
	return file && *file && (!__builtin_strchr(file, '/') || runnable(file));
}

int vkr_call_execve(const char *path, char *const argv[], char *const envp[])
{
	struct exec e = exec_begin(runnable(path));

	return exec_failed(e, vkr_real.execve(path, argv, envp));
}
VKR_NAME(execve, vkr_call_execve);

int vkr_call_execveat(int dir, const char *path, char *const argv[], char *const envp[], int flags)
{
	struct exec e = exec_begin(true);

	return exec_failed(e, vkr_real.execveat(dir, path, argv, envp, flags));
}
VKR_NAME(execveat, vkr_call_execveat);

static int call_fexecve(int fd, char *const argv[], char *const envp[])
{
	struct exec e = exec_begin(true);

	return exec_failed(e, vkr_real.fexecve(fd, argv, envp));
}
VKR_NAME(fexecve, call_fexecve);

static int call_execvpe(const char *file, char *const argv[], char *const envp[])
{
	struct exec e = exec_begin(runnable_in_path(file));

	return exec_failed(e, vkr_real.execvpe(file, argv, envp));
}
VKR_NAME(execvpe, call_execvpe);

static int call_execvp(const char *file, char *const argv[])
{
	return call_execvpe(file, argv, environ);
}
VKR_NAME(execvp, call_execvp);

static int call_execv(const char *path, char *const argv[])
{
	return vkr_call_execve(path, argv, environ);
}
VKR_NAME(execv, call_execv);

/* The list forms collect their arguments on the stack: they are called between fork and exec, where malloc is not. */
static size_t count_args(va_list ap)
{
	size_t n = 1;

	while (va_arg(ap, char *))
		n++;
	return n;
}

#define LIST_ARGS(argv, arg, ap)                                                                                       \
	do {                                                                                                           \
		size_t list_n = 1;                                                                                     \
                                                                                                                       \
		if (arg) {                                                                                             \
			va_start(ap, arg);                                                                             \
			list_n += count_args(ap);                                                                      \
			va_end(ap);                                                                                    \
		}                                                                                                      \
		argv = __builtin_alloca(list_n * sizeof(char *));                                                      \
		argv[0] = (char *)arg;                                                                                 \
		va_start(ap, arg);                                                                                     \
		for (size_t list_i = 1; list_i < list_n; list_i++)                                                     \
			argv[list_i] = va_arg(ap, char *);                                                             \
	} while (0)

static int call_execl(const char *path, const char *arg, ...)
{
	va_list ap;
	char **argv;

	LIST_ARGS(argv, arg, ap);
	va_end(ap);
	return vkr_call_execve(path, argv, environ);
}
VKR_NAME(execl, call_execl);

static int call_execlp(const char *file, const char *arg, ...)
{
	va_list ap;
	char **argv;

	LIST_ARGS(argv, arg, ap);
	va_end(ap);
	return call_execvpe(file, argv, environ);
}
VKR_NAME(execlp, call_execlp);

static int call_execle(const char *path, const char *arg, ...)
{
	va_list ap;
	char **argv, *const *envp;

	LIST_ARGS(argv, arg, ap);
	envp = va_arg(ap, char *const *);
	va_end(ap);
	return vkr_call_execve(path, argv, (char *const *)envp);
}
VKR_NAME(execle, call_execle);

/* What another program has left open for this one may be connections of its (pump.h). */
__attribute__((constructor)) static void receive_inherited(void)
{
	enum { NUMBERS = 256 };
	int saved = errno, fd;

	vkr_init();
	if (!vkr_on())
		return;
	vkr_process_prepare();
	for (fd = 0; fd < NUMBERS; fd++)
		vkr_sock_received(fd);
	errno = saved;
}

/* ------------------------------------------------------------------ spawn: libc's own child, our descriptors close */

#define SPAWN(name, result)                                                                                            \
	static int call_##name(result *pid, const char *path, const posix_spawn_file_actions_t *fa,                    \
			       const posix_spawnattr_t *attr, char *const argv[], char *const envp[])                  \
	{                                                                                                              \
		int ret;                                                                                               \
                                                                                                                       \
		if (vkr_likely(!vkr_on()) || vkr_vforked())                                                            \
			return vkr_real.name(pid, path, fa, attr, argv, envp);                                         \
		vkr_socket_spawn();                                                                                    \
		vkr_limits_spawn_begin();                                                                              \
		ret = vkr_real.name(pid, path, fa, attr, argv, envp);                                                  \
		vkr_limits_spawn_end();                                                                                \
		return ret;                                                                                            \
	}                                                                                                              \
	VKR_NAME(name, call_##name)

SPAWN(posix_spawn, pid_t);
SPAWN(posix_spawnp, pid_t);
SPAWN(pidfd_spawn, int);
SPAWN(pidfd_spawnp, int);

/* A connection that the child gets under another number is inherited although it is close-on-exec. */
static int call_file_actions_adddup2(posix_spawn_file_actions_t *fa, int fd, int newfd)
{
	if (vkr_tracked(fd))
		vkr_sock_share(fd);
	return vkr_real.posix_spawn_file_actions_adddup2(fa, fd, newfd);
}
VKR_NAME(posix_spawn_file_actions_adddup2, call_file_actions_adddup2);

static int call_system(const char *command)
{
	if (vkr_on() && command && !vkr_vforked())
		vkr_socket_spawn();
	return vkr_real.system(command);
}
VKR_NAME(system, call_system);

static FILE *call_popen(const char *command, const char *mode)
{
	FILE *f;

	if (vkr_likely(!vkr_on()) || vkr_vforked())
		return vkr_real.popen(command, mode);
	vkr_socket_spawn();
	vkr_limits_spawn_begin();
	f = vkr_real.popen(command, mode);
	vkr_limits_spawn_end();
	return f;
}
VKR_NAME(popen, call_popen);

/* ------------------------------------------------------------------ libc functions that dup2 behind our back */

static void note_stdio(int ret)
{
	for (int fd = 0; ret == 0 && fd <= 2; fd++)
		vkr_note_fresh(fd);
}

static int call_daemon(int nochdir, int noclose)
{
	int ret = vkr_real.daemon(nochdir, noclose);

	if (!noclose)
		note_stdio(ret);
	return ret;
}
VKR_NAME(daemon, call_daemon);

static int call_login_tty(int fd)
{
	int ret = vkr_real.login_tty(fd);

	note_stdio(ret);
	return ret;
}
VKR_NAME(login_tty, call_login_tty);

static int call_openpty(int *master, int *slave, char *name, const struct termios *t, const struct winsize *w)
{
	int ret = vkr_real.openpty(master, slave, name, t, w);

	if (ret == 0) {
		vkr_note_fresh(*master);
		vkr_note_fresh(*slave);
	}
	return ret;
}
VKR_NAME(openpty, call_openpty);

static int call_forkpty(int *master, char *name, const struct termios *t, const struct winsize *w)
{
	int pid = vkr_real.forkpty(master, name, t, w);

	if (pid == 0)
		note_stdio(0);
	else if (pid > 0)
		vkr_note_fresh(*master);
	return pid;
}
VKR_NAME(forkpty, call_forkpty);

/* ------------------------------------------------------------------ the end */

static void flush(void)
{
	if (vkr_on() && !vkr_vforked())
		vkr_socket_exit();
}

void vkr_call__exit(int status)
{
	flush();
	vkr_real._exit(status);
}
VKR_NAME(_exit, vkr_call__exit);
VKR_NAME(_Exit, vkr_call__exit);

/* Handlers of at_quick_exit() run inside and may still send; what they send is not waited for. */
static void call_quick_exit(int status)
{
	flush();
	vkr_real.quick_exit(status);
}
VKR_NAME(quick_exit, call_quick_exit);

/* exit(): after the application's atexit handlers, which may still send. */
__attribute__((destructor)) static void destruct(void)
{
	flush();
}
