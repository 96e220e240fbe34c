//! nbdkit's side of the plugin: the table of functions that it asks for, version 2 of its interface,
//! as `nbdkit-plugin.h` of nbdkit 1.30 and later lays it out. The only `unsafe` code of this crate.
//!
//! nbdkit calls with pointers that are good for the time of the call, and so are the slices and
//! strings that are made of them here: none is kept. No panic leaves a function. A handle is the
//! address of a number of ours that nothing is read from.
//!
//! `tests/suite/layout.rs` compares the table with the header, field by field.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::Write;
use std::mem::size_of;
use std::panic::{UnwindSafe, catch_unwind};
use std::ptr;

use crate::plugin::{self, Failed, Result};

/// `NBDKIT_THREAD_MODEL_PARALLEL`.
const PARALLEL: c_int = 3;
/// `NBDKIT_FUA_EMULATE`: a request with FUA is followed by our flush.
const FUA_BY_FLUSH: c_int = 1;
/// `NBDKIT_CACHE_NONE`.
const NO_CACHE: c_int = 0;
/// `NBDKIT_FLAG_REQ_ONE`.
const ONE_EXTENT: u32 = 1 << 2;
/// `NBDKIT_EXTENT_HOLE | NBDKIT_EXTENT_ZERO`.
const HOLE: u32 = 3;

type Handle = *mut c_void;
type Unused = Option<unsafe extern "C" fn()>;

/// `struct nbdkit_plugin`.
#[repr(C)]
struct Plugin {
    struct_size: u64,
    api_version: c_int,
    thread_model: c_int,
    name: *const c_char,
    longname: *const c_char,
    version: *const c_char,
    description: *const c_char,
    load: Unused,
    unload: Unused,
    config: Option<unsafe extern "C" fn(*const c_char, *const c_char) -> c_int>,
    config_complete: Option<extern "C" fn() -> c_int>,
    config_help: *const c_char,
    open: Option<extern "C" fn(c_int) -> Handle>,
    close: Option<extern "C" fn(Handle)>,
    get_size: Option<extern "C" fn(Handle) -> i64>,
    can_write: Option<extern "C" fn(Handle) -> c_int>,
    can_flush: Option<extern "C" fn(Handle) -> c_int>,
    is_rotational: Option<extern "C" fn(Handle) -> c_int>,
    can_trim: Option<extern "C" fn(Handle) -> c_int>,
    pread_v1: Unused,
    pwrite_v1: Unused,
    flush_v1: Unused,
    trim_v1: Unused,
    zero_v1: Unused,
    errno_is_preserved: c_int,
    dump_plugin: Option<extern "C" fn()>,
    can_zero: Option<extern "C" fn(Handle) -> c_int>,
    can_fua: Option<extern "C" fn(Handle) -> c_int>,
    pread: Option<unsafe extern "C" fn(Handle, *mut c_void, u32, u64, u32) -> c_int>,
    pwrite: Option<unsafe extern "C" fn(Handle, *const c_void, u32, u64, u32) -> c_int>,
    flush: Option<extern "C" fn(Handle, u32) -> c_int>,
    trim: Option<extern "C" fn(Handle, u32, u64, u32) -> c_int>,
    zero: Option<extern "C" fn(Handle, u32, u64, u32) -> c_int>,
    magic_config_key: *const c_char,
    can_multi_conn: Option<extern "C" fn(Handle) -> c_int>,
    can_extents: Option<extern "C" fn(Handle) -> c_int>,
    extents: Option<unsafe extern "C" fn(Handle, u32, u64, u32, *mut c_void) -> c_int>,
    can_cache: Option<extern "C" fn(Handle) -> c_int>,
    cache: Unused,
    thread_model_of: Option<extern "C" fn() -> c_int>,
    can_fast_zero: Option<extern "C" fn(Handle) -> c_int>,
    preconnect: Unused,
    get_ready: Option<extern "C" fn() -> c_int>,
    after_fork: Option<extern "C" fn() -> c_int>,
    list_exports: Unused,
    default_export: Unused,
    export_description: Option<extern "C" fn(Handle) -> *const c_char>,
    cleanup: Option<extern "C" fn()>,
    block_size: Option<unsafe extern "C" fn(Handle, *mut u32, *mut u32, *mut u32) -> c_int>,
}

unsafe extern "C" {
    fn nbdkit_error(format: *const c_char, ...);
    fn nbdkit_set_error(errno: c_int);
    fn nbdkit_add_extent(extents: *mut c_void, offset: u64, length: u64, kind: u32) -> c_int;
}

/// Reports an error: on nbdkit's standard error, and as a number to the client.
fn report(failed: &Failed) {
    let text = failed.text.replace('\0', "");
    let Ok(text) = CString::new(text) else {
        return;
    };
    // SAFETY: both strings end with a zero and outlive the call, and the format takes one string.
    unsafe { nbdkit_error(c"%s".as_ptr(), text.as_ptr()) };
    // SAFETY: it takes any number.
    unsafe { nbdkit_set_error(failed.errno) };
}

