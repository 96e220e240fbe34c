//! A small NFS server in memory, for the tests: it can die and come back, and it can be wrong on purpose.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use nfs3_types::mount::{self, dirpath, fhandle3, mountres3, mountres3_ok};
use nfs3_types::nfs3::{
    self as n, Nfs3Option, Nfs3Result, createhow3, fattr3, ftype3, nfs_fh3, nfsstat3, nfstime3,
    stable_how, wcc_data, writeverf3,
};
use nfs3_types::rpc::{
    accept_stat_data, accepted_reply, fragment_header, msg_body, opaque_auth, reply_body, rpc_msg,
};
use nfs3_types::xdr_codec::{List, Opaque, Pack, Unpack, Void};

use steadfast_nfs_client::calls::Call;
use steadfast_nfs_client::client::{self, Export};
use steadfast_nfs_client::rpc::Target;

const ROOT: u64 = 1;

/// Fault of the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    None,
    /// FILE_SYNC is answered, and lost when the server dies.
    ForgetsStableWrites,
    /// The verifier does not change when the server dies.
    KeepsItsVerifier,
    /// A name that was removed is back after the server died.
    ForgetsRemovals,
    /// One byte of a read is wrong.
    ChangesAByte,
    /// LOOKUP finds the first file of the directory.
    FindsAnotherFile,
    /// FILE_SYNC is answered with UNSTABLE.
    AdmitsItIsNotStable,
}

#[derive(Clone, Default)]
struct Node {
    /// Names of a directory.
    names: Option<BTreeMap<String, u64>>,
    data: Vec<u8>,
    stable: Vec<u8>,
    mode: u32,
    verifier: Option<[u8; 8]>,
}

struct State {
    nodes: BTreeMap<u64, Node>,
    next: u64,
    verifier: u64,
    fault: Fault,
    /// Only so much of a write is done.
    write_bytes_max: usize,
    connections: Vec<TcpStream>,
    removed: Vec<(u64, String, u64)>,
}

pub(crate) struct Fake {
    state: Arc<Mutex<State>>,
    port: u16,
}

impl Fake {
    pub(crate) fn start(fault: Fault) -> Fake {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let root = Node {
            names: Some(BTreeMap::new()),
            mode: 0o755,
            ..Node::default()
        };
        let state = Arc::new(Mutex::new(State {
            nodes: BTreeMap::from([(ROOT, root)]),
            next: ROOT + 1,
            verifier: 1,
            fault,
            write_bytes_max: usize::MAX,
            connections: Vec::new(),
            removed: Vec::new(),
        }));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                let state = Arc::clone(&shared);
                state
                    .lock()
                    .unwrap()
                    .connections
                    .push(stream.try_clone().unwrap());
                thread::spawn(move || serve(stream, &state));
            }
        });
        Fake { state, port }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn writes_at_most(&self, bytes: usize) {
        self.state().write_bytes_max = bytes;
    }

    /// Kills the server and starts another: unstable writes are gone, and so are the connections.
    pub(crate) fn restart(&self) {
        let mut state = self.state();
        if state.fault != Fault::KeepsItsVerifier {
            state.verifier += 1;
        }
        for node in state.nodes.values_mut() {
            node.data = node.stable.clone();
        }
        for (dir, name, id) in std::mem::take(&mut state.removed) {
            if state.fault == Fault::ForgetsRemovals {
                names(&mut state, dir).insert(name, id);
            }
        }
        for connection in state.connections.drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// Directories below the root are empty.
    pub(crate) fn forget_names(&self) {
        let mut state = self.state();
        for (_, node) in state.nodes.iter_mut().filter(|(id, _)| **id != ROOT) {
            if let Some(names) = &mut node.names {
                names.clear();
            }
        }
    }

    pub(crate) fn mount(&self) -> Export {
        let target = Target {
            address: ([127, 0, 0, 1], 0).into(),
            uid: 0,
            gid: 0,
            reserved_port: false,
            timeout: Duration::from_secs(10),
        };
        client::mount(&target, Some(self.port), Some(self.port), "/").unwrap()
    }
}

