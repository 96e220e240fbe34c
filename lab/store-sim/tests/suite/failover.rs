//! Servers that take a volume over from one another while clients go on: each call that must not be carried out twice is
//! carried out once, with any cut, and handles stay the same. The store, the file system and the server are those that ship.
//!
//! Clients send a call again until a server answers it. They know its right result, as no other client uses their names: a
//! call that was done twice, or answered and lost, is found. `STEADFAST_LONG=1` makes 10,000 calls.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that fails says why"
)]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use nfs3_types::nfs3::{
    self as n, CREATE3args, REMOVE3args, RENAME3args, createhow3, nfs_fh3, nfsstat3, stable_how,
};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use steadfast_fs::{Fs, FsckOptions, MkfsOptions, MountOptions, Outcome, fsck, mkfs};
use steadfast_nfs::{
    Access as Rights, Export, ExportedVolume, Gate, Options, Server, Squash, this_host,
};
use steadfast_nfs_client::Failure;
use steadfast_nfs_client::calls::{Call, decode, entry, mode, write_args};
use steadfast_nfs_client::client::{Client, mount};
use steadfast_nfs_client::rpc::Target;
use steadfast_store::{
    Access, DeviceFault, Found, Location, OpenOptions, ServingLease, StoreDevice, create,
};
use steadfast_store_sim::Random;

const BLOCKS: u64 = 1 << 14;
const LEASE: Duration = Duration::from_millis(200);
const CLIENTS: usize = 6;
/// No test runs longer.
const LIMIT: Duration = Duration::from_secs(900);

/// A machine's way to the store. It dies at one of its PUTs.
#[derive(Debug, Default)]
struct Machine {
    store: Arc<InMemory>,
    /// PUTs that it has left, and whether the last one takes effect.
    left: AtomicU64,
    last_counts: AtomicBool,
    dead: AtomicBool,
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a machine")
    }
}

fn dead() -> object_store::Error {
    object_store::Error::Generic {
        store: "test",
        source: "the machine is dead".into(),
    }
}

impl Machine {
    fn of(store: &Arc<InMemory>) -> Arc<Machine> {
        Arc::new(Machine {
            store: Arc::clone(store),
            left: AtomicU64::new(u64::MAX),
            ..Machine::default()
        })
    }

    fn found(self: &Arc<Self>) -> Found {
        let place = Location::within(Arc::clone(self) as _, "volume", "memory://volume");
        Found::new(place, &Access::default(), Duration::from_secs(20)).unwrap()
    }

