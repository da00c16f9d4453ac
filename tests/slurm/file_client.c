/* A client of shared files with the caches of an NFS client, for the test cluster; FUSE.
 *
 *   file_client FOLDER MOUNTPOINT FILE_MIN FILE_MAX FOLDER_MIN FOLDER_MAX ABSENT [SQUASH]
 *
 * FOLDER is the server's. One process is one client, with caches of its own. The defaults of NFS
 * are 3 60 30 60 30, in seconds. Source: nfs(5), acregmin and its like.
 *
 * As with NFS:
 * - Attributes are kept FILE_MIN seconds, twice as long each time they did not change, at most
 *   FILE_MAX; those of folders FOLDER_MIN to FOLDER_MAX. Names and listings are kept as long,
 *   absent names ABSENT seconds.
 * - open() asks the server again, and drops the pages of a file that has changed (close-to-open).
 * - A file that another client replaced or removed gives ESTALE; the kernel then looks its name
 *   up again.
 * - unlink() of a file that is open here renames it to .nfs* until it is closed.
 * - Root becomes nobody (root_squash), unless SQUASH is 0. Groups are those of the server.
 *
 * Not as with NFS: write() writes to the server at once, not fsync() or close(). O_APPEND is atomic
 * at the server. There are no locks between clients. A folder has no change attribute, so a folder
 * that expires does not expire the names in it early. A real client in the kernel, its servers,
 * mount options, delegations and lock recovery are not tested.
 */
#define FUSE_USE_VERSION 35
#define _GNU_SOURCE
#include <fuse_lowlevel.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <pwd.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/fsuid.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

struct inode {
    struct inode *next;
    uint64_t refs;

    union {
        struct file_handle fh;
        char b[sizeof(struct file_handle) + 64];
    } h; /* not an open descriptor: there may be 100,000 */

    int opens, gone_here, silly_dir;
    char silly[64];
    struct timespec mtime, ctime;
    off_t size;
    double timeo, since; /* as last sent to the kernel */
    struct timespec omtime, octime;
    off_t osize;
    int seen_open;
};

#define N 65536
#define NOBODY 65534
static struct inode *table[N], root;
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static struct fuse_session *se;

/* How long, in seconds, the kernel may keep attributes of files and folders, and absent names. */
static struct {
    double file_min, file_max, folder_min, folder_max, absent;
    int squash;
} client;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static struct inode *I(fuse_ino_t ino) {
    return ino == FUSE_ROOT_ID ? &root : (struct inode *)(uintptr_t)ino;
}

static int root_fd;

static void closefd(int *fd) {
    if (*fd >= 0 && *fd != root_fd)
        close(*fd);
}

static int handle_of(int fd, struct inode *i) {
    int m;
    i->h.fh.handle_bytes = 64;
    return name_to_handle_at(fd, "", &i->h.fh, &m, AT_EMPTY_PATH);
}

static int is(struct inode *a, struct inode *b) {
    return a->h.fh.handle_bytes == b->h.fh.handle_bytes &&
           !memcmp(a->h.fh.f_handle, b->h.fh.f_handle, a->h.fh.handle_bytes);
}

static unsigned h(struct inode *i) {
    unsigned k = 5381;
    for (unsigned j = 0; j < i->h.fh.handle_bytes; j++)
        k = k * 33 ^ i->h.fh.f_handle[j];
    return k % N;
}

static struct inode *find(struct inode *like) {
    struct inode *i = table[h(like)];
    while (i && !is(i, like))
        i = i->next;
    return i;
}

static int get(struct inode *i) {
    return i == &root ? root_fd : open_by_handle_at(root_fd, &i->h.fh, O_PATH);
}

/* The inode as descriptor V until the end of the function; ESTALE where the server has it no more.
 * Before become(). */
#define FD(v, i)                                                                                   \
    int v __attribute__((cleanup(closefd))) = get(i);                                              \
    if (v < 0) {                                                                                   \
        fuse_reply_err(req, ESTALE);                                                               \
        return;                                                                                    \
    }

/* --- the caller's rights, as the server sees them --- */
struct groups {
    uid_t uid;
    int n;
    gid_t g[64];
    double at;
};
static struct groups gcache[32];

