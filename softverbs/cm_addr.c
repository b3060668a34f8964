/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Addresses: binding, listening, resolving. A port is held by binding an abstract socket that is named after port
 * space, address and port; listening on it is how other processes find us.
 */
#include "cm.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/epoll.h>

static uint16_t port_of(const struct sockaddr *sa)
{
	return ntohs(sa->sa_family == AF_INET6 ? ((const struct sockaddr_in6 *)sa)->sin6_port
					       : ((const struct sockaddr_in *)sa)->sin_port);
}

static void port_set(struct sockaddr *sa, uint16_t port)
{
	if (sa->sa_family == AF_INET6)
		((struct sockaddr_in6 *)sa)->sin6_port = htons(port);
	else
		((struct sockaddr_in *)sa)->sin_port = htons(port);
}

static socklen_t addr_len(const struct sockaddr *sa)
{
	return sa->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

static bool addr_known(const struct sockaddr *sa)
{
	return sa && (sa->sa_family == AF_INET || sa->sa_family == AF_INET6);
}

static bool addr_loopback(const struct sockaddr *sa)
{
	if (sa->sa_family == AF_INET6)
		return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)sa)->sin6_addr);
	return ntohl(((const struct sockaddr_in *)sa)->sin_addr.s_addr) >> 24 == 127;
}

/* Linux takes loopback's addresses for any as well; here only when asked, since they have a device behind them. */
static bool addr_any(const struct sockaddr *sa)
{
	if (addr_loopback(sa) && sv_fault_loopback())
		return true;
	if (sa->sa_family == AF_INET6)
		return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)sa)->sin6_addr);
	return !((const struct sockaddr_in *)sa)->sin_addr.s_addr;
}

static void addr_make_any(struct sockaddr *sa)
{
	if (sa->sa_family == AF_INET)
		((struct sockaddr_in *)sa)->sin_addr.s_addr = 0;
	else
		memset(&((struct sockaddr_in6 *)sa)->sin6_addr, 0, 16);
}

/* A v4-mapped address names the same ports as its IPv4 form. */
static void addr_plain(const struct sockaddr *sa, struct sockaddr_storage *out)
{
	const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)sa;

	memset(out, 0, sizeof(*out));
	memcpy(out, sa, addr_len(sa));
	if (sa->sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&six->sin6_addr)) {
		struct sockaddr_in *four = (struct sockaddr_in *)out;
		__be32 v4;

		memcpy(&v4, six->sin6_addr.s6_addr + 12, 4);
		memset(out, 0, sizeof(*out));
		four->sin_family = AF_INET;
		four->sin_port = six->sin6_port;
		four->sin_addr.s_addr = v4;
	}
}

static bool addr_equal(const struct sockaddr *a, const struct sockaddr *b)
{
	struct sockaddr_storage x, y;

	addr_plain(a, &x);
	addr_plain(b, &y);
	if (x.ss_family != y.ss_family)
		return false;
	if (x.ss_family == AF_INET)
		return ((struct sockaddr_in *)&x)->sin_addr.s_addr == ((struct sockaddr_in *)&y)->sin_addr.s_addr;
	return !memcmp(&((struct sockaddr_in6 *)&x)->sin6_addr, &((struct sockaddr_in6 *)&y)->sin6_addr, 16);
}

bool cm_addr_match(const struct sockaddr *listening, const struct sockaddr *dst, bool afonly)
{
	struct sockaddr_storage d;

	addr_plain(dst, &d);
	if (port_of(listening) != port_of((struct sockaddr *)&d))
		return false;
	if (addr_any(listening))
		return listening->sa_family == d.ss_family || (listening->sa_family == AF_INET6 && !afonly);
	return addr_equal(listening, (struct sockaddr *)&d);
}

/* Is it one of this host's addresses? */
static bool addr_local(const struct sockaddr *sa)
{
	struct sockaddr_storage p;
	struct ifaddrs *list, *i;
	bool found = false;

	addr_plain(sa, &p);
	if (addr_loopback((struct sockaddr *)&p))
		return true;
	if (getifaddrs(&list))
		return false;
	for (i = list; i && !found; i = i->ifa_next)
		found = addr_known(i->ifa_addr) && addr_equal(i->ifa_addr, (struct sockaddr *)&p);
	freeifaddrs(list);
	return found;
}

/* ------------------------------------------------------------------ names */

