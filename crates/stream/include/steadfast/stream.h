/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Streams of a mounted Steadfast volume, for C and C++ programs.
 *
 * After a crash, a volume of the contract `ordered` shows, for each stream, the result of a prefix of its operations. Two
 * streams have no order between them, unless they changed related things: the same file, the same name in a directory, or a
 * directory and an entry of it. A sync in one stream does not write what another one did. (After ccfs, section 3.2.)
 *
 * Every process belongs to a stream; without any of these calls, to the default stream of the volume. Most programs need one
 * call of steadfast_setstream() at their start, and no other change. A program that needs order but seldom durability also
 * sets STEADFAST_STREAM_IGNORE_FSYNC, and calls steadfast_streamsync() where it needs durability.
 *
 * A stream is made by the first call that names it. Its name belongs to the user and the mount: two users may have a stream of
 * one name. It ends with its last process, when all it did is durable.
 *
 * What is different from the paper: a new thread starts with the stream of its process, and a child process gets the stream of
 * its parent at its first change, not at fork(2). A stream that a thread has set for itself alone is not passed on. What is
 * the same: reads relate nothing. A program that reads what another stream has not committed, and acts on it, may survive a
 * crash without it.
 *
 * `fd` is an open file or directory of the mount, which may be open for reading only, but not with O_PATH.
 *
 * All functions return 0, or -1 with errno:
 *   EOPNOTSUPP  the file is on no Steadfast mount, or the volume's contract has one stream only
 *   EINVAL      the name is empty, longer than 255 bytes, not UTF-8, or holds '/' or a control character
 *   ESRCH       there is no such process, or the server is in another process namespace
 *   EPERM       the stream or the process is another user's, or the process runs a set-user-id program
 *   EAGAIN      the user has too many streams; nothing has changed
 *   EBADF and others, as ioctl(2) has them
 */
#ifndef STEADFAST_STREAM_H
#define STEADFAST_STREAM_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/types.h>
#include <sys/xattr.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Longest name, in bytes. */
#define STEADFAST_STREAM_NAME_MAX 255

/* What is moved: the calling thread alone, or its process except for threads that have set their own stream. */
#define STEADFAST_STREAM_THREAD 0u
#define STEADFAST_STREAM_PROCESS 1u

/*
 * fsync(2), fdatasync(2), msync(2), and writes with O_SYNC or O_DSYNC return at once in this stream, without a commit. They
 * still report that the volume has failed, and they still commit for users who do not own the stream. These still
 * commit: steadfast_streamsync(), `steadfast sync`, unmounting, and the commit interval.
 */
#define STEADFAST_STREAM_IGNORE_FSYNC (1u << 0)
/* They commit again. Without either flag a stream stays as it is; a new one commits. */
#define STEADFAST_STREAM_HONOUR_FSYNC (1u << 1)
/* In answers: the default stream. */
#define STEADFAST_STREAM_DEFAULT (1u << 2)

/* The commit interval that is the volume's. */
#define STEADFAST_STREAM_INTERVAL_VOLUME UINT64_MAX
/* The user of a request that names none. */
#define STEADFAST_STREAM_USER_ANY UINT32_MAX

/* A request or an answer. */
struct steadfast_stream {
	uint32_t scope;             /* STEADFAST_STREAM_THREAD, _PROCESS, or 2: the process `pid` */
	uint32_t pid;               /* a process, as the server sees it */
	uint32_t user;              /* whose stream it is */
	uint32_t flags;             /* STEADFAST_STREAM_IGNORE_FSYNC and others */
	uint64_t interval_ms;       /* commit interval; 0 leaves it as it is */
	uint32_t number;            /* in answers: the stream's number, 0 for the default stream */
	uint32_t reserved;          /* 0 */
	char name[STEADFAST_STREAM_NAME_MAX + 1]; /* ends with 0; empty for the default stream */
};

#define STEADFAST_STREAM_IOC_SET _IOW('S', 0x10, struct steadfast_stream)
#define STEADFAST_STREAM_IOC_GET _IOR('S', 0x11, struct steadfast_stream)
#define STEADFAST_STREAM_IOC_SYNC _IO('S', 0x12)
#define STEADFAST_STREAM_IOC_SYNC_NAMED _IOW('S', 0x13, struct steadfast_stream)
#define STEADFAST_STREAM_IOC_SHOW _IOWR('S', 0x14, struct steadfast_stream)

