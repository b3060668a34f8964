/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * `vkrdma-run --check`. What sysfs knows (ports, GIDs) is read there: it is there in containers too and needs no right.
 * The libraries are opened as libvkrdma opens them, and an address is tried by binding an RDMA identifier to it.
 */
#include "run.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <ifaddrs.h>
#include <infiniband/verbs.h>
#include <net/if.h>
#include <rdma/rdma_cma.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define SYSFS            "/sys/class/infiniband"
#define IDLE_CONNECTION  (160u << 10) /* bytes of locked memory, at most */
#define FEW_CONNECTIONS  16
#define CAP_IPC_LOCK_BIT 14

enum verdict { OK, NOTE, MISSING };

struct library {
	struct ibv_device **(*get_device_list)(int *);
	void (*free_device_list)(struct ibv_device **);
	const char *(*get_device_name)(struct ibv_device *);
	struct ibv_context *(*open_device)(struct ibv_device *);
	int (*close_device)(struct ibv_context *);
	struct rdma_event_channel *(*create_event_channel)(void);
	void (*destroy_event_channel)(struct rdma_event_channel *);
	int (*create_id)(struct rdma_event_channel *, struct rdma_cm_id **, void *, enum rdma_port_space);
	int (*destroy_id)(struct rdma_cm_id *);
	int (*bind_addr)(struct rdma_cm_id *, struct sockaddr *);
};

static int missing; /* steps that failed */

static VKR_PRINTF(4, 5) void say(enum verdict v, const char *step, const char *todo, const char *fmt, ...)
{
	static const char *const words[] = {"ok", "note", "missing"};
	va_list ap;

	printf("%-7s  %-9s  ", words[v], step);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	printf("%s%s\n", todo ? " -> " : "", todo ? todo : "");
	missing += v == MISSING;
}

static void *symbol(void *handle, const char *name)
{
	void *p = dlvsym(handle, name, "IBVERBS_1.1");

	return p ? p : dlsym(handle, name);
}

static bool library_fill(struct library *l, void *ibv, void *rdma)
{
	*(void **)&l->get_device_list = symbol(ibv, "ibv_get_device_list");
	*(void **)&l->free_device_list = symbol(ibv, "ibv_free_device_list");
	*(void **)&l->get_device_name = symbol(ibv, "ibv_get_device_name");
	*(void **)&l->open_device = symbol(ibv, "ibv_open_device");
	*(void **)&l->close_device = symbol(ibv, "ibv_close_device");
	*(void **)&l->create_event_channel = symbol(rdma, "rdma_create_event_channel");
	*(void **)&l->destroy_event_channel = symbol(rdma, "rdma_destroy_event_channel");
	*(void **)&l->create_id = symbol(rdma, "rdma_create_id");
	*(void **)&l->destroy_id = symbol(rdma, "rdma_destroy_id");
	*(void **)&l->bind_addr = symbol(rdma, "rdma_bind_addr");
	return l->get_device_list && l->free_device_list && l->get_device_name && l->open_device && l->close_device &&
	       l->create_event_channel && l->destroy_event_channel && l->create_id && l->destroy_id && l->bind_addr;
}

static void check_preload(void)
{
	char path[PATH_MAX];

	if (run_library_find(RUN_LIBRARY, path) == 0)
		say(OK, "libvkrdma", NULL, "%s", path);
	else
		say(MISSING, "libvkrdma", "build or install it",
		    RUN_LIBRARY " was not found beside this program nor in %s", VKRDMA_LIBDIR);
}

static bool check_libraries(struct library *l)
{
	static const char todo[] = "install rdma-core's libraries (Debian: apt install libibverbs1 librdmacm1 "
				   "ibverbs-providers)";
	void *ibv = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	void *rdma = dlopen("librdmacm.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!ibv || !rdma) {
		say(MISSING, "libraries", todo, "%s%s%s cannot be loaded", ibv ? "" : "libibverbs.so.1",
		    ibv || rdma ? "" : " and ", rdma ? "" : "librdmacm.so.1");
		return false;
	}
	if (!library_fill(l, ibv, rdma)) {
		say(MISSING, "libraries", todo, "libibverbs.so.1 or librdmacm.so.1 is too old");
		return false;
	}
	say(OK, "libraries", NULL, "libibverbs.so.1 and librdmacm.so.1 are installed");
	return true;
}