/* share < 0: the port itself; else one of the places of those who bound it with REUSEADDR. */
static size_t name_of(char *buf, size_t size, const struct sockaddr *sa, enum rdma_port_space ps, int share)
{
	struct sockaddr_storage p;
	char text[INET6_ADDRSTRLEN] = "", place[16] = "";

	addr_plain(sa, &p);
	if (addr_any((struct sockaddr *)&p))
		addr_make_any((struct sockaddr *)&p);
	if (share >= 0)
		snprintf(place, sizeof(place), "/%d", share);
	inet_ntop(p.ss_family,
		  p.ss_family == AF_INET6 ? (void *)&((struct sockaddr_in6 *)&p)->sin6_addr
					  : (void *)&((struct sockaddr_in *)&p)->sin_addr,
		  text, sizeof(text));
	buf[0] = 0;
	return 1 + (size_t)snprintf(buf + 1, size - 1, "vkrdma-soft/%u/%x/%s/%u%s", (unsigned)geteuid(), (unsigned)ps,
				    text, port_of((struct sockaddr *)&p), place);
}

static struct cm_name *name_hold(const struct sockaddr *sa, enum rdma_port_space ps, int share, int *err)
{
	struct cm_name *n = calloc(1, sizeof(*n));
	char name[108];

	if (!n) {
		*err = ENOMEM;
		return NULL;
	}
	*err = sv_name_listen(name, name_of(name, sizeof(name), sa, ps, share), &n->src, 0);
	if (*err) {
		free(n);
		return NULL;
	}
	return n;
}

static void name_drop(struct cm_name *n)
{
	if (!n)
		return;
	if (n->src.ready)
		sv_source_del(&n->src);
	sv_fd_close(n->src.fd);
	n->src.fd = -1;
	sv_retire(n);
}

void cm_names_drop(struct cm_id *id)
{
	for (int i = 0; i < 2; i++) {
		name_drop(id->names[i]);
		id->names[i] = NULL;
	}
}

static bool name_free(const struct sockaddr *sa, enum rdma_port_space ps, int share)
{
	int err = 0;
	struct cm_name *n = name_hold(sa, ps, share, &err);

	name_drop(n);
	return err != EADDRINUSE;
}

#define SHARES 8

/* Nobody holds it: neither alone nor with others. */
static bool port_free(const struct sockaddr *sa, enum rdma_port_space ps)
{
	if (!name_free(sa, ps, -1))
		return false;
	for (int i = 0; i < SHARES; i++)
		if (!name_free(sa, ps, i))
			return false;
	return true;
}

/* A wildcard and a single address of the same port exclude each other. */
static bool conflicts(const struct sockaddr *sa, enum rdma_port_space ps)
{
	struct sockaddr_storage any;
	struct ifaddrs *list, *i;
	bool taken = false;

	if (!addr_any(sa)) {
		addr_plain(sa, &any);
		addr_make_any((struct sockaddr *)&any);
		return !port_free((struct sockaddr *)&any, ps);
	}
	if (getifaddrs(&list))
		return false;
	for (i = list; i && !taken; i = i->ifa_next) {
		if (!i->ifa_addr || i->ifa_addr->sa_family != sa->sa_family)
			continue;
		memset(&any, 0, sizeof(any));
		memcpy(&any, i->ifa_addr, addr_len(i->ifa_addr));
		port_set((struct sockaddr *)&any, port_of(sa));
		taken = !port_free((struct sockaddr *)&any, ps);
	}
	freeifaddrs(list);
	return taken;
}

/* The port for this id alone. */
static struct cm_name *hold_alone(const struct sockaddr *sa, enum rdma_port_space ps, int *err)
{
	struct cm_name *n;

	*err = EADDRINUSE;
	if (conflicts(sa, ps))
		return NULL;
	n = name_hold(sa, ps, -1, err);
	for (int i = 0; n && i < SHARES; i++) {
		if (!name_free(sa, ps, i)) {
			name_drop(n);
			n = NULL;
			*err = EADDRINUSE;
		}
	}
	return n;
}

/* A place among those who share the port. */
static struct cm_name *hold_shared(const struct sockaddr *sa, enum rdma_port_space ps, int *err)
{
	struct cm_name *n = NULL;

	*err = EADDRINUSE;
	for (int i = 0; i < SHARES && !n && *err == EADDRINUSE; i++)
		n = name_hold(sa, ps, i, err);
	if (n && !name_free(sa, ps, -1)) {
		name_drop(n);
		n = NULL;
		*err = EADDRINUSE;
	}
	return n;
}