fn serve(mut stream: TcpStream, state: &Mutex<State>) {
    loop {
        let mut header = [0; 4];
        if stream.read_exact(&mut header).is_err() {
            return;
        }
        let mut record = vec![0; fragment_header::from(header).fragment_length() as usize];
        if stream.read_exact(&mut record).is_err() {
            return;
        }
        let mut rest = record.as_slice();
        let (message, _) = rpc_msg::unpack(&mut rest).unwrap();
        let msg_body::CALL(call) = message.body else {
            panic!("not a call");
        };
        let mut reply = vec![0; 4];
        let head = rpc_msg {
            xid: message.xid,
            body: msg_body::REPLY(reply_body::MSG_ACCEPTED(accepted_reply {
                verf: opaque_auth::default(),
                reply_data: accept_stat_data::SUCCESS,
            })),
        };
        head.pack(&mut reply).unwrap();
        {
            let mut state = state.lock().unwrap();
            if call.prog == mount::PROGRAM {
                dirpath::unpack(&mut rest).unwrap();
                let ok = mountres3::Ok(mountres3_ok {
                    fhandle: fhandle3(Opaque::owned(ROOT.to_be_bytes().to_vec())),
                    auth_flavors: vec![1],
                });
                ok.pack(&mut reply).unwrap();
            } else {
                procedure(&mut state, call.proc, rest, &mut reply);
            }
        }
        let len = reply.len() as u32 - 4;
        reply[..4].copy_from_slice(&fragment_header::new(len, true).into_xdr_buf());
        if stream.write_all(&reply).is_err() {
            return;
        }
    }
}

fn names(state: &mut State, dir: u64) -> &mut BTreeMap<String, u64> {
    state.nodes.get_mut(&dir).unwrap().names.as_mut().unwrap()
}

fn id(handle: &nfs_fh3) -> u64 {
    u64::from_be_bytes(handle.data.as_ref().try_into().unwrap())
}

fn handle(id: u64) -> nfs_fh3 {
    nfs_fh3 {
        data: Opaque::owned(id.to_be_bytes().to_vec()),
    }
}

fn place(at: &n::diropargs3<'_>) -> (u64, String) {
    (
        id(&at.dir),
        String::from_utf8(at.name.as_ref().to_vec()).unwrap(),
    )
}

fn attributes(state: &State, id: u64) -> fattr3 {
    let node = &state.nodes[&id];
    let time = nfstime3::default();
    fattr3 {
        type_: if node.names.is_some() {
            ftype3::NF3DIR
        } else {
            ftype3::NF3REG
        },
        mode: node.mode,
        nlink: 1,
        uid: 0,
        gid: 0,
        size: node.data.len() as u64,
        used: 0,
        rdev: n::specdata3::default(),
        fsid: 0,
        fileid: id,
        atime: time,
        mtime: time,
        ctime: time,
    }
}

fn make(state: &mut State, at: &n::diropargs3<'_>, node: Node) -> u64 {
    let (dir, name) = place(at);
    let id = state.next;
    state.next += 1;
    state.nodes.insert(id, node);
    names(state, dir).insert(name, id);
    id
}

fn mode_of(attributes: &n::sattr3) -> u32 {
    match attributes.mode {
        Nfs3Option::Some(mode) => mode,
        Nfs3Option::None => 0,
    }
}