/* Where ioctl(2) is not carried to the server, attributes do the same. */
#define STEADFAST_STREAM_XATTR "system.steadfast.stream"
#define STEADFAST_STREAM_XATTR_SYNC "system.steadfast.stream.sync"

static inline void steadfast_stream_init_(struct steadfast_stream *stream)
{
	memset(stream, 0, sizeof(*stream));
	stream->user = STEADFAST_STREAM_USER_ANY;
}

static inline int steadfast_stream_name_(struct steadfast_stream *stream, const char *name)
{
	size_t len = strlen(name);

	if (len == 0 || len > STEADFAST_STREAM_NAME_MAX) {
		errno = EINVAL;
		return -1;
	}
	memcpy(stream->name, name, len + 1);
	return 0;
}

/*
 * Sets a stream by a whole request: another process, an owner, a commit interval. The functions below are for the usual
 * cases. In a request that names a stream, `flags` are STEADFAST_STREAM_IGNORE_FSYNC or STEADFAST_STREAM_HONOUR_FSYNC or
 * neither; one with an empty name has STEADFAST_STREAM_DEFAULT alone.
 */
static inline int steadfast_stream_set(int fd, const struct steadfast_stream *stream)
{
	int set = ioctl(fd, STEADFAST_STREAM_IOC_SET, stream);

	if (set == 0 || (errno != ENOTTY && errno != ENOSYS))
		return set;
	set = fsetxattr(fd, STEADFAST_STREAM_XATTR, stream, sizeof(*stream), 0);
	if (set != 0 && errno == EDQUOT)
		errno = EAGAIN;
	return set;
}

/*
 * setstream: associates the calling thread, or its process, with the stream of this name, and makes the stream if there is
 * none. All further changes belong to it; what was done before stays in the stream where it was done. NULL is the default
 * stream.
 */
static inline int steadfast_setstream(int fd, const char *name, unsigned scope, unsigned flags)
{
	struct steadfast_stream stream;

	if (scope > STEADFAST_STREAM_PROCESS) {
		errno = EINVAL;
		return -1;
	}
	steadfast_stream_init_(&stream);
	stream.scope = scope;
	stream.flags = name ? flags : STEADFAST_STREAM_DEFAULT;
	if (name && steadfast_stream_name_(&stream, name) != 0)
		return -1;
	return steadfast_stream_set(fd, &stream);
}

/*
 * getstream: the stream of the calling thread, for example to see whether the program still is in the default stream, whose
 * number is 0.
 */
static inline int steadfast_getstream(int fd, struct steadfast_stream *stream)
{
	ssize_t len;

	steadfast_stream_init_(stream);
	if (ioctl(fd, STEADFAST_STREAM_IOC_GET, stream) == 0)
		return 0;
	if (errno != ENOTTY && errno != ENOSYS)
		return -1;
	len = fgetxattr(fd, STEADFAST_STREAM_XATTR, stream, sizeof(*stream));
	if (len >= 0 && (size_t)len != sizeof(*stream)) {
		errno = EPROTO;
		return -1;
	}
	return len < 0 ? -1 : 0;
}

/*
 * streamsync: commits what the stream of the calling thread has done, and what that depends on; returns when it is durable.
 * Also in a stream that ignores fsync(2).
 */
static inline int steadfast_streamsync(int fd)
{
	char nothing[8];

	if (ioctl(fd, STEADFAST_STREAM_IOC_SYNC) == 0)
		return 0;
	if (errno != ENOTTY && errno != ENOSYS)
		return -1;
	return fgetxattr(fd, STEADFAST_STREAM_XATTR_SYNC, nothing, sizeof(nothing)) < 0 ? -1 : 0;
}

/* The same for the caller's stream of this name. ENOENT if there is none. */
static inline int steadfast_streamsync_name(int fd, const char *name)
{
	struct steadfast_stream stream;

	steadfast_stream_init_(&stream);
	if (steadfast_stream_name_(&stream, name) != 0)
		return -1;
	if (ioctl(fd, STEADFAST_STREAM_IOC_SYNC_NAMED, &stream) == 0)
		return 0;
	if (errno == ENOTTY || errno == ENOSYS)
		errno = EOPNOTSUPP;
	return -1;
}

#ifdef __cplusplus
}
#endif

#endif /* STEADFAST_STREAM_H */