static int hold_port(struct cm_id *id, bool shared)
{
	struct sockaddr *sa = &id->id.route.addr.src_addr;
	struct sockaddr_in four = {.sin_family = AF_INET};
	struct cm_name *(*hold)(const struct sockaddr *, enum rdma_port_space, int *) =
	    shared ? hold_shared : hold_alone;
	int err = 0;

	id->names[0] = hold(sa, id->id.ps, &err);
	if (err)
		return err;
	if (sa->sa_family == AF_INET6 && addr_any(sa) && !id->afonly) {
		four.sin_port = htons(port_of(sa));
		id->names[1] = hold((struct sockaddr *)&four, id->id.ps, &err);
	}
	if (err)
		cm_names_drop(id);
	id->shared = shared;
	return err;
}

/*
 * A port that is held lies above those that Linux gives to TCP sockets, as long as there is room: who listens at one
 * that TCP chose finds that of the same number free here.
 */
enum { HIGH = 61000, HIGH_N = 65536 - HIGH, HIGH_TRIES = 64, LOW = 32768, LOW_N = HIGH - LOW };

static uint16_t next_port(bool high)
{
	static _Atomic uint32_t next;
	uint32_t n = 0;

	atomic_compare_exchange_strong(&next, &n, (uint32_t)(sv_now() / 1000) ^ (uint32_t)getpid() * 2654435761u);
	n = atomic_fetch_add(&next, 1);
	return (uint16_t)(high ? HIGH + n % HIGH_N : LOW + n % LOW_N);
}

/* cm.lock held. Binds src_addr, choosing a port where it has none. */
static int bind_port(struct cm_id *id)
{
	struct sockaddr *sa = &id->id.route.addr.src_addr;
	int err = EADDRINUSE;

	if (port_of(sa)) {
		err = hold_port(id, id->reuseaddr);
		/* As Linux has it where one of the two is a wildcard. */
		if (err == EADDRINUSE && (addr_any(sa) || conflicts(sa, id->id.ps)))
			err = EADDRNOTAVAIL;
		return err;
	}
	for (int tries = 0; tries < HIGH_TRIES + LOW_N && err == EADDRINUSE; tries++) {
		port_set(sa, next_port(tries < HIGH_TRIES));
		err = hold_port(id, id->reuseaddr);
	}
	if (err)
		port_set(sa, 0);
	return err;
}

int cm_listen_names(struct cm_id *id)
{
	int err;

	if (id->shared) {
		/* Who listens must be alone. */
		cm_names_drop(id);
		err = hold_port(id, false);
		if (err) {
			hold_port(id, true);
			return err;
		}
	}
	for (int i = 0; i < 2; i++) {
		struct cm_name *n = id->names[i];

		if (!n)
			continue;
		if (listen(n->src.fd, 4096))
			return errno;
		n->src.ready = sv_listen_ready;
		err = sv_source_add(&n->src, EPOLLIN);
		if (err)
			return err;
	}
	return 0;
}

static struct sv_peer *ask_for_listener(const struct sockaddr *dst, enum rdma_port_space ps)
{
	struct sockaddr_storage any;
	struct sv_peer *p;
	char name[108];

	p = sv_peer_connect(name, name_of(name, sizeof(name), dst, ps, -1));
	if (p)
		return p;
	addr_plain(dst, &any);
	addr_make_any((struct sockaddr *)&any);
	return sv_peer_connect(name, name_of(name, sizeof(name), (struct sockaddr *)&any, ps, -1));
}

struct sv_peer *cm_find_listener(const struct sockaddr *dst, enum rdma_port_space ps, bool recall, bool *recalled)
{
	/* The last ones found. A process that does not listen there any more says so. */
	static struct {
		struct sockaddr_storage dst;
		enum rdma_port_space ps;
		pid_t pid;
	} found[16], *f;
	struct sockaddr_storage key;
	struct sv_peer *p;

	memset(&key, 0, sizeof(key));
	memcpy(&key, dst, addr_len(dst));
	f = &found[port_of(dst) % 16];
	*recalled = recall && f->ps == ps && !memcmp(&f->dst, &key, sizeof(key));
	p = *recalled ? sv_peer_by_pid(f->pid) : NULL;
	if (p)
		return p;
	*recalled = false;
	p = ask_for_listener(dst, ps);
	f->dst = key;
	f->ps = ps;
	f->pid = p ? p->pid : 0;
	return p;
}

