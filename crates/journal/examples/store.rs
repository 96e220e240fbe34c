//! A key-value store on the journal: changes of several keys at once are whole after a power cut, and a key that was
//! synced is there.
//!
//! Run it with `cargo run -p steadfast-journal --example store`.

use std::sync::Arc;
use steadfast_block::{BLOCK_SIZE, BlockDevice, BlockNo, MemDevice};
use steadfast_journal::{
    Access, Config, Credits, Journal, Kind, Lockmap, Object, Region, Result, StreamId, Ticket,
};

/// The journal takes the first blocks of the device, the values the rest.
const REGION: Region = Region {
    headers: [BlockNo(0), BlockNo(1)],
    log: BlockNo(2),
    log_blocks: 128,
};
const VALUES: u64 = REGION.log.0 + REGION.log_blocks;
const VALUE_BYTES: usize = 8;
const VALUES_IN_BLOCK: u64 = (BLOCK_SIZE / VALUE_BYTES) as u64;
const IDENTITY: [u8; 16] = *b"an example store";

/// Numbers by number.
struct Store {
    journal: Journal,
    locks: Lockmap,
}

impl Store {
    /// Opens the store, or makes it on a device of zeros.
    fn open(device: Arc<dyn BlockDevice>) -> Result<Store> {
        let config = Config::new(REGION, IDENTITY);
        let (journal, recovery) = Journal::open_or_create(device, config)?;
        println!("opened, {} records were replayed", recovery.records);
        let locks = Lockmap::new();
        Ok(Store { journal, locks })
    }

    /// Place of a value.
    fn place(key: u64) -> (BlockNo, usize) {
        let at = BlockNo(VALUES + key / VALUES_IN_BLOCK);
        (at, (key % VALUES_IN_BLOCK) as usize * VALUE_BYTES)
    }

    fn get(&self, key: u64) -> Result<u64> {
        let _locked = self.locks.acquire(&[(key, Access::Shared)]);
        let (at, offset) = Store::place(key);
        let block = self.journal.read(at, Kind::Data)?;
        let mut bytes = [0; VALUE_BYTES];
        bytes.copy_from_slice(&block[offset..offset + VALUE_BYTES]);
        Ok(u64::from_le_bytes(bytes))
    }

    /// Sets all these values or none. Not durable before [`Store::sync`], or a few seconds later.
    fn put(&self, stream: StreamId, values: &[(u64, u64)]) -> Result<Ticket> {
        // For each: 24 bytes for its block, 4 for the range, and the value.
        let log_bytes = values.len() as u64 * (24 + 4 + VALUE_BYTES as u64);
        let credits = Credits {
            log_bytes,
            data_blocks: 0,
        };
        let mut op = self.journal.begin(stream, credits)?;
        // Locks come after admission, which may wait for other operations.
        let wanted: Vec<_> = (values.iter())
            .map(|(key, _)| (*key, Access::Exclusive))
            .collect();
        let _locked = self.locks.acquire(&wanted);
        for (key, value) in values {
            let (at, offset) = Store::place(*key);
            op.relate(Object::Key(0, *key), Access::Exclusive);
            op.write(at, Kind::Data, offset, &value.to_le_bytes())?;
        }
        Ok(op.commit())
    }

    /// Makes all puts of the stream durable, with everything that they depend on.
    fn sync(&self, stream: StreamId) -> Result<()> {
        self.journal.sync(stream, &[])
    }
}

fn main() -> Result<()> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(1000));
    let store = Store::open(Arc::clone(&device))?;
    let (alice, bob) = (StreamId(1), StreamId(2));
    store.put(alice, &[(7, 70), (100_000, 30)])?;
    store.sync(alice)?;
    // A transfer is whole, and of another stream: it depends on the earlier change of its accounts, not on Alice.
    let ticket = store.put(bob, &[(7, 60), (100_000, 40)])?;
    store.journal.wait(ticket)?;
    store.put(bob, &[(8, 1)])?;
    // As if the power failed: no caller has synced the last transfer.
    store.journal.abandon();

    let store = Store::open(device)?;
    assert_eq!((store.get(7)?, store.get(100_000)?), (60, 40));
    println!("7: {}, 100000: {}", store.get(7)?, store.get(100_000)?);
    store.journal.close()
}

#[test]
fn the_example_does_what_it_says() -> Result<()> {
    main()
}