/// Runs our side; a failure or a panic is reported and becomes `wrong`.
fn answer<T>(wrong: T, ours: impl FnOnce() -> Result<T> + UnwindSafe) -> T {
    let outcome = catch_unwind(ours).unwrap_or_else(|_| Err(Failed::panicked()));
    outcome.unwrap_or_else(|failed| {
        report(&failed);
        wrong
    })
}

fn done(ours: impl FnOnce() -> Result<()> + UnwindSafe) -> c_int {
    answer(-1, || ours().map(|()| 0))
}

/// A string of nbdkit's. File names may hold any bytes, but settings are text.
///
/// # Safety
/// `text` ends with a zero, and stays as it is while the result is used.
unsafe fn string<'a>(text: *const c_char) -> Result<&'a str> {
    // SAFETY: as the caller promises.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failed {
        errno: 22,
        text: "a setting is no UTF-8".to_owned(),
    })
}

unsafe extern "C" fn config(key: *const c_char, value: *const c_char) -> c_int {
    // SAFETY: nbdkit hands over two strings, good for this call.
    let words = unsafe { (string(key), string(value)) };
    done(|| plugin::config(words.0?, words.1?))
}

extern "C" fn config_complete() -> c_int {
    done(plugin::config_complete)
}

extern "C" fn get_ready() -> c_int {
    done(plugin::get_ready)
}

extern "C" fn after_fork() -> c_int {
    done(plugin::after_fork)
}

extern "C" fn cleanup() {
    let _ = done(plugin::cleanup);
}

extern "C" fn dump_plugin() {
    let text = format!(
        "steadfast_contract=snapshot\nsteadfast_layout={}\n",
        layout()
    );
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Target of handles.
static HANDLE: u8 = 0;

extern "C" fn open(_read_only: c_int) -> Handle {
    let handle = ptr::from_ref(&HANDLE).cast_mut().cast::<c_void>();
    match done(plugin::open) {
        0 => handle,
        _ => ptr::null_mut(),
    }
}

extern "C" fn close(_: Handle) {
    let _ = done(plugin::close);
}

extern "C" fn get_size(_: Handle) -> i64 {
    answer(-1, || {
        Ok(i64::try_from(plugin::served()?.bytes()).unwrap_or(i64::MAX))
    })
}

extern "C" fn can_write(_: Handle) -> c_int {
    answer(-1, || Ok(c_int::from(!plugin::served()?.read_only())))
}

extern "C" fn yes(_: Handle) -> c_int {
    1
}

extern "C" fn no(_: Handle) -> c_int {
    0
}

extern "C" fn can_fua(_: Handle) -> c_int {
    FUA_BY_FLUSH
}

extern "C" fn can_cache(_: Handle) -> c_int {
    NO_CACHE
}

extern "C" fn thread_model() -> c_int {
    PARALLEL
}

extern "C" fn export_description(_: Handle) -> *const c_char {
    c"Steadfast disk: a crash returns it to its last flush".as_ptr()
}

unsafe extern "C" fn pread(_: Handle, to: *mut c_void, count: u32, at: u64, _: u32) -> c_int {
    done(|| {
        // SAFETY: nbdkit hands over `count` bytes that are not used elsewhere during this call. They may never
        // have been written, so that is done first.
        unsafe { ptr::write_bytes(to.cast::<u8>(), 0, count as usize) };
        // SAFETY: the same bytes.
        let data = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), count as usize) };
        Ok(plugin::served()?.read(at, data)?)
    })
}

unsafe extern "C" fn pwrite(_: Handle, from: *const c_void, count: u32, at: u64, _: u32) -> c_int {
    done(|| {
        // SAFETY: nbdkit hands over `count` bytes that do not change during this call.
        let data = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), count as usize) };
        Ok(plugin::served()?.write(at, data)?)
    })
}

extern "C" fn flush(_: Handle, _: u32) -> c_int {
    done(|| Ok(plugin::served()?.flush()?))
}

extern "C" fn trim(_: Handle, count: u32, at: u64, _: u32) -> c_int {
    done(|| Ok(plugin::served()?.trim(at, count.into())?))
}

extern "C" fn zero(_: Handle, count: u32, at: u64, _: u32) -> c_int {
    done(|| Ok(plugin::served()?.zero(at, count.into())?))
}

unsafe extern "C" fn extents(
    _: Handle,
    count: u32,
    at: u64,
    flags: u32,
    list: *mut c_void,
) -> c_int {
    done(|| {
        plugin::extents(
            at,
            count.into(),
            flags & ONE_EXTENT != 0,
            |at, len, hole| {
                let kind = if hole { HOLE } else { 0 };
                // SAFETY: the list is nbdkit's own, which it handed over for this call.
                match unsafe { nbdkit_add_extent(list, at, len, kind) } {
                    0 => Ok(()),
                    _ => Err(Failed {
                        errno: 12,
                        text: "nbdkit took no more extents".to_owned(),
                    }),
                }
            },
        )
    })
}