/* ------------------------------------------------------------------ the exported part */

SV_EXPORT int rdma_bind_addr(struct rdma_cm_id *rid, struct sockaddr *addr)
{
	struct cm_id *id = cm_of(rid);
	int err;

	if (!cm_ours(rid) || !addr)
		return cm_err(EINVAL);
	if (!addr_known(addr))
		return cm_err(EAFNOSUPPORT);
	if (!addr_any(addr) && !addr_local(addr))
		return cm_err(EADDRNOTAVAIL);
	pthread_mutex_lock(&cm.lock);
	err = EINVAL;
	if (id->state == CM_IDLE) {
		memset(&rid->route.addr.src_storage, 0, sizeof(rid->route.addr.src_storage));
		memcpy(&rid->route.addr.src_storage, addr, addr_len(addr));
		err = bind_port(id);
		if (!err && !addr_any(addr))
			err = cm_id_device(id);
		if (!err)
			id->state = CM_BOUND;
	}
	pthread_mutex_unlock(&cm.lock);
	return cm_err(err);
}

SV_EXPORT int rdma_listen(struct rdma_cm_id *rid, int backlog)
{
	struct cm_id *id = cm_of(rid);
	int err = 0;

	if (!cm_ours(rid))
		return cm_err(EINVAL);
	pthread_mutex_lock(&cm.lock);
	if (id->state == CM_IDLE) {
		/* As the kernel does: any address, any port. */
		rid->route.addr.src_addr.sa_family = AF_INET;
		err = bind_port(id);
		if (!err)
			id->state = CM_BOUND;
	}
	if (!err && id->state == CM_LISTEN) {
		id->backlog = backlog > 0 ? backlog : 1024;
	} else if (!err && id->state == CM_BOUND) {
		id->backlog = backlog > 0 ? backlog : 1024;
		/* Known before its name accepts. */
		id->next_listener = cm.listeners;
		cm.listeners = id;
		err = cm_listen_names(id);
		if (err)
			cm.listeners = id->next_listener;
		else
			id->state = CM_LISTEN;
	} else if (!err) {
		err = EINVAL;
	}
	pthread_mutex_unlock(&cm.lock);
	return cm_err(err);
}

static void gid_of(const struct sockaddr *sa, union ibv_gid *gid)
{
	struct sockaddr_storage p;

	addr_plain(sa, &p);
	memset(gid, 0, sizeof(*gid));
	if (p.ss_family == AF_INET) {
		gid->raw[10] = gid->raw[11] = 0xff;
		memcpy(gid->raw + 12, &((struct sockaddr_in *)&p)->sin_addr, 4);
	} else {
		memcpy(gid->raw, &((struct sockaddr_in6 *)&p)->sin6_addr, 16);
	}
}

void cm_fill_path(struct cm_id *id)
{
	struct rdma_addr *a = &id->id.route.addr;

	gid_of(&a->src_addr, &a->addr.ibaddr.sgid);
	gid_of(&a->dst_addr, &a->addr.ibaddr.dgid);
	a->addr.ibaddr.pkey = 0xffff;
	id->path.sgid = a->addr.ibaddr.sgid;
	id->path.dgid = a->addr.ibaddr.dgid;
	id->path.pkey = 0xffff;
	id->path.mtu = IBV_MTU_4096;
	id->path.reversible = 1;
	id->path.numb_path = 1;
}

static void loopback_for_any(struct sockaddr *sa)
{
	if (!addr_any(sa))
		return;
	if (sa->sa_family == AF_INET)
		((struct sockaddr_in *)sa)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	else
		((struct sockaddr_in6 *)sa)->sin6_addr = in6addr_loopback;
}