/* Device files: rdma_cm, and an uverbs for each device. */
static void check_files(void)
{
	DIR *d = opendir("/dev/infiniband");
	char path[PATH_MAX];
	int uverbs = 0, closed = 0;
	struct dirent *e;

	if (!d) {
		say(MISSING, "files",
		    "load the drivers (modprobe ib_uverbs rdma_ucm); in a container pass "
		    "/dev/infiniband in",
		    "there is no /dev/infiniband");
		return;
	}
	while ((e = readdir(d))) {
		if (strncmp(e->d_name, "uverbs", 6) != 0)
			continue;
		snprintf(path, sizeof(path), "/dev/infiniband/%s", e->d_name);
		uverbs++;
		closed += access(path, R_OK | W_OK) != 0;
	}
	closedir(d);
	if (!uverbs)
		say(MISSING, "files", "load the driver (modprobe ib_uverbs)", "/dev/infiniband has no uverbs device");
	else if (closed)
		say(MISSING, "files", "make them readable and writable for you (udev rule, or group rdma)",
		    "%d of %d /dev/infiniband/uverbs files are closed to this user", closed, uverbs);
	else if (access("/dev/infiniband/rdma_cm", R_OK | W_OK) != 0)
		say(MISSING, "files",
		    access("/dev/infiniband/rdma_cm", F_OK) ? "load the driver (modprobe rdma_ucm)"
							    : "make it readable and writable for you",
		    "/dev/infiniband/rdma_cm cannot be used");
	else
		say(OK, "files", NULL, "/dev/infiniband: rdma_cm and %d uverbs", uverbs);
}

static bool check_devices(const struct library *l, const char *step)
{
	struct ibv_device **list;
	struct ibv_context *c;
	int n = 0, i, good = 0;

	list = l->get_device_list(&n);
	for (i = 0; list && i < n; i++) {
		const char *name = l->get_device_name(list[i]);

		c = l->open_device(list[i]);
		if (c)
			say(OK, step, NULL, "%s opens", name);
		else
			say(NOTE, step, NULL, "%s does not open: %s", name, strerror(errno));
		if (c)
			l->close_device(c);
		good += c != NULL;
	}
	if (list)
		l->free_device_list(list);
	if (!good)
		say(MISSING, step,
		    "with an adapter: load its driver; with none: soft-RoCE over any network card (modprobe "
		    "rdma_rxe; rdma link add rxe0 type rxe netdev eth0), or --soft inside this machine",
		    "%s", n > 0 ? "no RDMA device can be opened" : "this machine has no RDMA device");
	return good > 0;
}

/* First line of a sysfs file, without its end. */
static bool sysfs_line(char line[128], const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool sysfs_line(char line[128], const char *fmt, ...)
{
	char path[PATH_MAX];
	va_list ap;
	bool ok;
	FILE *f;

	va_start(ap, fmt);
	vsnprintf(path, sizeof(path), fmt, ap);
	va_end(ap);
	f = fopen(path, "re");
	ok = f && fgets(line, 128, f);
	if (ok)
		line[strcspn(line, "\n")] = '\0';
	if (f)
		fclose(f);
	return ok;
}

/* GIDs are a port's addresses; RoCE makes one of each IP address of its network card. */
static int count_gids(const char *device, const char *port)
{
	char line[128];
	int i, n = 0;

	for (i = 0; i < 256 && sysfs_line(line, SYSFS "/%s/ports/%s/gids/%d", device, port, i); i++)
		n += strspn(line, "0:") != strlen(line);
	return n;
}

static bool check_port(const char *device, const char *port)
{
	char state[128] = "?", link[128] = "?";
	bool active;
	int gids;

	sysfs_line(state, SYSFS "/%s/ports/%s/state", device, port);
	sysfs_line(link, SYSFS "/%s/ports/%s/link_layer", device, port);
	active = strstr(state, "ACTIVE") != NULL;
	gids = count_gids(device, port);
	if (active && gids)
		say(OK, "port", NULL, "%s port %s is active (%s, %d GIDs)", device, port, link, gids);
	else if (active)
		say(NOTE, "port", "give its network interface an IP address", "%s port %s has no GID", device, port);
	else
		say(NOTE, "port", "plug the cable, or: ip link set INTERFACE up", "%s port %s is not active (state %s)",
		    device, port, state);
	return active && gids;
}

/* Calls fn for each name in a folder of sysfs, without . and .. */
static int check_ports(void)
{
	struct dirent *dev, *port;
	char path[PATH_MAX];
	DIR *d = opendir(SYSFS), *ports;
	int good = 0;

	while (d && (dev = readdir(d))) {
		if (dev->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), SYSFS "/%s/ports", dev->d_name);
		ports = opendir(path);
		while (ports && (port = readdir(ports)))
			if (port->d_name[0] != '.')
				good += check_port(dev->d_name, port->d_name);
		if (ports)
			closedir(ports);
	}
	if (d)
		closedir(d);
	if (!good)
		say(MISSING, "port", "see the lines above", "no port of a device is active with a GID");
	return good;
}

/* True if an RDMA identifier can be bound to the address; `device` gets the name of the device behind it. */
static bool try_bind(const struct library *l, struct rdma_event_channel *ch, struct sockaddr *sa, char device[64])
{
	struct rdma_cm_id *id;
	bool ok;

	device[0] = '\0';
	if (l->create_id(ch, &id, NULL, RDMA_PS_TCP) != 0)
		return false;
	ok = l->bind_addr(id, sa) == 0;
	if (ok && id->verbs)
		snprintf(device, 64, "%s", l->get_device_name(id->verbs->device));
	l->destroy_id(id);
	return ok;
}

