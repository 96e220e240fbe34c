/// Name and operation.
pub(crate) fn rows() -> Vec<(&'static str, Act)> {
    use FallocateFlags as F;
    let mut rows: Vec<(&'static str, Act)> = Vec::new();
    let mut row = |name, act: Act| rows.push((name, act));

    // Looking and reading.
    row("stat", |d| ok(fs::metadata(d.join("file"))?));
    row("access", |d| ok(rustix::fs::access(d.join("file"), rustix::fs::Access::READ_OK)?));
    row("open for reading", |d| ok(at(d.join("file"), OFlags::RDONLY)?));
    row("open for writing", |d| ok(rw(d.join("file"))?));
    row("read", |d| show(fs::read(d.join("file"))?.len()));
    row("read nothing", |d| show(File::open(d.join("file"))?.read(&mut [])?));
    row("read behind the end", |d| show(File::open(d.join("file"))?.read_at(&mut [0; 9], 100)?));
    row("read with O_NOATIME", |d| {
        show(File::from(at(d.join("file"), OFlags::RDONLY | OFlags::NOATIME)?).read(&mut [0; 9])?)
    });
    row("read through a symbolic link", |d| show(fs::read(d.join("link"))?.len()));
    row("readlink", |d| show(fs::read_link(d.join("link"))?));
    row("readdir", |d| show(fs::read_dir(d.join("a"))?.count()));
    row("readdir of nothing", |d| show(fs::read_dir(d.join("void"))?.count()));
    row("seek for data", |d| find(d.join("sparse"), SeekFrom::Data(0)));
    row("seek for data inside", |d| find(d.join("sparse"), SeekFrom::Data((1 << 16) + 2)));
    row("seek for data behind the last", |d| find(d.join("sparse"), SeekFrom::Data(1 << 17)));
    row("seek for a hole", |d| find(d.join("sparse"), SeekFrom::Hole(1 << 16)));
    row("seek for a hole in a full file", |d| find(d.join("big"), SeekFrom::Hole(0)));
    row("seek for data behind the end", |d| find(d.join("big"), SeekFrom::Data(100_000)));
    row("seek for a hole behind the end", |d| find(d.join("big"), SeekFrom::Hole(100_001)));
    row("seek to the end", |d| find(d.join("big"), SeekFrom::End(5)));
    row("lock", |d| {
        let file = rw(d.join("file"))?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
        ok(rustix::fs::fcntl_lock(&file, FlockOperation::LockExclusive)?)
    });

    row("time of birth", |d| {
        let asked = rustix::fs::StatxFlags::BTIME;
        let found = rustix::fs::statx(CWD, d.join("file"), AtFlags::empty(), asked)?;
        show((found.stx_mask & asked.bits() != 0, found.stx_btime.tv_sec > 1_100_000_000))
    });
    row("write to and read from a pipe", |d| {
        let fifo = rw(d.join("fifo"))?;
        rustix::io::write(&fifo, b"through")?;
        show(rustix::io::read(&fifo, &mut [0; 9])?)
    });
    row("open a pipe that nobody reads", |d| {
        ok(at(d.join("fifo"), OFlags::WRONLY | OFlags::NONBLOCK)?)
    });
    row("connect to a socket", |d| {
        let listener = std::os::unix::net::UnixListener::bind(d.join("socket"))?;
        let mut from = std::os::unix::net::UnixStream::connect(d.join("socket"))?;
        io::Write::write_all(&mut from, b"hello")?;
        let mut text = [0; 5];
        listener.accept()?.0.read_exact(&mut text)?;
        show(text)
    });
    row("write to a device", |d| {
        let null = rustix::fs::makedev(1, 3);
        mknodat(CWD, d.join("null"), FileType::CharacterDevice, Mode::from_raw_mode(0o666), null)?;
        show(rustix::io::write(rw(d.join("null"))?, b"nowhere")?)
    });
    row("run a program", |d| {
        copy_program("/bin/true", &d.join("a/true"))?;
        show(std::process::Command::new(d.join("a/true")).status()?.success())
    });
    row("write to a running program", |d| {
        copy_program("/bin/sleep", &d.join("a/sleep"))?;
        let mut child = std::process::Command::new(d.join("a/sleep")).arg("60").spawn()?;
        let opened = rw(d.join("a/sleep")).map(drop);
        child.kill()?;
        child.wait()?;
        ok(opened?)
    });
    row("set an access control list", |d| {
        let acl = b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x04\0\x04\0\xff\xff\xff\xff\x20\0\x04\0\xff\xff\xff\xff";
        ok(rustix::fs::setxattr(d.join("file"), "system.posix_acl_access", acl, XattrFlags::empty())?)
    });

    // Opening with effects.
    row("create", |d| ok(at(d.join("new"), OFlags::CREATE | OFlags::WRONLY)?));
    row("create what is there", |d| ok(at(d.join("file"), OFlags::CREATE | OFlags::WRONLY)?));
    row("create exclusively what is there", |d| ok(at(d.join("file"), OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY)?));
    row("create through a dangling link", |d| {
        symlink("target", d.join("dangling"))?;
        ok(at(d.join("dangling"), OFlags::CREATE | OFlags::WRONLY)?)
    });
    row("open and truncate", |d| ok(at(d.join("file"), OFlags::TRUNC | OFlags::WRONLY)?));
    row("open and truncate what is empty", |d| ok(at(d.join("empty"), OFlags::TRUNC | OFlags::WRONLY)?));
    row("open and truncate for reading", |d| ok(at(d.join("file"), OFlags::TRUNC | OFlags::RDONLY)?));
    row("open a directory for writing", |d| ok(rw(d.join("a"))?));
    row("open a file as a directory", |d| ok(at(d.join("file"), OFlags::DIRECTORY)?));
    row("open a link itself", |d| ok(at(d.join("link"), OFlags::NOFOLLOW)?));
    row("open a path only", |d| ok(at(d.join("file"), OFlags::PATH)?));
    row("open without a name", |d| ok(at(d.join("a"), OFlags::TMPFILE | OFlags::RDWR)?));

    // Writing.
    row("write", |d| show(rustix::io::write(rw(d.join("file"))?, b"y")?));
    row("write nothing", |d| show(rustix::io::write(rw(d.join("file"))?, b"")?));
    row("write behind the end", |d| show(rustix::io::pwrite(rw(d.join("file"))?, b"y", 20_000)?));
    row("write at the largest offset", |d| show(rustix::io::pwrite(rw(d.join("file"))?, b"y", i64::MAX as u64)?));
    row("append", |d| show(rustix::io::write(at(d.join("file"), OFlags::APPEND | OFlags::WRONLY)?, b"y")?));
    row("append at an offset", |d| show(rustix::io::pwrite(at(d.join("file"), OFlags::APPEND | OFlags::WRONLY)?, b"y", 0)?));
    row("append with a flag of the call", |d| {
        let pieces = [io::IoSlice::new(b"one"), io::IoSlice::new(b"two")];
        show(rustix::io::pwritev2(rw(d.join("file"))?, &pieces, 0, rustix::io::ReadWriteFlags::APPEND)?)
    });
    row("write durably", |d| {
        let pieces = [io::IoSlice::new(b"one")];
        show(rustix::io::pwritev2(rw(d.join("file"))?, &pieces, 2, rustix::io::ReadWriteFlags::DSYNC)?)
    });
    row("write what is for reading", |d| show(rustix::io::write(at(d.join("file"), OFlags::RDONLY)?, b"y")?));
    row("write directly", |d| {
        let mut space = Vec::new();
        show(rustix::io::pwrite(at(d.join("big"), OFlags::WRONLY | OFlags::DIRECT)?, aligned(&mut space, 8192), 4096)?)
    });
    row("read directly", |d| {
        let mut space = Vec::new();
        let len = rustix::io::pread(at(d.join("big"), OFlags::RDONLY | OFlags::DIRECT)?, &mut *aligned(&mut space, 8192), 4096)?;
        show((len, space.contains(&b'x')))
    });
    row("fsync", |d| ok(rustix::fs::fsync(rw(d.join("file"))?)?));
    row("fdatasync", |d| ok(rustix::fs::fdatasync(rw(d.join("file"))?)?));
    row("fsync of a directory", |d| ok(rustix::fs::fsync(at(d.join("a"), OFlags::DIRECTORY)?)?));
    row("copy_file_range", |d| show(rustix::fs::copy_file_range(rw(d.join("file"))?, None, rw(d.join("other"))?, None, 5)?));
    row("copy_file_range onto itself", |d| {
        let file = rw(d.join("big"))?;
        show(rustix::fs::copy_file_range(&file, Some(&mut 0), &file, Some(&mut 100), 1000)?)
    });
    row("copy_file_range of nothing", |d| show(rustix::fs::copy_file_range(rw(d.join("empty"))?, None, rw(d.join("other"))?, None, 5)?));
    row("sendfile", |d| show(rustix::fs::sendfile(rw(d.join("other"))?, rw(d.join("file"))?, None, 5)?));
    row("splice", |d| {
        let (out, into) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let flags = rustix::pipe::SpliceFlags::empty();
        let read = rustix::pipe::splice(rw(d.join("file"))?, Some(&mut 0), into, None, 5, flags)?;
        show((read, rustix::pipe::splice(out, None, rw(d.join("other"))?, Some(&mut 2), 5, flags)?))
    });

    // Sizes and space.
    row("truncate to the same size", |d| ok(rustix::fs::ftruncate(rw(d.join("file"))?, 7)?));
    row("truncate shorter", |d| ok(rustix::fs::ftruncate(rw(d.join("file"))?, 3)?));
    row("truncate longer", |d| ok(rustix::fs::ftruncate(rw(d.join("file"))?, 9000)?));
    row("truncate what is for reading", |d| ok(rustix::fs::ftruncate(at(d.join("file"), OFlags::RDONLY)?, 3)?));
    row("truncate to the largest size", |d| ok(rustix::fs::ftruncate(rw(d.join("file"))?, i64::MAX as u64)?));
    row("allocate inside", |d| allocate(d.join("sparse"), F::empty(), 0, 8192));
    row("allocate behind the end", |d| allocate(d.join("file"), F::empty(), 0, 8192));
    row("allocate what is allocated", |d| allocate(d.join("big"), F::empty(), 0, 8192));
    row("allocate keeping the size", |d| allocate(d.join("file"), F::KEEP_SIZE, 0, 8192));
    row("allocate nothing", |d| allocate(d.join("file"), F::empty(), 0, 0));
    row("punch a hole", |d| allocate(d.join("big"), F::PUNCH_HOLE | F::KEEP_SIZE, 100, 20_000));
    row("punch a hole in a hole", |d| allocate(d.join("sparse"), F::PUNCH_HOLE | F::KEEP_SIZE, 0, 4096));
    row("punch a hole behind the end", |d| allocate(d.join("file"), F::PUNCH_HOLE | F::KEEP_SIZE, 8192, 4096));
    row("punch without keeping the size", |d| allocate(d.join("big"), F::PUNCH_HOLE, 0, 4096));
    row("zero a range", |d| allocate(d.join("big"), F::ZERO_RANGE, 100, 20_000));
    row("zero a range behind the end", |d| allocate(d.join("file"), F::ZERO_RANGE, 0, 8192));
    row("zero a range keeping the size", |d| allocate(d.join("file"), F::ZERO_RANGE | F::KEEP_SIZE, 0, 8192));
    row("collapse a range", |d| allocate(d.join("big"), F::COLLAPSE_RANGE, 0, 4096));
    row("insert a range", |d| allocate(d.join("big"), F::INSERT_RANGE, 4096, 4096));
    row("allocate a directory", |d| ok(rustix::fs::fallocate(at(d.join("a"), OFlags::DIRECTORY)?, F::empty(), 0, 4096)?));
    row("allocate a pipe", |d| ok(rustix::fs::fallocate(rw(d.join("fifo"))?, F::empty(), 0, 4096)?));

    // Attributes.
    row("chmod", |d| chmod(d.join("file"), 0o600));
    row("chmod to the same", |d| chmod(d.join("file"), 0o644));
    row("chmod of a directory", |d| chmod(d.join("a"), 0o3700));
    row("chmod through a link", |d| chmod(d.join("link"), 0o600));
    row("chown", |d| ok(chown(d.join("file"), Some(5), Some(6))?));
    row("chown to the same", |d| ok(chown(d.join("suid"), Some(1000), Some(1000))?));
    row("chown to nobody in particular", |d| ok(chown(d.join("suid"), None, None)?));
    row("chown of a set-id file by root", |d| ok(chown(d.join("suid"), Some(5), None)?));
    row("chown of a set-gid file that is not executable", |d| ok(chown(d.join("sgid"), None, Some(5))?));
    row("chown of a set-gid directory", |d| ok(chown(d.join("setgid"), Some(5), Some(5))?));
    row("chown of a link", |d| ok(lchown(d.join("link"), Some(5), Some(5))?));
    row("chown of a pipe", |d| ok(chown(d.join("fifo"), Some(5), Some(5))?));
    row("utimensat now", |d| times(d.join("file"), NOW, NOW));
    row("utimensat of nothing", |d| times(d.join("file"), OMIT, OMIT));
    row("utimensat of the access", |d| times(d.join("file"), time(7, 8), OMIT));
    row("utimensat of the change", |d| times(d.join("file"), OMIT, time(7, 8)));
    row("utimensat access now, change then", |d| times(d.join("file"), NOW, time(7, 999_999_999)));
    row("utimensat before 1970", |d| times(d.join("file"), time(-1, 999_999_999), time(-2_000_000_000, 1)));
    row("utimensat at the epoch", |d| times(d.join("file"), time(0, 0), time(-1, 0)));
    row("utimensat after 2038", |d| times(d.join("file"), time(1 << 31, 1), time((1 << 33) + 1, 2)));
    row("utimensat of a link", |d| times(d.join("link"), time(7, 8), time(9, 10)));
    row("utimensat of a directory", |d| times(d.join("a"), time(7, 8), time(9, 10)));
    row("utimensat with too many nanoseconds", |d| times(d.join("file"), time(7, 1_000_000_000), OMIT));
    row("setxattr", |d| ok(rustix::fs::setxattr(d.join("file"), "user.y", b"v", XattrFlags::empty())?));
    row("setxattr to the same", |d| ok(rustix::fs::setxattr(d.join("other"), "user.x", b"value", XattrFlags::empty())?));
    row("setxattr of what must be new", |d| ok(rustix::fs::setxattr(d.join("other"), "user.x", b"v", XattrFlags::CREATE)?));
    row("setxattr of what must be there", |d| ok(rustix::fs::setxattr(d.join("file"), "user.x", b"v", XattrFlags::REPLACE)?));
    row("setxattr of a link", |d| ok(rustix::fs::lsetxattr(d.join("link"), "user.x", b"v", XattrFlags::empty())?));
    row("setxattr of a trusted name", |d| ok(rustix::fs::setxattr(d.join("file"), "trusted.x", b"v", XattrFlags::empty())?));
    row("setxattr of an unknown space", |d| ok(rustix::fs::setxattr(d.join("file"), "nothing.x", b"v", XattrFlags::empty())?));
    row("setxattr of an empty name", |d| ok(rustix::fs::setxattr(d.join("file"), "user.", b"v", XattrFlags::empty())?));
    row("getxattr", |d| show(rustix::fs::getxattr(d.join("other"), "user.x", &mut [0u8; 9])?));
    row("getxattr into too little", |d| show(rustix::fs::getxattr(d.join("other"), "user.x", &mut [0u8; 2])?));
    row("getxattr of what is not there", |d| show(rustix::fs::getxattr(d.join("file"), "user.x", &mut [0u8; 9])?));
    row("listxattr", |d| show(rustix::fs::listxattr_query(d.join("other"))?));
    row("removexattr", |d| ok(rustix::fs::removexattr(d.join("other"), "user.x")?));
    row("removexattr of what is not there", |d| ok(rustix::fs::removexattr(d.join("file"), "user.x")?));

    // Names.
    row("link", |d| ok(fs::hard_link(d.join("file"), d.join("a/new"))?));
    row("link of a directory", |d| ok(fs::hard_link(d.join("a"), d.join("new"))?));
    row("link of a symbolic link", |d| ok(fs::hard_link(d.join("link"), d.join("a/new"))?));
    row("link of a descriptor", |d| {
        let file = at(d.join("file"), OFlags::PATH)?;
        ok(rustix::fs::linkat(&file, "", CWD, d.join("a/new"), AtFlags::EMPTY_PATH)?)
    });
    row("link of a descriptor without a name", |d| {
        let file = rw(d.join("other"))?;
        fs::remove_file(d.join("other"))?;
        ok(rustix::fs::linkat(&file, "", CWD, d.join("a/new"), AtFlags::EMPTY_PATH)?)
    });
    row("link over what is there", |d| ok(fs::hard_link(d.join("file"), d.join("other"))?));
    row("unlink of one of two", |d| ok(fs::remove_file(d.join("hard"))?));
    row("unlink", |d| ok(fs::remove_file(d.join("other"))?));
    row("unlink of a link", |d| ok(fs::remove_file(d.join("link"))?));
    row("unlink of a directory", |d| ok(rustix::fs::unlinkat(CWD, d.join("void"), AtFlags::empty())?));
    row("mkdir", |d| ok(fs::create_dir(d.join("a/new"))?));
    row("mkdir of what is there", |d| ok(fs::create_dir(d.join("a"))?));
    row("rmdir", |d| ok(fs::remove_dir(d.join("a/sub"))?));
    row("rmdir of what is not empty", |d| ok(fs::remove_dir(d.join("a"))?));
    row("rmdir of a file", |d| ok(fs::remove_dir(d.join("file"))?));
    row("symlink", |d| ok(symlink("to somewhere", d.join("a/new"))?));
    row("mknod of a pipe", |d| ok(mknodat(CWD, d.join("a/new"), FileType::Fifo, Mode::from_raw_mode(0o644), 0)?));
    row("mknod of a device", |d| {
        let device = rustix::fs::makedev(300, 70_000);
        ok(mknodat(CWD, d.join("a/new"), FileType::BlockDevice, Mode::from_raw_mode(0o600), device)?)
    });
    row("mknod of a socket", |d| ok(std::os::unix::net::UnixListener::bind(d.join("a/new"))?));
    row("rename", |d| rename(d.join("file"), d.join("new"), RenameFlags::empty()));
    row("rename to another directory", |d| rename(d.join("other"), d.join("a/new"), RenameFlags::empty()));
    row("rename over a file", |d| rename(d.join("other"), d.join("file"), RenameFlags::empty()));
    row("rename over the last name of a file", |d| rename(d.join("file"), d.join("other"), RenameFlags::empty()));
    row("rename onto itself", |d| rename(d.join("file"), d.join("file"), RenameFlags::empty()));
    row("rename onto another name of itself", |d| rename(d.join("file"), d.join("hard"), RenameFlags::empty()));
    row("rename of a directory", |d| rename(d.join("void"), d.join("new"), RenameFlags::empty()));
    row("rename of a directory to another", |d| rename(d.join("a/sub"), d.join("b/sub"), RenameFlags::empty()));
    row("rename over a directory", |d| rename(d.join("a/sub"), d.join("void"), RenameFlags::empty()));
    row("rename over a full directory", |d| rename(d.join("void"), d.join("a"), RenameFlags::empty()));
    row("rename below itself", |d| rename(d.join("a"), d.join("a/sub/new"), RenameFlags::empty()));
    row("rename of a directory over a file", |d| rename(d.join("void"), d.join("file"), RenameFlags::empty()));
    row("rename of a file over a directory", |d| rename(d.join("file"), d.join("void"), RenameFlags::empty()));
    row("rename without replacing", |d| rename(d.join("file"), d.join("other"), RenameFlags::NOREPLACE));
    row("rename without replacing to what is free", |d| rename(d.join("file"), d.join("a/new"), RenameFlags::NOREPLACE));
    row("exchange", |d| rename(d.join("other"), d.join("a/inner"), RenameFlags::EXCHANGE));
    row("exchange of a file and a directory", |d| rename(d.join("other"), d.join("a/sub"), RenameFlags::EXCHANGE));
    row("exchange of directories", |d| rename(d.join("b"), d.join("a/sub"), RenameFlags::EXCHANGE));
    row("exchange with nothing", |d| rename(d.join("file"), d.join("nothing"), RenameFlags::EXCHANGE));
    row("exchange with what is below", |d| rename(d.join("a"), d.join("a/sub"), RenameFlags::EXCHANGE));
    row("exchange without replacing", |d| rename(d.join("a"), d.join("b"), RenameFlags::EXCHANGE | RenameFlags::NOREPLACE));
    row("rename leaving a whiteout", |d| rename(d.join("file"), d.join("new"), RenameFlags::WHITEOUT));
    row("a name of 255 bytes", |d| ok(File::create(d.join("n".repeat(255)))?));
    row("a name of 256 bytes", |d| ok(File::create(d.join("n".repeat(256)))?));
    row("a name that is not UTF-8", |d| ok(File::create(d.join(std::ffi::OsStr::from_bytes(b"\xff\x80 \n")))?));
    row("a link of 4095 bytes", |d| {
        symlink("x".repeat(4095), d.join("new"))?;
        show(fs::read_link(d.join("new"))?.as_os_str().len())
    });
    row("a link of 4096 bytes", |d| ok(symlink("x".repeat(4096), d.join("new"))?));
    row("a link of nothing", |d| ok(symlink("", d.join("new"))?));
    row("a path that is too long", |d| ok(fs::metadata(d.join("a/".repeat(2100)))?));
    row("a path through a file", |d| ok(fs::metadata(d.join("file/x"))?));
    row("a loop of links", |d| {
        symlink("loop", d.join("loop"))?;
        ok(fs::metadata(d.join("loop"))?)
    });
    row("a tree deeper than a path may name", |d| {
        let mut dir = at(d.join("void"), OFlags::DIRECTORY)?;
        let name = "d".repeat(200);
        for _ in 0..25 {
            rustix::fs::mkdirat(&dir, &*name, Mode::from_raw_mode(0o755))?;
            dir = rustix::fs::openat(&dir, &*name, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        }
        rustix::fs::openat(&dir, "file", OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC, Mode::from_raw_mode(0o644))?;
        // Moved out, before somebody walks it by path.
        rename(d.join("void"), d.join("gone"), RenameFlags::empty())?;
        ok(fs::remove_dir_all(d.join("gone"))?)
    });

    // As users, who may not do everything.
    row("write to a set-id file by its owner", |d| OWNER.run(|| show(rustix::io::write(rw(d.join("suid"))?, b"y")?)));
    row("write to a set-id file by another", |d| OTHER.run(|| show(rustix::io::write(rw(d.join("suid"))?, b"y")?)));
    row("write nothing to a set-id file", |d| OTHER.run(|| show(rustix::io::write(rw(d.join("suid"))?, b"")?)));
    row("write to a set-id file by root", |d| show(rustix::io::write(rw(d.join("suid"))?, b"y")?));
    row("write to a set-gid file that is not executable", |d| OTHER.run(|| show(rustix::io::write(rw(d.join("sgid"))?, b"y")?)));
    row("write by a member of the group", |d| MEMBER.run(|| show(rustix::io::write(rw(d.join("group"))?, b"y")?)));
    row("write to a set-id file by a member of its group", |d| MEMBER.run(|| show(rustix::io::write(rw(d.join("gsuid"))?, b"y")?)));
    row("write by another", |d| OTHER.run(|| show(rustix::io::write(rw(d.join("group"))?, b"y")?)));
    row("write directly to a set-id file", |d| {
        OTHER.run(|| {
            let mut space = Vec::new();
            show(rustix::io::pwrite(at(d.join("suid"), OFlags::WRONLY | OFlags::DIRECT)?, aligned(&mut space, 4096), 0)?)
        })
    });
    row("truncate a set-id file", |d| OTHER.run(|| ok(rustix::fs::ftruncate(rw(d.join("suid"))?, 5)?)));
    row("truncate a set-id file to the same size", |d| OTHER.run(|| ok(rustix::fs::ftruncate(rw(d.join("suid"))?, 8000)?)));
    row("truncate a set-id file by root", |d| ok(rustix::fs::ftruncate(rw(d.join("suid"))?, 5)?));
    row("open and truncate a set-id file", |d| OTHER.run(|| ok(at(d.join("suid"), OFlags::TRUNC | OFlags::WRONLY)?)));
    row("open and truncate a set-gid file that is not executable", |d| {
        OTHER.run(|| ok(at(d.join("sgid"), OFlags::TRUNC | OFlags::WRONLY)?))
    });
    row("allocate a set-id file", |d| OTHER.run(|| allocate(d.join("suid"), F::empty(), 0, 20_000)));
    row("punch a set-id file", |d| OTHER.run(|| allocate(d.join("suid"), F::PUNCH_HOLE | F::KEEP_SIZE, 0, 4096)));
    row("zero a range of a set-id file", |d| OTHER.run(|| allocate(d.join("suid"), F::ZERO_RANGE, 0, 4096)));
    row("copy into a set-id file", |d| {
        OTHER.run(|| show(rustix::fs::copy_file_range(rw(d.join("other"))?, None, rw(d.join("suid"))?, None, 5)?))
    });
    row("chmod by the owner", |d| OWNER.run(|| chmod(d.join("file"), 0o4711)));
    row("chmod by another", |d| OTHER.run(|| chmod(d.join("file"), 0o777)));
    row("chmod to set-gid by a member", |d| MEMBER.run(|| {
        let path = d.join("new");
        File::create(&path)?;
        chmod(&path, 0o2755)
    }));
    row("chmod to set-gid of a group that is not one's own", |d| {
        chown(d.join("file"), None, Some(2000))?;
        OWNER.run(|| chmod(d.join("file"), 0o2755))
    });
    row("chown by the owner to another", |d| OWNER.run(|| ok(chown(d.join("file"), Some(1001), None)?)));
    row("chown by the owner to oneself", |d| OWNER.run(|| ok(chown(d.join("suid"), Some(1000), None)?)));
    row("chown by the owner to a group of one's own", |d| OWNER.run(|| ok(chown(d.join("suid"), None, Some(1000))?)));
    row("chown by the owner to a foreign group", |d| OWNER.run(|| ok(chown(d.join("file"), None, Some(2000))?)));
    row("chown of a set-gid file that is not executable by its owner", |d| {
        OWNER.run(|| ok(chown(d.join("sgid"), None, Some(1000))?))
    });
    row("chown by another to nobody in particular", |d| OTHER.run(|| ok(chown(d.join("suid"), None, None)?)));
    row("chown to a supplementary group", |d| {
        MEMBER.run(|| {
            File::create(d.join("new"))?;
            ok(chown(d.join("new"), None, Some(2000))?)
        })
    });
    row("utimensat now by who may write", |d| OTHER.run(|| times(d.join("other"), NOW, NOW)));
    row("utimensat now by who may not", |d| OTHER.run(|| times(d.join("file"), NOW, NOW)));
    row("utimensat then by who may write", |d| OTHER.run(|| times(d.join("other"), time(7, 8), time(9, 10))));
    row("utimensat now and omitted by who may write", |d| OTHER.run(|| times(d.join("other"), NOW, OMIT)));
    row("utimensat omitted by who may not", |d| OTHER.run(|| times(d.join("file"), OMIT, OMIT)));
    row("utimensat then by the owner", |d| OWNER.run(|| times(d.join("file"), time(7, 8), time(9, 10))));
    row("read with O_NOATIME by another", |d| OTHER.run(|| ok(at(d.join("file"), OFlags::RDONLY | OFlags::NOATIME)?)));
    row("setxattr by another", |d| OTHER.run(|| ok(rustix::fs::setxattr(d.join("file"), "user.y", b"v", XattrFlags::empty())?)));
    row("setxattr of a trusted name by its owner", |d| {
        OWNER.run(|| ok(rustix::fs::setxattr(d.join("file"), "trusted.x", b"v", XattrFlags::empty())?))
    });
    row("getxattr of a trusted name by its owner", |d| {
        rustix::fs::setxattr(d.join("file"), "trusted.x", b"v", XattrFlags::empty())?;
        OWNER.run(|| show(rustix::fs::getxattr(d.join("file"), "trusted.x", &mut [0u8; 9])?))
    });
    row("listxattr of a trusted name by its owner", |d| {
        rustix::fs::setxattr(d.join("file"), "trusted.x", b"v", XattrFlags::empty())?;
        OWNER.run(|| show(rustix::fs::listxattr_query(d.join("file"))?))
    });
    row("setxattr of a sticky directory by another", |d| {
        OTHER.run(|| ok(rustix::fs::setxattr(d.join("sticky"), "user.y", b"v", XattrFlags::empty())?))
    });
    row("setxattr of a pipe", |d| ok(rustix::fs::setxattr(d.join("fifo"), "user.y", b"v", XattrFlags::empty())?));
    row("remove from a sticky directory by another", |d| OTHER.run(|| ok(fs::remove_file(d.join("sticky/theirs"))?)));
    row("remove from a sticky directory by the owner", |d| OWNER.run(|| ok(fs::remove_file(d.join("sticky/theirs"))?)));
    row("rename in a sticky directory by another", |d| {
        OTHER.run(|| rename(d.join("sticky/theirs"), d.join("sticky/new"), RenameFlags::empty()))
    });
    row("rename over a sticky directory's file by another", |d| {
        OTHER.run(|| {
            File::create(d.join("sticky/mine"))?;
            rename(d.join("sticky/mine"), d.join("sticky/theirs"), RenameFlags::empty())
        })
    });
    row("link of another's file", |d| OTHER.run(|| ok(fs::hard_link(d.join("file"), d.join("new"))?)));
    row("create in a set-gid directory", |d| OTHER.run(|| ok(at(d.join("setgid/new"), OFlags::CREATE | OFlags::WRONLY)?)));
    row("create a set-gid file in a set-gid directory", |d| {
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        OTHER.run(|| ok(open(d.join("setgid/new"), flags, Mode::from_raw_mode(0o2755))?))
    });
    row("create a set-gid file in a set-gid directory by a member", |d| {
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        MEMBER.run(|| ok(open(d.join("setgid/new"), flags, Mode::from_raw_mode(0o2755))?))
    });
    row("mkdir in a set-gid directory", |d| OTHER.run(|| ok(fs::create_dir(d.join("setgid/new"))?)));
    row("mkdir in a set-gid directory by a member", |d| MEMBER.run(|| ok(fs::create_dir(d.join("setgid/new"))?)));
    row("symlink in a set-gid directory", |d| OTHER.run(|| ok(symlink("x", d.join("setgid/new"))?)));
    row("mknod in a set-gid directory", |d| {
        OTHER.run(|| ok(mknodat(CWD, d.join("setgid/new"), FileType::Fifo, Mode::from_raw_mode(0o2770), 0)?))
    });
    row("mknod of a device by a user", |d| {
        let device = rustix::fs::makedev(1, 3);
        OTHER.run(|| ok(mknodat(CWD, d.join("new"), FileType::CharacterDevice, Mode::from_raw_mode(0o600), device)?))
    });
    row("create in a directory of another", |d| OTHER.run(|| ok(File::create(d.join("a/new"))?)));
    row("remove from a directory of another", |d| OTHER.run(|| ok(fs::remove_file(d.join("a/inner"))?)));
    row("rename a directory of another to elsewhere", |d| {
        OTHER.run(|| rename(d.join("a"), d.join("setgid/a"), RenameFlags::empty()))
    });
    row("execute without the bit", |d| OTHER.run(|| ok(rustix::fs::access(d.join("file"), rustix::fs::Access::EXEC_OK)?)));
    row("execute without the bit by root", |d| ok(rustix::fs::access(d.join("file"), rustix::fs::Access::EXEC_OK)?));

    // Capabilities of a file do not survive a change of it, whoever makes it.
    row("write to a file with capabilities", |d| {
        give_capabilities(d)?;
        rustix::io::write(rw(d.join("file"))?, b"y")?;
        capabilities(d)
    });
    row("write to a file with capabilities by another", |d| {
        give_capabilities(d)?;
        chmod(d.join("file"), 0o777)?;
        OTHER.run(|| show(rustix::io::write(rw(d.join("file"))?, b"y")?))?;
        capabilities(d)
    });
    row("write directly to a file with capabilities", |d| {
        give_capabilities(d)?;
        let mut space = Vec::new();
        let file = at(d.join("file"), OFlags::WRONLY | OFlags::DIRECT)?;
        rustix::io::pwrite(file, aligned(&mut space, 4096), 0)?;
        capabilities(d)
    });
    row("truncate a file with capabilities", |d| {
        give_capabilities(d)?;
        rustix::fs::ftruncate(rw(d.join("file"))?, 3)?;
        capabilities(d)
    });
    row("open and truncate a file with capabilities", |d| {
        give_capabilities(d)?;
        at(d.join("file"), OFlags::TRUNC | OFlags::WRONLY)?;
        capabilities(d)
    });
    row("allocate a file with capabilities", |d| {
        give_capabilities(d)?;
        allocate(d.join("file"), F::empty(), 0, 10_000)?;
        capabilities(d)
    });
    row("copy into a file with capabilities", |d| {
        give_capabilities(d)?;
        rustix::fs::copy_file_range(rw(d.join("other"))?, None, rw(d.join("file"))?, None, 5)?;
        capabilities(d)
    });
    row("chown of a file with capabilities", |d| {
        give_capabilities(d)?;
        chown(d.join("file"), Some(5), None)?;
        capabilities(d)
    });
    row("chmod of a file with capabilities", |d| {
        give_capabilities(d)?;
        chmod(d.join("file"), 0o700)?;
        capabilities(d)
    });
    row("rename and link of a file with capabilities", |d| {
        give_capabilities(d)?;
        rename(d.join("file"), d.join("new"), RenameFlags::empty())?;
        rename(d.join("new"), d.join("file"), RenameFlags::empty())?;
        capabilities(d)
    });
    rows
}

/// The attribute that holds a file's capabilities: version 2, `CAP_NET_RAW` permitted.
const CAPABILITIES: &str = "security.capability";

fn give_capabilities(d: &Path) -> io::Result<()> {
    let mut value = [0u8; 20];
    value[..4].copy_from_slice(&0x0200_0001u32.to_le_bytes());
    value[4..8].copy_from_slice(&(1u32 << 13).to_le_bytes());
    Ok(rustix::fs::setxattr(d.join("file"), CAPABILITIES, &value, XattrFlags::empty())?)
}

fn capabilities(d: &Path) -> io::Result<String> {
    match rustix::fs::getxattr(d.join("file"), CAPABILITIES, &mut [0u8; 64]) {
        Err(rustix::io::Errno::NODATA) => Ok("capabilities are gone".to_owned()),
        kept => show(kept?),
    }
}