static void become(fuse_req_t req) {
    const struct fuse_ctx *c = fuse_req_ctx(req);
    uid_t u = c->uid;
    gid_t g = c->gid;
    if (u == 0 && client.squash)
        u = g = NOBODY;
    gid_t list[64];
    int n = 0;
    pthread_mutex_lock(&mu);
    struct groups *e = &gcache[u % 32];
    if (e->uid != u || e->at == 0 || now() - e->at > 20) {
        struct passwd pw, *p = NULL;
        char buf[4096];
        e->uid = u;
        e->at = now();
        e->n = 0;
        if (getpwuid_r(u, &pw, buf, sizeof buf, &p) == 0 && p) {
            int m = 64;
            if (getgrouplist(p->pw_name, p->pw_gid, e->g, &m) >= 0)
                e->n = m;
        }
    }
    n = e->n;
    memcpy(list, e->g, n * sizeof *list);
    pthread_mutex_unlock(&mu);
    syscall(SYS_setgroups, n, list);
    setfsgid(g);
    setfsuid(u);
}

static void back(void) {
    setfsuid(0);
    setfsgid(0);
}

#define ERR(req, e)                                                                                \
    do {                                                                                           \
        int e_ = (e);                                                                              \
        back();                                                                                    \
        fuse_reply_err(req, e_);                                                                   \
        return;                                                                                    \
    } while (0)

static int same(struct timespec a, struct timespec b) {
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

static double timeout_of(struct inode *i, struct stat *st) {
    double lo = S_ISDIR(st->st_mode) ? client.folder_min : client.file_min,
           hi = S_ISDIR(st->st_mode) ? client.folder_max : client.file_max;
    pthread_mutex_lock(&mu);
    if (i->since == 0 || !same(i->mtime, st->st_mtim) || !same(i->ctime, st->st_ctim) ||
        i->size != st->st_size)
        i->timeo = lo;
    else if (now() - i->since >= i->timeo)
        i->timeo = i->timeo * 2 > hi ? hi : i->timeo * 2;
    i->mtime = st->st_mtim;
    i->ctime = st->st_ctim;
    i->size = st->st_size;
    i->since = now();
    double t = i->timeo;
    pthread_mutex_unlock(&mu);
    return t;
}

static int lookup(int dir, const char *name, struct fuse_entry_param *e) {
    memset(e, 0, sizeof *e);
    int fd __attribute__((cleanup(closefd))) = openat(dir, name, O_PATH | O_NOFOLLOW);
    if (fd < 0)
        return errno;
    if (fstatat(fd, "", &e->attr, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW))
        return errno;
    struct inode like;
    if (handle_of(fd, &like))
        return errno;
    pthread_mutex_lock(&mu);
    struct inode *i = find(&like);
    if (i)
        i->refs++;
    else {
        i = calloc(1, sizeof *i);
        i->h = like.h;
        i->refs = 1;
        i->silly_dir = -1;
        i->next = table[h(i)];
        table[h(i)] = i;
    }
    pthread_mutex_unlock(&mu);
    e->ino = (uintptr_t)i;
    e->attr_timeout = timeout_of(i, &e->attr);
    e->entry_timeout = client.folder_min;
    return 0;
}

static void drop(struct inode *i, uint64_t n) {
    if (i == &root)
        return;
    pthread_mutex_lock(&mu);
    i->refs -= n;
    if (!i->refs) {
        struct inode **p = &table[h(i)];
        while (*p != i)
            p = &(*p)->next;
        *p = i->next;
        pthread_mutex_unlock(&mu);
        free(i);
        return;
    }
    pthread_mutex_unlock(&mu);
}

static int stale(struct inode *i, int fd) {
    struct stat st;
    if (i == &root || i->gone_here)
        return 0;
    return fstatat(fd, "", &st, AT_EMPTY_PATH) == 0 && st.st_nlink == 0;
}

static void f_init(void *u, struct fuse_conn_info *c) {
    (void)u;
    c->want &= ~(FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE |
                 FUSE_CAP_READDIRPLUS);
    if (c->capable & FUSE_CAP_AUTO_INVAL_DATA)
        c->want |= FUSE_CAP_AUTO_INVAL_DATA;
}

static void f_lookup(fuse_req_t req, fuse_ino_t p, const char *name) {
    struct fuse_entry_param e;
    FD(d, I(p));
    become(req);
    int r = lookup(d, name, &e);
    if (r == ENOENT) {
        if (stale(I(p), d))
            ERR(req, ESTALE);
        memset(&e, 0, sizeof e);
        e.entry_timeout = client.absent;
        back();
        fuse_reply_entry(req, &e);
        return;
    }
    if (r)
        ERR(req, r);
    back();
    fuse_reply_entry(req, &e);
}

static void f_forget(fuse_req_t req, fuse_ino_t ino, uint64_t n) {
    drop(I(ino), n);
    fuse_reply_none(req);
}

static void f_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
    struct stat st;
    struct inode *i = I(ino);
    FD(d, i);
    if (fstatat(d, "", &st, AT_EMPTY_PATH))
        ERR(req, errno);
    if (st.st_nlink == 0 && !i->gone_here && i != &root)
        ERR(req, ESTALE);
    (void)fi;
    fuse_reply_attr(req, &st, timeout_of(i, &st));
}