static int check_address(const struct library *l, struct rdma_event_channel *ch, const struct ifaddrs *ifa)
{
	struct sockaddr_storage ss = {0};
	char ip[INET6_ADDRSTRLEN], device[64];
	bool v4 = ifa->ifa_addr->sa_family == AF_INET;

	memcpy(&ss, ifa->ifa_addr, v4 ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
	if (!try_bind(l, ch, (struct sockaddr *)&ss, device) || !device[0])
		return 0;
	inet_ntop(ifa->ifa_addr->sa_family,
		  v4 ? (void *)&((struct sockaddr_in *)&ss)->sin_addr
		     : (void *)&((struct sockaddr_in6 *)&ss)->sin6_addr,
		  ip, sizeof(ip));
	say(OK, "address", NULL, "%s (%s) goes to %s: use this address to connect and to listen", ip, ifa->ifa_name,
	    device);
	return 1;
}

static void check_addresses(const struct library *l)
{
	struct rdma_event_channel *ch = l->create_event_channel();
	struct ifaddrs *all = NULL, *ifa;
	int good = 0;

	if (!ch || getifaddrs(&all) < 0) {
		say(MISSING, "address", "load the driver (modprobe rdma_ucm)", "RDMA connection management: %s",
		    strerror(errno));
	} else {
		for (ifa = all; ifa; ifa = ifa->ifa_next)
			if (ifa->ifa_addr && !(ifa->ifa_flags & IFF_LOOPBACK) &&
			    (ifa->ifa_addr->sa_family == AF_INET || ifa->ifa_addr->sa_family == AF_INET6))
				good += check_address(l, ch, ifa);
		if (!good)
			say(MISSING, "address",
			    "give the interface under the RDMA device an IP address (ip addr add ...)",
			    "no IP address of this machine has an RDMA device behind it");
	}
	if (all)
		freeifaddrs(all);
	if (ch)
		l->destroy_event_channel(ch);
}

static bool may_lock_memory(void)
{
	unsigned long long caps = 0;
	char line[256];
	FILE *f = fopen("/proc/self/status", "re");

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "CapEff: %llx", &caps) == 1)
			break;
	if (f)
		fclose(f);
	return caps >> CAP_IPC_LOCK_BIT & 1;
}

static void check_memlock(void)
{
	static const char todo[] = "raise it (ulimit -l unlimited; LimitMEMLOCK=infinity in a systemd unit)";
	struct rlimit lim;
	unsigned long long n;

	if (getrlimit(RLIMIT_MEMLOCK, &lim) < 0)
		return;
	n = lim.rlim_cur / IDLE_CONNECTION;
	if (lim.rlim_cur == RLIM_INFINITY || may_lock_memory())
		say(OK, "memlock", NULL, "memory may be locked without a limit");
	else if (n < FEW_CONNECTIONS)
		say(MISSING, "memlock", todo, "only %llu KiB may be locked, enough for %llu connections",
		    (unsigned long long)lim.rlim_cur >> 10, n);
	else
		say(NOTE, "memlock", todo, "%llu KiB may be locked, enough for about %llu idle connections",
		    (unsigned long long)lim.rlim_cur >> 10, n);
}

static void *soft_open(char path[PATH_MAX])
{
	if (run_library_find(RUN_SOFT_LIBRARY, path) < 0)
		snprintf(path, PATH_MAX, "%s", RUN_SOFT_LIBRARY);
	return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static bool check_soft(enum verdict otherwise)
{
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct rdma_event_channel *ch;
	struct library l;
	char path[PATH_MAX], device[64];
	void *handle = soft_open(path);
	bool ok;
	int n = 0;

	if (!handle) {
		say(otherwise, "soft", "build or install it beside " RUN_LIBRARY, RUN_SOFT_LIBRARY " cannot be loaded");
		return false;
	}
	ok = library_fill(&l, handle, handle);
	if (ok) {
		struct ibv_device **list = l.get_device_list(&n);

		if (list)
			l.free_device_list(list);
		ch = l.create_event_channel();
		ok = n > 0 && ch && try_bind(&l, ch, (struct sockaddr *)&sa, device);
		if (ch)
			l.destroy_event_channel(ch);
	}
	if (ok)
		say(OK, "soft", NULL, "software RDMA between processes of this machine works: %s", path);
	else
		say(otherwise, "soft", "see whether abstract Unix sockets, memfd and eventfd are allowed here",
		    "software RDMA does not work: %s", strerror(errno));
	return ok;
}

int run_check(bool soft)
{
	struct library l;
	bool soft_works;

	check_preload();
	if (!soft && check_libraries(&l)) {
		check_files();
		if (check_devices(&l, "device")) {
			check_ports();
			check_addresses(&l);
		}
	}
	if (!soft)
		check_memlock();
	soft_works = check_soft(soft ? MISSING : NOTE);
	if (!missing)
		printf("RDMA works here%s.\n", soft ? ", in software, between processes of this machine" : "");
	else if (!soft && soft_works)
		printf("RDMA does not work here yet: see the lines marked missing. vkrdma-run --soft does.\n");
	else
		printf("RDMA does not work here yet: see the lines marked missing. Programs run on plain TCP "
		       "meanwhile.\n");
	return missing ? 1 : 0;
}