fn procedure(state: &mut State, procedure: u32, args: &[u8], out: &mut Vec<u8>) {
    /// Answers if the call is the one that is asked for.
    fn on<C: Call + Unpack>(
        procedure: u32,
        mut args: &[u8],
        out: &mut Vec<u8>,
        fail: impl Fn() -> C::Fail,
        answer: impl FnOnce(C) -> Result<C::Ok, nfsstat3>,
    ) where
        C::Ok: Pack,
        C::Fail: Pack,
    {
        if procedure == C::PROCEDURE as u32 {
            let (call, _) = C::unpack(&mut args).unwrap();
            assert!(args.is_empty(), "bytes behind the arguments");
            match answer(call) {
                Ok(ok) => Nfs3Result::<C::Ok, C::Fail>::Ok(ok).pack(out).unwrap(),
                Err(status) => Nfs3Result::<C::Ok, C::Fail>::Err((status, fail()))
                    .pack(out)
                    .unwrap(),
            };
        }
    }
    use nfsstat3::{NFS3ERR_EXIST, NFS3ERR_NOENT};
    on::<n::FSINFO3args>(procedure, args, out, Default::default, |_| {
        Ok(n::FSINFO3resok {
            obj_attributes: Nfs3Option::None,
            rtmax: 65536,
            rtpref: 65536,
            rtmult: 1,
            wtmax: 65536,
            wtpref: 65536,
            wtmult: 1,
            dtpref: 4096,
            maxfilesize: u64::MAX,
            time_delta: nfstime3::default(),
            properties: 0,
        })
    });
    on::<n::GETATTR3args>(
        procedure,
        args,
        out,
        || Void,
        |call| {
            Ok(n::GETATTR3resok {
                obj_attributes: attributes(state, id(&call.object)),
            })
        },
    );
    on::<n::SETATTR3args>(procedure, args, out, Default::default, |call| {
        let node = state.nodes.get_mut(&id(&call.object)).unwrap();
        if let Nfs3Option::Some(mode) = call.new_attributes.mode {
            node.mode = mode;
        }
        if let Nfs3Option::Some(size) = call.new_attributes.size {
            node.data.resize(size as usize, 0);
            node.stable = node.data.clone();
        }
        Ok(n::SETATTR3resok {
            obj_wcc: wcc_data {
                before: Nfs3Option::None,
                after: Nfs3Option::Some(attributes(state, id(&call.object))),
            },
        })
    });
    on::<n::LOOKUP3args<'static>>(procedure, args, out, Default::default, |call| {
        let (dir, name) = place(&call.what);
        let another = state.fault == Fault::FindsAnotherFile;
        let names = names(state, dir);
        let mut found = *names.get(&name).ok_or(NFS3ERR_NOENT)?;
        if another {
            found = *names.values().next().unwrap();
        }
        Ok(n::LOOKUP3resok {
            object: handle(found),
            obj_attributes: Nfs3Option::Some(attributes(state, found)),
            dir_attributes: Nfs3Option::None,
        })
    });
    on::<n::CREATE3args<'static>>(procedure, args, out, Default::default, |call| {
        let (dir, name) = place(&call.where_);
        let there = names(state, dir).get(&name).copied();
        let (mode, verifier) = match &call.how {
            createhow3::UNCHECKED(set) | createhow3::GUARDED(set) => (mode_of(set), None),
            createhow3::EXCLUSIVE(verifier) => (0, Some(verifier.0)),
        };
        let id = match (there, &call.how) {
            (None, _) => make(
                state,
                &call.where_,
                Node {
                    mode,
                    verifier,
                    ..Node::default()
                },
            ),
            (Some(id), createhow3::UNCHECKED(_)) => id,
            (Some(id), _) if verifier.is_some() && state.nodes[&id].verifier == verifier => id,
            (Some(_), _) => return Err(NFS3ERR_EXIST),
        };
        Ok(n::CREATE3resok {
            obj: Nfs3Option::Some(handle(id)),
            obj_attributes: Nfs3Option::None,
            dir_wcc: wcc_data::default(),
        })
    });
    on::<n::MKDIR3args<'static>>(procedure, args, out, Default::default, |call| {
        let (dir, name) = place(&call.where_);
        if names(state, dir).contains_key(&name) {
            return Err(NFS3ERR_EXIST);
        }
        let node = Node {
            names: Some(BTreeMap::new()),
            mode: mode_of(&call.attributes),
            ..Node::default()
        };
        // Clients also cope without the handle.
        make(state, &call.where_, node);
        Ok(n::MKDIR3resok {
            obj: Nfs3Option::None,
            obj_attributes: Nfs3Option::None,
            dir_wcc: wcc_data::default(),
        })
    });
    on::<n::REMOVE3args<'static>>(procedure, args, out, Default::default, |call| {
        let (dir, name) = place(&call.object);
        let id = names(state, dir).remove(&name).ok_or(NFS3ERR_NOENT)?;
        state.removed.push((dir, name, id));
        Ok(n::REMOVE3resok {
            dir_wcc: wcc_data::default(),
        })
    });
    on::<n::RENAME3args<'static, 'static>>(procedure, args, out, Default::default, |call| {
        let ((dir, from), (_, to)) = (place(&call.from), place(&call.to));
        let names = names(state, dir);
        let id = names.remove(&from).ok_or(NFS3ERR_NOENT)?;
        names.insert(to, id);
        Ok(n::RENAME3resok {
            fromdir_wcc: wcc_data::default(),
            todir_wcc: wcc_data::default(),
        })
    });
    on::<n::READDIR3args>(procedure, args, out, Default::default, |call| {
        // Two at a time, to be asked more than once.
        let all: Vec<(String, u64)> = names(state, id(&call.dir)).clone().into_iter().collect();
        let begin = call.cookie as usize;
        let end = all.len().min(begin + 2);
        let entries = (begin..end).map(|i| n::entry3 {
            fileid: all[i].1,
            name: all[i].0.clone().into_bytes().into(),
            cookie: i as u64 + 1,
        });
        Ok(n::READDIR3resok {
            dir_attributes: Nfs3Option::None,
            cookieverf: n::cookieverf3::default(),
            reply: n::dirlist3 {
                entries: List(entries.collect()),
                eof: end == all.len(),
            },
        })
    });
    on::<n::READ3args>(procedure, args, out, Default::default, |call| {
        let data = &state.nodes[&id(&call.file)].data;
        let begin = data.len().min(call.offset as usize);
        let end = data.len().min(begin + call.count as usize);
        let mut bytes = data[begin..end].to_vec();
        if state.fault == Fault::ChangesAByte
            && let Some(byte) = bytes.last_mut()
        {
            *byte ^= 1;
        }
        Ok(n::READ3resok {
            file_attributes: Nfs3Option::None,
            count: bytes.len() as u32,
            eof: end == data.len(),
            data: Opaque::owned(bytes),
        })
    });
    on::<n::WRITE3args<'static>>(procedure, args, out, Default::default, |call| {
        let count = call.data.len().min(state.write_bytes_max);
        let (fault, verifier) = (state.fault, state.verifier);
        let node = state.nodes.get_mut(&id(&call.file)).unwrap();
        let begin = call.offset as usize;
        let copies = if call.stable == stable_how::UNSTABLE || fault == Fault::ForgetsStableWrites {
            vec![&mut node.data]
        } else {
            vec![&mut node.data, &mut node.stable]
        };
        for copy in copies {
            copy.resize(copy.len().max(begin + count), 0);
            copy[begin..begin + count].copy_from_slice(&call.data[..count]);
        }
        Ok(n::WRITE3resok {
            file_wcc: wcc_data::default(),
            count: count as u32,
            committed: if fault == Fault::AdmitsItIsNotStable {
                stable_how::UNSTABLE
            } else {
                call.stable
            },
            verf: writeverf3(verifier.to_be_bytes()),
        })
    });
    let no_wcc = || n::COMMIT3resfail {
        file_wcc: wcc_data::default(),
    };
    on::<n::COMMIT3args>(procedure, args, out, no_wcc, |call| {
        let verifier = writeverf3(state.verifier.to_be_bytes());
        let node = state.nodes.get_mut(&id(&call.file)).unwrap();
        node.stable = node.data.clone();
        Ok(n::COMMIT3resok {
            file_wcc: wcc_data::default(),
            verf: verifier,
        })
    });
}