static void f_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *a, int valid,
                      struct fuse_file_info *fi) {
    struct inode *i = I(ino);
    char path[64];
    int r = 0;
    FD(d, i);
    snprintf(path, sizeof path, "/proc/self/fd/%d", d);
    become(req);
    if (stale(i, d))
        ERR(req, ESTALE);
    if (valid & FUSE_SET_ATTR_MODE)
        r = fi ? fchmod(fi->fh, a->st_mode) : chmod(path, a->st_mode);
    if (!r && valid & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID))
        r = fchownat(d, "", valid & FUSE_SET_ATTR_UID ? a->st_uid : (uid_t)-1,
                     valid & FUSE_SET_ATTR_GID ? a->st_gid : (gid_t)-1,
                     AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW);
    if (!r && valid & FUSE_SET_ATTR_SIZE)
        r = fi ? ftruncate(fi->fh, a->st_size) : truncate(path, a->st_size);
    if (!r && valid & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME)) {
        struct timespec t[2] = {{0, UTIME_OMIT}, {0, UTIME_OMIT}};
        if (valid & FUSE_SET_ATTR_ATIME_NOW)
            t[0].tv_nsec = UTIME_NOW;
        else if (valid & FUSE_SET_ATTR_ATIME)
            t[0] = a->st_atim;
        if (valid & FUSE_SET_ATTR_MTIME_NOW)
            t[1].tv_nsec = UTIME_NOW;
        else if (valid & FUSE_SET_ATTR_MTIME)
            t[1] = a->st_mtim;
        r = fi ? futimens(fi->fh, t) : utimensat(AT_FDCWD, path, t, 0);
    }
    if (r)
        ERR(req, errno);
    back();
    f_getattr(req, ino, fi);
}

static void f_readlink(fuse_req_t req, fuse_ino_t ino) {
    char b[4097];
    FD(d, I(ino));
    if (stale(I(ino), d))
        ERR(req, ESTALE);
    ssize_t n = readlinkat(d, "", b, 4096);
    if (n < 0)
        fuse_reply_err(req, errno);
    else {
        b[n] = 0;
        fuse_reply_readlink(req, b);
    }
}

static void made(fuse_req_t req, int d, const char *name, int r) {
    struct fuse_entry_param e;
    if (r)
        ERR(req, errno);
    if ((r = lookup(d, name, &e)))
        ERR(req, r);
    back();
    fuse_reply_entry(req, &e);
}

static void f_mkdir(fuse_req_t req, fuse_ino_t p, const char *name, mode_t m) {
    FD(d, I(p));
    become(req);
    made(req, d, name, mkdirat(d, name, m));
}

static void f_symlink(fuse_req_t req, const char *to, fuse_ino_t p, const char *name) {
    FD(d, I(p));
    become(req);
    made(req, d, name, symlinkat(to, d, name));
}

static void f_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t p, const char *name) {
    char path[64];
    FD(f, I(ino));
    FD(d, I(p));
    snprintf(path, sizeof path, "/proc/self/fd/%d", f);
    become(req);
    if (stale(I(ino), f))
        ERR(req, ESTALE);
    made(req, d, name, linkat(AT_FDCWD, path, d, name, AT_SYMLINK_FOLLOW));
}

/* The inode of a name if this client knows it; marks it as removed here, or renames it if it is
 * open. 1: renamed. */
static int silly(int d, const char *name) {
    struct stat st;
    static unsigned count;
    int done = 0;
    struct inode like;
    int fd __attribute__((cleanup(closefd))) = openat(d, name, O_PATH | O_NOFOLLOW);
    if (fd < 0 || fstat(fd, &st) || handle_of(fd, &like))
        return 0;
    pthread_mutex_lock(&mu);
    struct inode *i = find(&like);
    if (i && i->opens > 0 && i->silly_dir < 0 && S_ISREG(st.st_mode) && strncmp(name, ".nfs", 4)) {
        snprintf(i->silly, sizeof i->silly, ".nfs%016lx%08x", (unsigned long)st.st_ino, ++count);
        if (renameat(d, name, d, i->silly) == 0) {
            i->silly_dir = openat(d, ".", O_RDONLY | O_DIRECTORY);
            done = 1;
        }
    }
    if (i)
        i->gone_here = 1;
    pthread_mutex_unlock(&mu);
    return done;
}