unsafe extern "C" fn block_size(
    _: Handle,
    minimum: *mut u32,
    preferred: *mut u32,
    maximum: *mut u32,
) -> c_int {
    done(|| {
        let sizes = plugin::block_size()?;
        // SAFETY: nbdkit hands over three numbers of its own, for us to write.
        unsafe {
            *minimum = sizes[0];
            *preferred = sizes[1];
            *maximum = sizes[2];
        }
        Ok(())
    })
}

const HELP: &CStr =
    c"image=PATH                    (required) a flash image, made by 'steadfast ftl format'
full=flush|wait|wait:SECONDS  what a write does that the epoch has no room for: the disk flushes
                              and goes on (default), or it waits for another client's flush
gone=keep|flush|rollback      what becomes of unflushed writes when the last client has gone
readonly=true                 refuse writes, and do not change the image";

/// Entry point of nbdkit. The table lives as long as the process.
#[unsafe(no_mangle)]
extern "C" fn plugin_init() -> *const c_void {
    let table = Plugin {
        struct_size: size_of::<Plugin>() as u64,
        api_version: 2,
        thread_model: PARALLEL,
        name: c"steadfast".as_ptr(),
        longname: c"Steadfast disk plugin".as_ptr(),
        version: VERSION.as_ptr(),
        description: c"Disks in flash images: a crash returns them to their last flush".as_ptr(),
        load: None,
        unload: None,
        config: Some(config),
        config_complete: Some(config_complete),
        config_help: HELP.as_ptr(),
        open: Some(open),
        close: Some(close),
        get_size: Some(get_size),
        can_write: Some(can_write),
        can_flush: Some(yes),
        is_rotational: Some(no),
        can_trim: Some(yes),
        pread_v1: None,
        pwrite_v1: None,
        flush_v1: None,
        trim_v1: None,
        zero_v1: None,
        errno_is_preserved: 0,
        dump_plugin: Some(dump_plugin),
        can_zero: Some(yes),
        can_fua: Some(can_fua),
        pread: Some(pread),
        pwrite: Some(pwrite),
        flush: Some(flush),
        trim: Some(trim),
        zero: Some(zero),
        magic_config_key: c"image".as_ptr(),
        can_multi_conn: Some(yes),
        can_extents: Some(yes),
        extents: Some(extents),
        can_cache: Some(can_cache),
        cache: None,
        thread_model_of: Some(thread_model),
        can_fast_zero: Some(yes),
        preconnect: None,
        get_ready: Some(get_ready),
        after_fork: Some(after_fork),
        list_exports: None,
        default_export: None,
        export_description: Some(export_description),
        cleanup: Some(cleanup),
        block_size: Some(block_size),
    };
    Box::into_raw(Box::new(table)).cast_const().cast()
}

/// This package's version.
const VERSION: &CStr = {
    let text = concat!(env!("CARGO_PKG_VERSION"), "\0");
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(version) => version,
        Err(_) => c"",
    }
};

/// The fields' names and offsets, and the table's size: for the test that compares them with the header.
fn layout() -> String {
    macro_rules! fields {
        ($($field:ident as $name:literal,)*) => {
            [$(($name, std::mem::offset_of!(Plugin, $field)),)*]
        };
    }
    let fields = fields! {
        struct_size as "_struct_size", api_version as "_api_version",
        thread_model as "_thread_model", name as "name", longname as "longname",
        version as "version", description as "description", load as "load", unload as "unload",
        config as "config", config_complete as "config_complete", config_help as "config_help",
        open as "open", close as "close", get_size as "get_size", can_write as "can_write",
        can_flush as "can_flush", is_rotational as "is_rotational", can_trim as "can_trim",
        pread_v1 as "_pread_v1", pwrite_v1 as "_pwrite_v1", flush_v1 as "_flush_v1",
        trim_v1 as "_trim_v1", zero_v1 as "_zero_v1", errno_is_preserved as "errno_is_preserved",
        dump_plugin as "dump_plugin", can_zero as "can_zero", can_fua as "can_fua",
        pread as "pread", pwrite as "pwrite", flush as "flush", trim as "trim", zero as "zero",
        magic_config_key as "magic_config_key", can_multi_conn as "can_multi_conn",
        can_extents as "can_extents", extents as "extents", can_cache as "can_cache",
        cache as "cache", thread_model_of as "thread_model", can_fast_zero as "can_fast_zero",
        preconnect as "preconnect", get_ready as "get_ready", after_fork as "after_fork",
        list_exports as "list_exports", default_export as "default_export",
        export_description as "export_description", cleanup as "cleanup",
        block_size as "block_size",
    };
    let mut text = format!("sizeof:{}", size_of::<Plugin>());
    for (name, offset) in fields {
        text.push_str(&format!(",{name}:{offset}"));
    }
    text
}