/* cm.lock held. */
static int resolve(struct cm_id *id, struct sockaddr *src, struct sockaddr *dst)
{
	struct rdma_addr *a = &id->id.route.addr;
	int err = 0;

	if (id->state != CM_IDLE && id->state != CM_BOUND)
		return EINVAL;
	memset(&a->dst_storage, 0, sizeof(a->dst_storage));
	memcpy(&a->dst_storage, dst, addr_len(dst));
	loopback_for_any(&a->dst_addr);
	if (!addr_local(&a->dst_addr) || (addr_loopback(&a->dst_addr) && sv_fault_loopback())) {
		cm_raise(id, RDMA_CM_EVENT_ADDR_ERROR, -ENODEV, NULL, 0);
		return 0;
	}
	if (id->state == CM_IDLE) {
		memset(&a->src_storage, 0, sizeof(a->src_storage));
		memcpy(&a->src_storage, src ? src : dst, addr_len(src ? src : dst));
		if (!src)
			port_set(&a->src_addr, 0);
		if (port_of(&a->src_addr))
			err = bind_port(id);
		else
			port_set(&a->src_addr, next_port(false));
	}
	/* To an address of its own the host speaks from that address. */
	if (!err && addr_any(&a->src_addr)) {
		uint16_t port = port_of(&a->src_addr);

		memcpy(&a->src_storage, &a->dst_storage, addr_len(&a->dst_addr));
		port_set(&a->src_addr, port);
	}
	if (!err)
		err = cm_id_device(id);
	if (err)
		return err;
	cm_fill_path(id);
	id->state = CM_ADDR;
	cm_raise(id, RDMA_CM_EVENT_ADDR_RESOLVED, 0, NULL, 0);
	return 0;
}

SV_EXPORT int rdma_resolve_addr(struct rdma_cm_id *rid, struct sockaddr *src, struct sockaddr *dst, int timeout_ms)
{
	struct cm_id *id = cm_of(rid);
	int err;

	if (!cm_ours(rid) || !dst)
		return cm_err(EINVAL);
	if (!addr_known(dst) || (src && !addr_known(src)))
		return cm_err(EAFNOSUPPORT);
	if (src && !addr_any(src) && !addr_local(src))
		return cm_err(EADDRNOTAVAIL);
	pthread_mutex_lock(&cm.lock);
	err = resolve(id, src, dst);
	pthread_mutex_unlock(&cm.lock);
	return err ? cm_err(err) : cm_complete(id);
}

SV_EXPORT int rdma_resolve_route(struct rdma_cm_id *rid, int timeout_ms)
{
	struct cm_id *id = cm_of(rid);
	int err = 0;

	if (!cm_ours(rid))
		return cm_err(EINVAL);
	pthread_mutex_lock(&cm.lock);
	if (id->state == CM_ADDR) {
		rid->route.path_rec = &id->path;
		rid->route.num_paths = 1;
		id->state = CM_ROUTE;
		cm_raise(id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0, NULL, 0);
	} else {
		err = EINVAL;
	}
	pthread_mutex_unlock(&cm.lock);
	return err ? cm_err(err) : cm_complete(id);
}

SV_EXPORT __be16 rdma_get_src_port(struct rdma_cm_id *id)
{
	return htons(port_of(&id->route.addr.src_addr));
}

SV_EXPORT __be16 rdma_get_dst_port(struct rdma_cm_id *id)
{
	return htons(port_of(&id->route.addr.dst_addr));
}

SV_EXPORT int rdma_set_option(struct rdma_cm_id *rid, int level, int optname, void *optval, size_t optlen)
{
	struct cm_id *id = cm_of(rid);
	int err = 0, value = 0;

	if (!cm_ours(rid))
		return cm_err(EINVAL);
	if (level != RDMA_OPTION_ID)
		return cm_err(level == RDMA_OPTION_IB ? 0 : ENOSYS);
	if (optlen == sizeof(int))
		memcpy(&value, optval, sizeof(value));
	pthread_mutex_lock(&cm.lock);
	switch (optname) {
	case RDMA_OPTION_ID_TOS:
	case RDMA_OPTION_ID_ACK_TIMEOUT:
		if (optlen != sizeof(uint8_t)) {
			err = EINVAL;
		} else if (optname == RDMA_OPTION_ID_TOS) {
			id->tos = *(uint8_t *)optval;
		} else {
			id->ack_timeout = *(uint8_t *)optval;
			id->ack_timeout_set = true;
		}
		break;
	case RDMA_OPTION_ID_REUSEADDR:
		if (optlen != sizeof(int))
			err = EINVAL;
		else
			id->reuseaddr = value != 0;
		break;
	case RDMA_OPTION_ID_AFONLY:
		if (optlen != sizeof(int) || id->state != CM_IDLE)
			err = EINVAL;
		else
			id->afonly = value != 0;
		break;
	default:
		err = ENOSYS;
		break;
	}
	pthread_mutex_unlock(&cm.lock);
	return cm_err(err);
}