static void f_unlink(fuse_req_t req, fuse_ino_t p, const char *name) {
    FD(d, I(p));
    become(req);
    int r = silly(d, name) ? 0 : unlinkat(d, name, 0);
    ERR(req, r ? errno : 0);
}

static void f_rmdir(fuse_req_t req, fuse_ino_t p, const char *name) {
    FD(d, I(p));
    become(req);
    int r = unlinkat(d, name, AT_REMOVEDIR);
    ERR(req, r ? errno : 0);
}

static void f_rename(fuse_req_t req, fuse_ino_t p, const char *a, fuse_ino_t q, const char *b,
                     unsigned flags) {
    FD(d, I(p));
    FD(f, I(q));
    become(req);
    if (flags)
        ERR(req, EINVAL); /* as NFS: no RENAME_NOREPLACE */
    struct stat s, t;
    if (!fstatat(d, a, &s, AT_SYMLINK_NOFOLLOW) && !fstatat(f, b, &t, AT_SYMLINK_NOFOLLOW) &&
        s.st_ino != t.st_ino && S_ISREG(t.st_mode))
        silly(f, b);
    int r = renameat(d, a, f, b);
    ERR(req, r ? errno : 0);
}

static void opened(struct inode *i, int fd, struct fuse_file_info *fi) {
    struct stat st;
    fi->fh = fd;
    pthread_mutex_lock(&mu);
    i->opens++;
    if (!fstat(fd, &st)) {
        fi->keep_cache = i->seen_open && same(i->omtime, st.st_mtim) &&
                         same(i->octime, st.st_ctim) && i->osize == st.st_size;
        i->omtime = st.st_mtim;
        i->octime = st.st_ctim;
        i->osize = st.st_size;
        i->seen_open = 1;
    }
    pthread_mutex_unlock(&mu);
    if (fi->flags & O_APPEND)
        fi->direct_io = 1;
}

static void f_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
    char path[64];
    struct inode *i = I(ino);
    FD(d, i);
    become(req);
    if (stale(i, d))
        ERR(req, ESTALE);
    snprintf(path, sizeof path, "/proc/self/fd/%d", d);
    int fd = open(path, fi->flags & ~(O_NOFOLLOW | O_CREAT | O_EXCL));
    if (fd < 0)
        ERR(req, errno);
    back();
    opened(i, fd, fi);
    fuse_lowlevel_notify_inval_inode(se, ino, -1,
                                     0); /* close-to-open: the next stat or read asks again */
    fuse_reply_open(req, fi);
}

static void f_create(fuse_req_t req, fuse_ino_t p, const char *name, mode_t m,
                     struct fuse_file_info *fi) {
    struct fuse_entry_param e;
    FD(d, I(p));
    become(req);
    int fd = openat(d, name, (fi->flags | O_CREAT) & ~O_NOFOLLOW, m);
    if (fd < 0)
        ERR(req, errno);
    int r = lookup(d, name, &e);
    if (r) {
        close(fd);
        ERR(req, r);
    }
    back();
    opened(I(e.ino), fd, fi);
    fuse_reply_create(req, &e, fi);
}

static void f_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
                   struct fuse_file_info *fi) {
    if (stale(I(ino), fi->fh))
        ERR(req, ESTALE);
    char *b = malloc(size);
    ssize_t n = pread(fi->fh, b, size, off);
    if (n < 0)
        fuse_reply_err(req, errno);
    else
        fuse_reply_buf(req, b, n);
    free(b);
}

static void f_write(fuse_req_t req, fuse_ino_t ino, const char *b, size_t size, off_t off,
                    struct fuse_file_info *fi) {
    become(req);
    if (stale(I(ino), fi->fh))
        ERR(req, ESTALE);
    ssize_t n = pwrite(fi->fh, b, size, off);
    if (n < 0)
        ERR(req, errno);
    back();
    fuse_reply_write(req, n);
}