    fn check(&self) -> Result<()> {
        match self.dead.load(SeqCst) {
            true => Err(dead()),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl ObjectStore for Machine {
    async fn put_opts(
        &self,
        at: &Path,
        bytes: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.check()?;
        if self.left.fetch_sub(1, SeqCst) == 1 {
            self.dead.store(true, SeqCst);
            if self.last_counts.load(SeqCst) {
                let _ = self.store.put_opts(at, bytes, options).await;
            }
            return Err(dead());
        }
        self.store.put_opts(at, bytes, options).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.check()?;
        self.store.put_multipart_opts(at, options).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        self.check()?;
        self.store.get_opts(at, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.store.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.store.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.store.copy_opts(from, to, options).await
    }
}

#[derive(Debug)]
struct Leased(ServingLease);

impl Gate for Leased {
    fn may_answer(&self) -> bool {
        self.0.may_answer()
    }
}

/// A server, with all that it serves.
struct Serving {
    machine: Arc<Machine>,
    disk: Arc<StoreDevice>,
    fs: Arc<Fs>,
    server: Server,
}

impl Serving {
    fn start(store: &Arc<InMemory>, fault: Option<DeviceFault>) -> Serving {
        let machine = Machine::of(store);
        let options = OpenOptions {
            take_over: true,
            wait_for_dead: true,
            lease: Some(LEASE),
            patience: Duration::from_secs(60),
            store_timeout: Some(Duration::from_millis(200)),
            faults: (fault, Default::default()),
            ..OpenOptions::default()
        };
        let disk = Arc::new(machine.found().open(&options).unwrap());
        let mut mounted = MountOptions::default();
        mounted.defer_commits = true;
        let (fs, _) = Fs::mount(Arc::clone(&disk) as _, &mounted).unwrap();
        let mut volume = ExportedVolume::new(Arc::clone(&fs) as _, "volume");
        volume.verifier = disk.term().map(|term| term.0);
        volume.keeps_replies = true;
        volume.replies = disk.notes();
        let mut options = Options::default();
        options.listen = vec![([127, 0, 0, 1], 0).into()];
        options.threads = 16;
        options.gate = Some(Arc::new(Leased(disk.lease().unwrap())));
        let export = Export::new().with_access(Rights {
            clients: this_host(),
            any_port: true,
            squash: Squash::None,
            ..Rights::new()
        });
        let server = Server::start(vec![volume], vec![export], &options).unwrap();
        Serving {
            machine,
            disk,
            fs,
            server,
        }
    }

    fn address(&self) -> SocketAddr {
        self.server.addresses()[0]
    }

    /// The machine is gone at once, also with requests on their way.
    fn kill(self) {
        self.machine.dead.store(true, SeqCst);
        self.server.stopper().abort();
        drop(self.server.stop());
    }

    /// A planned end.
    fn end(self) {
        drop(self.server.stop());
        self.fs.unmount().unwrap();
        assert!(self.disk.release().is_ok());
    }
}

fn fresh(store: &Arc<InMemory>) {
    let place = Location::within(Arc::clone(store) as _, "volume", "memory://volume");
    create(place, BLOCKS, Duration::from_secs(20)).unwrap();
    let options = OpenOptions {
        release_on_drop: true,
        ..OpenOptions::default()
    };
    let disk = Machine::of(store).found().open(&options).unwrap();
    let options = MkfsOptions {
        without_log: true,
        ..MkfsOptions::default()
    };
    mkfs(&disk, &options, &mut |_, _| {}).unwrap();
    drop(disk);
}

/// State that the clients share.
struct Place {
    /// The server that there is, if there is one.
    at: Mutex<Option<SocketAddr>>,
    begun: Instant,
    /// Calls that are still to be made.
    left: AtomicU64,
    /// Calls that were sent more than once.
    again: AtomicU64,
    wrong: Mutex<Option<String>>,
}

impl Place {
    fn at(&self) -> Option<SocketAddr> {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn moves(&self, at: Option<SocketAddr>) {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }

    fn says(&self, what: String) {
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        wrong.get_or_insert(what);
    }

    fn is_over(&self) -> bool {
        let wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        wrong.is_some() || self.begun.elapsed() > LIMIT
    }
}

fn target(address: SocketAddr) -> Target {
    Target {
        address,
        uid: 0,
        gid: 0,
        reserved_port: false,
        timeout: Duration::from_secs(30),
    }
}

/// A call that is sent again until it is answered. None: the test is over.
fn answered<C: Call>(
    place: &Place,
    client: &mut Client,
    args: &C,
) -> Option<std::result::Result<C::Ok, nfsstat3>> {
    client.submit(args).unwrap();
    loop {
        match client.receive() {
            Ok(reply) => {
                place.again.fetch_add(u64::from(reply.resent), SeqCst);
                return Some(decode::<C>(&reply.body).unwrap());
            }
            Err(Failure::Lost(_)) => {}
            Err(error) => panic!("{error}"),
        }
        while place.at().is_none_or(|at| client.move_to(at).is_err()) {
            if place.is_over() {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A client: makes, renames and removes files that nobody else touches.
fn work(place: &Place, who: usize, mut client: Client, root: &nfs_fh3) {
    let call = |what: String, done: std::result::Result<(), nfsstat3>| {
        if let Err(status) = done {
            place.says(format!("client {who}: {what}: {status:?}"));
        }
    };
    let mut number = 0;
    while place
        .left
        .fetch_update(SeqCst, SeqCst, |left| left.checked_sub(4))
        .is_ok()
    {
        number += 1;
        let (name, other) = (format!("c{who}-{number}"), format!("r{who}-{number}"));
        let how = createhow3::GUARDED(mode(0o600));
        let made = CREATE3args {
            where_: entry(root, &name),
            how,
        };
        let Some(made) = answered(place, &mut client, &made) else {
            return;
        };
        call(format!("CREATE {name}"), made.map(drop));
        let renamed = RENAME3args {
            from: entry(root, &name),
            to: entry(root, &other),
        };
        let Some(renamed) = answered(place, &mut client, &renamed) else {
            return;
        };
        call(format!("RENAME {name}"), renamed.map(drop));
        let made = n::MKDIR3args {
            where_: entry(root, &name),
            attributes: mode(0o700),
        };
        let Some(made) = answered(place, &mut client, &made) else {
            return;
        };
        call(format!("MKDIR {name}"), made.map(drop));
        let removed = REMOVE3args {
            object: entry(root, &other),
        };
        let Some(removed) = answered(place, &mut client, &removed) else {
            return;
        };
        call(format!("REMOVE {other}"), removed.map(drop));
        if place.is_over() {
            return;
        }
    }
}

/// Clients at work, and servers that die under them. Returns the failures, the number of calls sent again, and the number
/// of servers.
fn run(seed: u64, calls: u64, fault: Option<DeviceFault>) -> (Option<String>, u64, u64) {
    let store = Arc::new(InMemory::new());
    fresh(&store);
    let mut random = Random::new(seed);
    let serving = Serving::start(&store, fault);
    let first = serving.address();
    let place = Place {
        at: Mutex::new(Some(first)),
        begun: Instant::now(),
        left: AtomicU64::new(calls),
        again: AtomicU64::new(0),
        wrong: Mutex::new(None),
    };
    let export = mount(&target(first), Some(first.port()), Some(first.port()), "/").unwrap();
    let (last, servers) = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|who| {
                let mut client = Client::connect(&target(first)).unwrap();
                client.keep_port().unwrap();
                let (place, root) = (&place, &export.root);
                scope.spawn(move || work(place, who, client, root))
            })
            .collect();
        let (mut serving, mut servers) = (serving, 1);
        loop {
            // The machine dies at one of its next PUTs.
            let machine = Arc::clone(&serving.machine);
            machine.last_counts.store(random.permille(600), SeqCst);
            machine.left.store(random.between(2, 40), SeqCst);
            let done = || {
                clients
                    .iter()
                    .all(std::thread::ScopedJoinHandle::is_finished)
            };
            while !machine.dead.load(SeqCst) && !done() {
                std::thread::sleep(Duration::from_millis(1));
            }
            if done() {
                return (serving, servers);
            }
            place.moves(None);
            serving.kill();
            serving = Serving::start(&store, fault);
            servers += 1;
            place.moves(Some(serving.address()));
        }
    });
    last.machine.left.store(u64::MAX, SeqCst);
    match last.machine.dead.load(SeqCst) {
        true => last.kill(),
        false => last.end(),
    }
    assert!(place.begun.elapsed() < LIMIT, "it does not end");
    let wrong = place.wrong.into_inner().unwrap();
    if wrong.is_none() {
        let disk = Machine::of(&store).found().open(&OpenOptions {
            take_over: true,
            release_on_drop: true,
            ..OpenOptions::default()
        });
        let disk = Arc::new(disk.unwrap());
        let outcome = fsck(disk, &FsckOptions::default()).unwrap().outcome();
        assert_eq!(outcome, Outcome::Clean);
    }
    (wrong, place.again.load(SeqCst), servers)
}

#[test]
fn every_call_is_carried_out_once_whatever_is_cut() {
    let calls = match std::env::var_os("STEADFAST_LONG") {
        Some(_) => 10_000,
        None => 1_200,
    };
    let (wrong, again, servers) = run(1, calls, None);
    println!("{calls} calls, {again} sent again, {servers} servers");
    assert_eq!(wrong, None);
    assert!(again > 0 && servers > 5);
}

#[test]
fn a_note_that_is_lost_is_found() {
    let found = (1..6).find_map(|seed| run(seed, 1_200, Some(DeviceFault::NoteLost)).0);
    let found = found.unwrap_or_else(|| panic!("no call was done twice"));
    assert!(
        found.contains("NOENT") || found.contains("EXIST"),
        "{found}"
    );
    steadfast_testkit::caught("store.note_lost");
}

#[test]
fn a_note_before_its_change_is_found() {
    let found = (1..8).find_map(|seed| run(seed, 1_200, Some(DeviceFault::NoteEarly)).0);
    assert!(found.is_some(), "no call was answered and lost");
    steadfast_testkit::caught("store.note_early");
}

/// Connects to a server. The port of the last connection may not be free yet.
fn moved(client: &mut Client, to: SocketAddr) {
    let begun = Instant::now();
    while let Err(error) = client.move_to(to) {
        assert!(begun.elapsed() < LIMIT, "{error}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Handles, the verifier, unstable writes and a repeated call across a planned hand-over and a death.
#[test]
fn handles_stay_and_the_verifier_changes_once_for_each_term() {
    let store = Arc::new(InMemory::new());
    fresh(&store);
    let mut serving = Serving::start(&store, None);
    let port = serving.address().port();
    let export = mount(&target(serving.address()), Some(port), Some(port), "/").unwrap();
    let mut client = Client::connect(&target(serving.address())).unwrap();
    client.keep_port().unwrap();
    let file = client.create(&export.root, "file").unwrap();
    let made = client.attributes(&file).unwrap();
    let mut verifiers = Vec::new();
    for round in 0..4_u8 {
        let before = verifiers.last().copied();
        let write = |client: &mut Client, stable, data: &[u8]| {
            client
                .expect(&write_args(&file, 0, stable, data), "WRITE")
                .unwrap()
        };
        let verifier = write(&mut client, stable_how::UNSTABLE, &[round; 100])
            .verf
            .0;
        assert_ne!(Some(verifier), before, "another term");
        // A connection that is made again finds the same term.
        moved(&mut client, serving.address());
        assert_eq!(client.commit(&file).unwrap().0, verifier);
        write(&mut client, stable_how::FILE_SYNC, &[round + 100; 100]);
        verifiers.push(verifier);
        match round % 2 {
            0 => serving.kill(),
            _ => serving.end(),
        }
        serving = Serving::start(&store, None);
        moved(&mut client, serving.address());
        let read = client.read(&file, 0, 200, 100).unwrap();
        assert_eq!(read, [round + 100; 100], "what was stable");
        let now = client.attributes(&file).unwrap();
        assert_eq!(now.fileid, made.fileid);
    }
    serving.end();
}