static void f_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
    struct inode *i = I(ino);
    int d = -1;
    char name[64];
    close(fi->fh);
    pthread_mutex_lock(&mu);
    if (--i->opens == 0 && i->silly_dir >= 0) {
        d = i->silly_dir;
        i->silly_dir = -1;
        strcpy(name, i->silly);
    }
    pthread_mutex_unlock(&mu);
    if (d >= 0) {
        unlinkat(d, name, 0);
        close(d);
    }
    fuse_reply_err(req, 0);
}

static void f_fsync(fuse_req_t req, fuse_ino_t ino, int data, struct fuse_file_info *fi) {
    if (stale(I(ino), fi->fh))
        ERR(req, ESTALE);
    fuse_reply_err(req, (data ? fdatasync(fi->fh) : fsync(fi->fh)) ? errno : 0);
}

static void f_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
    FD(p, I(ino));
    become(req);
    if (stale(I(ino), p))
        ERR(req, ESTALE);
    int fd = openat(p, ".", O_RDONLY | O_DIRECTORY);
    if (fd < 0)
        ERR(req, errno == ENOENT ? ESTALE : errno);
    DIR *d = fdopendir(fd);
    if (!d)
        ERR(req, errno);
    back();
    fi->fh = (uintptr_t)d;
    fi->cache_readdir = client.folder_min > 0;
    fi->keep_cache = client.folder_min > 0;
    fuse_reply_open(req, fi);
}

static void f_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
                      struct fuse_file_info *fi) {
    (void)ino;
    DIR *d = (DIR *)(uintptr_t)fi->fh;
    char *b = malloc(size);
    size_t used = 0;
    struct dirent *e;
    if (off != telldir(d))
        seekdir(d, off);
    while ((e = readdir(d))) {
        struct stat st = {.st_ino = e->d_ino, .st_mode = e->d_type << 12};
        size_t n = fuse_add_direntry(req, b + used, size - used, e->d_name, &st, e->d_off);
        if (n > size - used)
            break;
        used += n;
    }
    fuse_reply_buf(req, b, used);
    free(b);
}

static void f_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
    (void)ino;
    closedir((DIR *)(uintptr_t)fi->fh);
    fuse_reply_err(req, 0);
}

static void f_statfs(fuse_req_t req, fuse_ino_t ino) {
    struct statvfs s;
    FD(d, I(ino));
    if (fstatvfs(d, &s))
        fuse_reply_err(req, errno);
    else
        fuse_reply_statfs(req, &s);
}

static const struct fuse_lowlevel_ops ops = {.init = f_init,
                                             .lookup = f_lookup,
                                             .forget = f_forget,
                                             .getattr = f_getattr,
                                             .setattr = f_setattr,
                                             .readlink = f_readlink,
                                             .mkdir = f_mkdir,
                                             .symlink = f_symlink,
                                             .link = f_link,
                                             .unlink = f_unlink,
                                             .rmdir = f_rmdir,
                                             .rename = f_rename,
                                             .open = f_open,
                                             .create = f_create,
                                             .read = f_read,
                                             .write = f_write,
                                             .release = f_release,
                                             .fsync = f_fsync,
                                             .opendir = f_opendir,
                                             .readdir = f_readdir,
                                             .releasedir = f_releasedir,
                                             .statfs = f_statfs};

int main(int argc, char **argv) {
    if (argc != 8 && argc != 9) {
        fprintf(stderr, "usage: see the head of file_client.c\n");
        return 2;
    }
    client.file_min = atof(argv[3]);
    client.file_max = atof(argv[4]);
    client.folder_min = atof(argv[5]);
    client.folder_max = atof(argv[6]);
    client.absent = atof(argv[7]);
    client.squash = argc == 8 || atoi(argv[8]);
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    umask(0);
    root_fd = open(argv[1], O_RDONLY | O_DIRECTORY);
    if (root_fd < 0) {
        perror(argv[1]);
        return 1;
    }
    root.refs = 2;
    root.silly_dir = -1;
    char *options[] = {
        argv[0], "-oallow_other,default_permissions,fsname=file_client,subtype=nfs_rules", NULL};
    struct fuse_args args = FUSE_ARGS_INIT(2, options);
    se = fuse_session_new(&args, &ops, sizeof ops, NULL);
    if (!se || fuse_set_signal_handlers(se) || fuse_session_mount(se, argv[2]))
        return 1;
    struct fuse_loop_config loop = {.clone_fd = 0, .max_idle_threads = 4};
    int failed = fuse_session_loop_mt(se, &loop);
    fuse_session_unmount(se);
    fuse_session_destroy(se);
    return failed ? 1 : 0;
}
